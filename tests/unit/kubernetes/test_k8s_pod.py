"""The pod: what the program, the options and their defaults come to."""

from __future__ import annotations

from dataclasses import fields

import pytest

from dsrun.cli.options import declared_in
from dsrun.errors import UsageError
from dsrun.kubernetes.objects import manifest
from dsrun.kubernetes.options import KubernetesSpec
from dsrun.kubernetes.workload import TrainingWorkload, completed, notices
from tests.unit.kubernetes.jobs import EVERYTHING, SCRIPT, TRAINING, container_of, job_of, objects_of, pod_of, spec_of

command = declared_in("launch/command.toml")


def variables(container: dict) -> dict:
    """Values of variables, and where others come from."""
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def test_pod_runs_launch_with_its_program():
    container = container_of(objects_of(nodes="4", gpus_per_node="8"))
    assert container["command"] == ["dsrun", "launch"]
    assert container["args"] == [
        *("--nodes", "4", "--master-addr", "t5-large-0.t5-large", "--nproc", "8", "--output", "/runs/ro", "--"),
        *("dsrun", "train", "--model", "t5-large"),
    ]


def test_options_of_launch_are_those_that_it_takes(monkeypatch):
    """The real command reads what is rendered from every option, and finds the program behind them."""
    monkeypatch.setenv("SLACK_URL", "https://hooks.example.org/x")
    args = [word.replace("$$", "$") for word in container_of(objects_of(SCRIPT, **EVERYTHING))["args"]]
    found = command.make_context("launch", args).params
    given = {name: found[name] for name in ("nodes", "master_addr", "nproc", "output", "max_restarts", "notify")}
    assert given == {
        **{"nodes": 4, "master_addr": "ro-0.ro", "nproc": 4, "output": "/shared/ro", "max_restarts": 5},
        "notify": ("env:SLACK_URL",),
    }
    assert found["rendezvous_timeout"] == 900
    assert found["program"] == SCRIPT.words


def test_single_pod_needs_no_service_and_no_key():
    (job,) = objects_of()
    container = container_of([job])
    assert container["args"][:3] == ["--nproc", "1", "--output"]
    assert "DSRUN_SECRET" not in variables(container)
    assert "subdomain" not in pod_of([job])


def test_supervisors_key_is_known_to_the_job_only():
    """The UID of the Job, or the secret that the user names; never a text in the manifest."""
    found = variables(container_of(objects_of(nodes="2")))["DSRUN_SECRET"]
    assert found == {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/controller-uid']"}}
    found = variables(container_of(objects_of(nodes="2", secret=["DSRUN_SECRET=key:own"])))["DSRUN_SECRET"]
    assert found == {"secretKeyRef": {"name": "key", "key": "own"}}


def test_pods_know_the_uid_of_their_job():
    """Also a single one, and where the supervisors have another key."""
    for options in ({}, {"nodes": "2", "secret": ["DSRUN_SECRET=key:own"]}):
        found = variables(container_of(objects_of(**options)))["DSRUN_JOB_UID"]
        assert found == {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/controller-uid']"}}


def test_index_is_left_to_the_job_controller():
    """Kubernetes adds JOB_COMPLETION_INDEX to pods of an Indexed Job; one of the manifest would be the same for all."""
    assert "JOB_COMPLETION_INDEX" not in manifest(objects_of(nodes="4", **{"kind": "jobset"}))


@pytest.mark.parametrize(
    ("options", "on_cpu", "gpus", "nproc"),
    [
        ({}, False, "1", "1"),
        ({}, True, None, "1"),
        ({"nproc": "4"}, False, None, "4"),
        ({"gpus_per_node": "0"}, False, None, "1"),
        ({"gpus_per_node": "8"}, True, "8", "8"),
        ({"gpus_per_node": "8", "nproc": "2"}, False, "8", "2"),
    ],
)
def test_gpus_and_workers_of_a_pod(options, on_cpu, gpus, nproc):
    workload = TrainingWorkload(words=("./x",), name="x", on_cpu=on_cpu)
    container = container_of(objects_of(workload, **options))
    assert container.get("resources", {}).get("limits", {}).get("nvidia.com/gpu") == gpus
    assert container["args"][container["args"].index("--nproc") + 1] == nproc
    found = variables(container)
    assert (found.get("DS_ACCELERATOR"), found.get("CUDA_VISIBLE_DEVICES")) == ((None, None) if gpus else ("cpu", ""))


def test_pod_is_not_root_and_has_no_privileges():
    """The restricted pod security standard: user, group, seccomp profile, no capabilities, no token."""
    pod = pod_of(objects_of())
    security, container = pod["securityContext"], pod["containers"][0]["securityContext"]
    assert (security["runAsNonRoot"], security["runAsUser"], security["fsGroup"]) == (True, 1000, 1000)
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert pod["automountServiceAccountToken"] is False
    assert not {"livenessProbe", "readinessProbe", "startupProbe"} & pod["containers"][0].keys()


def test_home_of_the_user_is_writable():
    """Whatever the user ID, HOME is a volume; caches that all pods share are on the claim."""
    container = container_of(objects_of(user="4711"))
    found, mounts = variables(container), {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    assert mounts[found["HOME"]] == "scratch"
    assert {found[name].split("/")[1] for name in ("HF_HOME", "DSRUN_CACHE")} == {"runs"}
    assert variables(container_of(objects_of(env=["HF_HOME=/models/hub"])))["HF_HOME"] == "/models/hub"


def test_variable_is_given_once():
    """The user's value or reference replaces dsrun's own, and does not stand beside it."""
    options = {"env": ["HF_HOME=/x"], "secret": ["USER=a:b", "DSRUN_SECRET=c:d"], "nodes": "2"}
    names = [each["name"] for each in container_of(objects_of(**options))["env"]]
    assert len(names) == len(set(names))


def test_root_of_the_image_keeps_its_home():
    container = container_of(objects_of(run_as_root="true"))
    assert "HOME" not in variables(container)
    assert container["securityContext"] == {"allowPrivilegeEscalation": False}
    assert pod_of(objects_of(run_as_root="true"))["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}


def test_rdma_devices_come_with_ipc_lock():
    container = container_of(objects_of(rdma=["rdma/hca=2"]))
    assert container["resources"]["limits"]["rdma/hca"] == "2"
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({}, "16Gi"),
        ({"memory": "200Gi"}, "16Gi"),
        ({"memory": "8Gi"}, str(4 * 1024**3)),
        ({"memory": "8Gi", "shm": "6Gi"}, "6Gi"),
    ],
)
def test_shared_memory_is_large_and_fits_the_limit(options, size):
    volumes = {each["name"]: each for each in pod_of(objects_of(**options))["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": size}


def test_limits_are_what_is_requested():
    """A pod whose requests equal its limits is among the last to be evicted."""
    resources = container_of(objects_of(cpus="16", memory="64Gi", gpus_per_node="4"))["resources"]
    assert resources["requests"] == {"cpu": "16", "memory": "64Gi"}
    assert resources["limits"] == {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "4"}


def test_taints_and_machines():
    pod = pod_of(objects_of(toleration=["gpu", "team=nlp:NoExecute"], node_selector=["a=b"], spread="yes"))
    assert pod["tolerations"] == [
        {"key": "gpu", "operator": "Exists"},
        {"key": "team", "operator": "Equal", "value": "nlp", "effect": "NoExecute"},
    ]
    (term,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"]["matchLabels"] == {"app.kubernetes.io/instance": "t5-large"}


def test_claims_and_their_paths():
    objects = objects_of(claim="shared:/s", mount=["data:/data:ro"], claim_size="1Ti", nodes="2")
    claim, pod = objects[0], pod_of(objects)
    assert claim["metadata"]["name"] == "shared"
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert {"name": "data-1", "mountPath": "/data", "readOnly": True} in pod["containers"][0]["volumeMounts"]
    assert {"name": "data-1", "persistentVolumeClaim": {"claimName": "data", "readOnly": True}} in pod["volumes"]
    assert "/s/ro" in pod["containers"][0]["args"]
    # One pod does with storage that a single machine mounts, as many clusters have nothing else.
    assert objects_of(claim_size="1Ti")[0]["spec"]["accessModes"] == ["ReadWriteOnce"]


def test_volcano_starts_all_pods_or_none():
    """The annotation on the Job that owns the pods; Kubeflow Trainer makes the group itself."""
    key = "scheduling.volcano.sh/group-min-member"
    job = objects_of(scheduler="volcano", nodes="4")[-1]
    assert job["metadata"]["annotations"] == {key: "4"}
    (jobset,) = objects_of(scheduler="volcano", nodes="4", kind="jobset")
    assert jobset["spec"]["replicatedJobs"][0]["template"]["metadata"]["annotations"] == {key: "4"}
    runtime, _ = objects_of(scheduler="volcano", nodes="4", kind="trainjob")
    assert runtime["spec"]["podGroupPolicy"] == {"volcano": {}}
    assert key not in manifest(objects_of(scheduler="other", nodes="4"))


def test_queue_label_is_on_the_object_kueue_admits():
    for kind in ("job", "jobset", "trainjob"):
        objects = objects_of(kind=kind, queue="q", nodes="2")
        queued = [each["kind"] for each in objects if "kueue.x-k8s.io/queue-name" in each["metadata"]["labels"]]
        assert queued == [{"job": "Job", "jobset": "JobSet", "trainjob": "TrainJob"}[kind]]


def test_time_limits_of_the_job():
    job = job_of(objects_of(deadline="60", ttl="0", grace="30", max_pod_failures="0"))
    assert (job["activeDeadlineSeconds"], job["ttlSecondsAfterFinished"], job["backoffLimitPerIndex"]) == (60, 0, 0)
    assert job["template"]["spec"]["terminationGracePeriodSeconds"] == 30
    (jobset,) = objects_of(kind="jobset", ttl="9", deadline="60")
    assert jobset["spec"]["ttlSecondsAfterFinished"] == 9
    assert "ttlSecondsAfterFinished" not in job_of([jobset])


def without(name: str) -> str:
    """The YAML of a job with every option but one."""
    options = {key: value for key, value in EVERYTHING.items() if key != name}
    if name == "claim_size":
        options.pop("storage_class")
    if name == "nodes":
        options.pop("elastic")  # which says it as well
    return manifest(objects_of(SCRIPT, **options))


@pytest.mark.parametrize("name", [each.name for each in fields(KubernetesSpec) if each.name != "patch"])
def test_each_option_changes_the_objects(name):
    """No option is declared and then forgotten; patches have tests of their own."""
    changed = {"kind": {"kind": "jobset"}, "run_as_root": {"run_as_root": "true"}}
    if name in changed:
        assert manifest(objects_of(SCRIPT, **EVERYTHING, **changed[name])) != manifest(objects_of(SCRIPT, **EVERYTHING))
    elif name == "secret":
        with pytest.raises(Exception, match="the pods have no SLACK_URL"):
            without(name)
    else:
        assert name in EVERYTHING
        assert without(name) != manifest(objects_of(SCRIPT, **EVERYTHING))


def test_notes_say_what_must_be_there():
    given = spec_of(nodes="2", rdma=["rdma/hca=1"], namespace="nlp")
    said = "\n".join(notices(given, completed(given, TRAINING)))
    for words in (
        "push it",
        "the claim dsrun-runs must exist in namespace nlp, and several",
        "1 GPU a pod",
        "IPC_LOCK",
    ):
        assert words in said
    given = spec_of(**EVERYTHING, **{"run_as_root": "true"})
    assert list(notices(given, completed(given, TRAINING))) == [
        "kubectl delete -f deletes the claim and all runs on it, too; kubectl delete job NAME does not"
    ]


def test_elastic_job_has_the_most_pods_and_says_so_to_its_supervisors():
    objects = objects_of(elastic="2:3")
    args = container_of(objects)["args"]
    assert args[args.index("--nodes") + 1] == "3"
    assert args[args.index("--elastic") + 1] == "2:3"
    assert job_of(objects)["completions"] == 3
    with pytest.raises(UsageError):
        objects_of(elastic="2:3", nodes="4")
