"""The rendered objects are what the APIs of Kubernetes, JobSet and Kubeflow Trainer take."""

from __future__ import annotations

import kubernetes_validate
import pytest

from dsrun.kubernetes.workload import TrainingWorkload, longest_name
from tests.unit.kubernetes.jobs import (
    EVERYTHING,
    KINDS,
    SCRIPT,
    TRAINING,
    check_object,
    job_of,
    objects_of,
    pod_of,
    spec_of,
)

SETS = {
    "one-pod": {},
    "cpus": {"nodes": "2", "gpus_per_node": "0", "nproc": "4"},
    "root": {"nodes": "2", "run_as_root": "true", "rdma": ["rdma/hca=1"], "service_account": "trainer"},
    "everything": EVERYTHING,
}


def options_of(name: str, kind: str) -> dict:
    options = {**SETS[name], "kind": kind}
    if kind == "trainjob":
        options.pop("ttl", None)
    return options


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("workload", [TRAINING, SCRIPT], ids=["training", "script"])
def test_objects_fit_their_schemas(kind, name, workload):
    """Every field of every object is known to its API, and has a value of its type."""
    objects = objects_of(workload, **options_of(name, kind))
    for each in objects:
        check_object(each)
    kinds = {"job": ["Job"], "jobset": ["JobSet"], "trainjob": ["TrainingRuntime", "TrainJob"]}[kind]
    service = ["Service"] if kind == "job" and name != "one-pod" else []
    claim = ["PersistentVolumeClaim"] if name == "everything" else []
    assert [each["kind"] for each in objects] == [*claim, *service, *kinds]


def test_schema_check_refuses_unknown_field():
    """The checks of the other tests would notice a wrong field, in core objects and in those of JobSet."""
    (job,) = objects_of()
    job["spec"]["template"]["spec"]["containers"][0]["commands"] = ["x"]
    with pytest.raises(kubernetes_validate.ValidationError):
        check_object(job)
    (jobset,) = objects_of(kind="jobset")
    jobset["spec"]["networks"] = {}
    with pytest.raises(AssertionError):
        check_object(jobset)


@pytest.mark.parametrize("kind", KINDS)
def test_job_keeps_rules_of_pod_failure_policy(kind):
    """What the API checks beyond the schema (validateJobSpec and validatePodFailurePolicy of kubernetes/kubernetes)."""
    objects = objects_of(**options_of("everything", kind))
    job, pod = job_of(objects), pod_of(objects)
    assert job["completionMode"] == "Indexed"
    assert job["completions"] == job["parallelism"] == 4
    assert job["maxFailedIndexes"] <= job["completions"]
    assert (pod["restartPolicy"], job["podReplacementPolicy"]) == ("Never", "Failed")
    rules = job["podFailurePolicy"]["rules"]
    names = {each["name"] for each in pod["containers"]}
    for rule in rules:
        assert ("onExitCodes" in rule) != ("onPodConditions" in rule)
        if codes := rule.get("onExitCodes"):
            assert codes["containerName"] in names
            assert codes["values"] == sorted(set(codes["values"]))
            assert 0 not in codes["values"]
    assert rules[0]["action"] == "Ignore"
    assert rules[0]["onPodConditions"][0]["type"] == "DisruptionTarget"
    by_code = {code: rule["action"] for rule in rules[1:] for code in rule["onExitCodes"]["values"]}
    assert by_code == {2: "FailJob", 3: "FailJob", 4: "FailJob", 75: "Ignore"}


@pytest.mark.parametrize("nodes", ["1", "10", "11", "10000"])
@pytest.mark.parametrize("kind", KINDS)
def test_pod_names_have_at_most_63_characters(kind, nodes):
    """Of the longest name that is made or taken, each generated name is a DNS label."""
    workload = TrainingWorkload(words=("./x",), name="x" * 200)
    objects = objects_of(workload, kind=kind, nodes=nodes)
    name = objects[-1]["metadata"]["name"]
    last = f"{name}-{int(nodes) - 1}" if kind == "job" else f"{name}-node-0-{int(nodes) - 1}-abcde"
    assert len(last) == 63
    assert len(name) == longest_name(spec_of(kind=kind, nodes=nodes))


@pytest.mark.parametrize("kind", KINDS)
def test_main_pod_is_found_by_its_name_in_dns(kind):
    """--master-addr is the host name of pod 0 in the subdomain that has a headless service."""
    objects = objects_of(**options_of("everything", kind))
    args = pod_of(objects)["containers"][0]["args"]
    host, _, subdomain = args[args.index("--master-addr") + 1].partition(".")
    if kind == "job":
        service, job = objects[1], objects[2]
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["publishNotReadyAddresses"] is True
        assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
        assert service["metadata"]["name"] == pod_of(objects)["subdomain"] == subdomain
        assert host == f"{job['metadata']['name']}-0"
        return
    spec = objects[1]["spec"]
    network = (spec if kind == "jobset" else spec["template"]["spec"])["network"]
    assert network == {"enableDNSHostnames": True, "subdomain": subdomain, "publishNotReadyAddresses": True}
    assert host == f"{objects[-1]['metadata']['name']}-node-0-0"


def test_trainjob_finds_runtime_and_container():
    """Names and labels by which Kubeflow Trainer finds the runtime, its Job and the container that trains."""
    runtime, train = objects_of(kind="trainjob", nodes="3")
    reference = train["spec"]["runtimeRef"]
    assert reference == {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": "t5-large"}
    assert runtime["metadata"]["name"] == "t5-large"
    assert train["spec"]["trainer"]["numNodes"] == runtime["spec"]["mlPolicy"]["numNodes"] == 3
    (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert (job["name"], job["replicas"]) == ("node", 1)
    assert job["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert pod_of([runtime])["containers"][0]["name"] == "node"
