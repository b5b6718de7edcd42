"""What `dsrun render-k8s` refuses: one line that names the flag, or the line of run.yaml."""

from __future__ import annotations

import pytest

TOKEN = "hf_" + "a1B2" * 9


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--nodes", "0"], "--nodes: 0 is less than 1"),
        (["--nodes", "100001"], "--nodes: 100001 is more than 100000"),
        (["--grace", "99999999999"], "is more than 2147483647"),
        (["--kind", "pytorchjob"], "is not one of 'job', 'jobset', 'trainjob'"),
        (["--name", "T5"], "--name: 'T5' is not a valid name"),
        (["--name", "x" * 62, "--", "./x"], "at most 61 characters"),
        (["--kind", "jobset", "--name", "x" * 49, "--", "./x"], "at most 48 characters"),
        (["--namespace", "a.b"], "--namespace: 'a.b' is not a valid name"),
        (["--namespace", "x" * 64], "is not a valid name (at most 63 lower-case letters, digits and -)"),
        (["--memory", "200GB"], "--memory: '200GB' is not an amount (such as 200Gi)"),
        (["--memory", "100m"], "--memory: 100m is not a whole number of bytes"),
        (["--shm", "0.5"], "--shm: 0.5 is not a whole number of bytes"),
        (["--cpus", "0"], "--cpus: '0' is not an amount"),
        (["--shm", "8Gi", "--memory", "8Gi"], "it counts against that limit"),
        (["--gpus-per-node", "a100:8"], "--gpus-per-node: 'a100:8' is not a whole number"),
        (["--gpus-per-node", "2", "--nproc", "4", "--", "./x"], "each pod has 2 GPUs (--nproc 2)"),
        (["--gpu-resource", "gpu"], "is not a resource (such as nvidia.com/gpu)"),
        (["--rdma", "rdma/hca"], "is not RESOURCE=N"),
        (["--rdma", "rdma/hca=1", "--rdma", "rdma/hca=2"], "rdma/hca is given twice (give it once)"),
        (["--rdma", "hugepages-2Mi=3Mi", "--memory", "1Gi"], "'3Mi' is no size in whole pages"),
        (["--rdma", "hugepages-2Mi=2000Mi"], "hugepages-2Mi needs the amount of memory or of CPUs, too"),
        (["--rdma", "hugepages=2Mi", "--memory", "1Gi"], "is not RESOURCE=N"),
        (["--patch", "none.yaml"], "--patch none.yaml: cannot be read"),
        (["--patch", ""], "--patch: is empty"),
        (["--patch", "{kind: Job, spec: {completions: 2}}"], "--patch: Job.spec.completions: "),
        (["--patch", "{kind: Pod, spec: {node: x}}"], "--patch: Pod.spec: Kubernetes 1.37.0 has no field node here"),
        (["--rdma", "nvidia.com/gpu=2"], "is given twice (the number of GPUs is --gpus-per-node)"),
        (["--label", "a"], "is not KEY=VALUE"),
        (["--label", "a=b c"], "is not a label's value"),
        (["--label", "kueue.x-k8s.io/queue-name=q"], "write --queue"),
        (["--label", "app.kubernetes.io/instance=x"], "is set by dsrun"),
        (["--label", "batch.kubernetes.io/job-name=x"], "batch.kubernetes.io/job-name is set by Kubernetes (remove"),
        (["--label", "controller-uid=x"], "controller-uid is set by Kubernetes"),
        (["--annotation", "a=" + "x" * 130_000, "--annotation", "b=" + "x" * 132_200], "more than the 256 KiB"),
        (["--node-selector", "a=b/c"], "is not a label's value"),
        (["--toleration", "a:Never"], "effects are NoSchedule"),
        (["--queue", "Q"], "is not a queue's name"),
        (["--priority-class", "Very High"], "is not a valid name"),
        (["--ttl", "1", "--kind", "trainjob"], "--ttl: a TrainJob is never deleted by itself"),
        (["--notify", "env:SLACK_URL"], "add --secret SLACK_URL=SECRET:KEY"),
        (["--", "train", "--model", "demo-t5", "--notify", "env:SLACK_URL"], "add --secret SLACK_URL=SECRET:KEY"),
        (["--image", "my image"], "is not an image"),
        (["--workdir", "src"], "is not an absolute path"),
        (["--env", "HOME"], "the pods do not get your environment (write HOME=VALUE)"),
        (["--env", "A-B=1"], "is not a variable's name"),
        (["--env", "DSRUN_JOB_UID=1"], "is set by the Job or by dsrun launch"),
        (["--env", "RANK=0"], "is set by the Job or by dsrun launch"),
        (["--env", "PET_NNODES=1"], "is set by the Job or by dsrun launch"),
        (["--env", "KUBERNETES_SERVICE_HOST="], "is set by the Job or by dsrun launch"),
        (["--env", "A=1", "--env", "A=2"], "A is given twice"),
        (["--env", "A=1", "--secret", "A=b:c"], "A is given twice"),
        (["--env", "API_KEY=word"], "write --secret API_KEY=SECRET:KEY"),
        (["--secret", "HF_TOKEN"], "not NAME=SECRET:KEY"),
        (["--secret", "A=b:.."], "not NAME=SECRET:KEY"),
        (["--secret", "A=b:" + "x" * 254], "not NAME=SECRET:KEY"),
        (["--claim", "runs:/r:ro"], "is not NAME or NAME:/PATH"),
        (["--claim", "runs", "--mount", "data:/runs/"], "/runs is used twice"),
        (["--mount", "data:/dev/shm"], "/dev/shm is used twice"),
        (["--mount", "data:/dev//shm/."], "/dev/shm is used twice"),
        (["--mount", "data://"], "is not CLAIM:/PATH[:ro]"),
        (["--mount", "data"], "is not CLAIM:/PATH[:ro]"),
        (["--storage-class", "nfs"], "add --claim-size"),
        (["--user", "0"], "write --run-as-root"),
        (["--", "train", "--model", "demo-t5", "--output", "/tmp/x"], "/tmp/x is on no claim"),
        (["--mount", "d:/d:ro", "--", "train", "--model", "demo-t5", "--output", "/d/x"], "/d/x is on no claim"),
        (["--", "train", "--model", "demo-t5", "--output", "../x"], "/x is on no claim"),
        (["--nodes", "3", "--", "train", "--model", "demo-t5", "--global-batch-size", "64"], "64"),
        (["--", "train", "--model", "demo-t5", "--zeero", "3"], "did you mean --zero?"),
        (["--", "train", "--model", "demo-t5", "--deepspeed", "none.json"], "none.json"),
        (["train", "--model", "demo-t5"], "write the program after -- (dsrun render-k8s --nodes 4 -- train …)"),
        (["--", "nice", "torchrun", "x.py"], "the job starts one worker per GPU itself"),
        (
            ["--nodes", "2", "--", "torchrun", "--nnodes", "3", "x.py"],
            "--nodes 2 for dsrun render-k8s, but 3 for torchrun",
        ),
        (["--", "python"], "no script is named"),
        (["--nodez", "4"], "--nodes"),
        (["-o", ""], "--output is empty"),
        (["--config", "none.yaml"], "cannot be read"),
    ],
)
def test_render_k8s_usage_errors_are_one_line(refused, args, message):
    assert message in refused("render-k8s", *args)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("nodez: 4", "run.yaml:1: k8s.nodez: the k8s section has no such key (did you mean nodes?)"),
        ("xyzzy: 4", "run.yaml:1: k8s.xyzzy: the k8s section has no such key (docs/kubernetes.md lists them all)"),
        ("nodes: 1-4", "run.yaml:1: k8s.nodes: '1-4' is not a whole number"),
        ("kind: mpijob", "run.yaml:1: k8s.kind: 'mpijob' is not one of job, jobset, trainjob"),
        ("spread: maybe", "run.yaml:1: k8s.spread: 'maybe' is not true or false"),
        ("env: [HF_TOKEN=x]", "run.yaml:1: k8s.env: HF_TOKEN looks like a secret"),
        ("patch: {kind: Pod, spec: {a: 1, a: 2}}", "run.yaml:1: k8s.patch:1: a is given twice, first in line 1"),
        ("patch: {kind: Pods}", "--patch: Pods is none of the job's kinds"),
        ("patch: none.yaml", "--patch none.yaml: cannot be read"),
        ("name: [a, b]", "run.yaml:1: k8s.name: takes one value, not 2"),
    ],
)
def test_render_k8s_section_errors_name_their_line(dsrun, here, section, message):
    (here / "run.yaml").write_text(f"k8s: {{{section}}}\ntrain: {{model: demo-t5}}\n")
    done = dsrun("render-k8s")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"error: {message}" in done.stderr


@pytest.mark.parametrize(
    "args",
    [
        ["--env", f"HF_TOKEN={TOKEN}"],
        ["--env", f"GREETING=my {TOKEN}"],
        ["--secret", f"HF_TOKEN={TOKEN}"],
        ["--secret", TOKEN],
        ["--env", TOKEN],
        ["--annotation", f"example.org/note=my {TOKEN}"],
        ["--label", f"token={TOKEN}"],
        ["--patch", f"{{kind: Pod, metadata: {{annotations: {{note: my {TOKEN}}}}}}}"],
        ["--patch", f"{{kind: Pod, spec: {{containers: [{{name: node, env: [{{name: A, value: {TOKEN}}}]}}]}}}}"],
        [
            "--patch",
            f"{{kind: Pod, spec: {{containers: [{{name: node, env: [{{name: HF_TOKEN, value: x{TOKEN}}}]}}]}}}}",
        ],
        ["--patch", f"{{kind: Pod, spec: {{node: {TOKEN}}}}}"],
        ["--patch", f"{{kind: Pod, spec: {{priority: {TOKEN}}}}}"],
        ["--patch", f"{{kind: {TOKEN}}}"],
        ["--patch", TOKEN],
        ["--name", TOKEN],
        ["--annotation", "example.org/source=https://me:pass@git.example.org/x"],
        ["--", "train", "--model", "demo-t5", "--hub-token", TOKEN],
        ["--", "python", "x.py", f"--token={TOKEN}"],
        ["--", "./x", TOKEN],
    ],
)
def test_render_k8s_never_writes_token(dsrun, args):
    """Neither into the manifest nor into the error."""
    done = dsrun("render-k8s", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert TOKEN not in done.stderr


def test_render_k8s_leaves_token_of_environment_alone(dsrun, environ, here):
    """A token of this shell is not the pods'; one of run.yaml's training is left out, too."""
    environ["HF_TOKEN"] = TOKEN
    (here / "run.yaml").write_text(f"train: {{model: demo-t5, hub_token: {TOKEN}}}\n")
    done = dsrun("render-k8s")
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout + done.stderr
    noted = "note: the token of run.yaml is not written into the manifest (--secret HF_TOKEN=SECRET:KEY)\n"
    assert noted in done.stderr
    assert noted not in dsrun("render-k8s", "--secret", "HF_TOKEN=hub:token").stderr
