"""Jobs whose pods end by themselves."""

from __future__ import annotations


def test_wrong_file_fails_job_at_once(job, tiny):
    """What another start would not change fails the job, whatever number of failures it allows."""
    program = ["train", *tiny, "--train-file", "/runs/none.jsonl"]
    wrong = job("wrong", "--nodes", 2, "--max-pod-failures", 5, program=program)
    wrong.wait_for("Failed")
    assert 2 in {code for _, code in wrong.codes()}
    assert not wrong.failures


def test_first_process_waits_for_orphans(job):
    """The program ends when none of the processes that it has left to process 1 is a zombie."""
    text = "for each in 1 2 3; do (true &); done; while ps -A -o stat= | grep -q ^Z; do sleep 0.1; done"
    single = job("orphans", program=["bash", "-c", text])
    single.wait_for("Complete")
    assert single.codes() == [(0, 0)]


PATCH = """
kind: Pod
spec:
  initContainers:
    - name: stage
      image: busybox
      command: [sh, -c, 'id -u > /fast/user; echo "$(GREETING)" > /fast/data']
      env: [{name: GREETING, value: staged}]
      volumeMounts: [{name: fast, mountPath: /fast}]
  containers:
    - name: node
      env: [{name: MY_DATA, value: /fast/data}]
      volumeMounts: [{name: fast, mountPath: /fast}]
  volumes:
    - {name: fast, emptyDir: {}}
---
kind: Service
metadata: {annotations: {example.org/owner: nlp}}
"""


def test_patched_pods_run(job, tmp_path):
    """An init container fills a volume that the program reads by a variable, in each of two pods, which still meet."""
    (tmp_path / "patch.yaml").write_text(PATCH)
    text = 'test "$(cat "$MY_DATA")" = staged && test "$(cat /fast/user)" = 1000 && test "$WORLD_SIZE" = 2'
    patched = job("patched", "--nodes", 2, "--patch", tmp_path / "patch.yaml", program=["bash", "-c", text])
    patched.wait_for("Complete")
    assert sorted(patched.codes()) == [(0, 0), (1, 0)]
    assert patched.failures == {}


def test_failed_init_container_counts_as_failure(job):
    """The job fails as its manifest says, and the program does not run."""
    patch = "{kind: Pod, spec: {initContainers: [{name: stage, image: busybox, command: [sh, -c, exit 9]}]}}"
    failed = job("unstaged", "--max-pod-failures", 0, "--patch", patch, program=["bash", "-c", "echo ran"])
    failed.wait_for("Failed")
    assert failed.codes() == [(0, 9)]
    assert "ran" not in failed.ended[0].log.split()
