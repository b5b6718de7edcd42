"""Strategic merges come to what kubectl makes of them.

`UPDATE_GOLDEN=1 pytest tests/unit/kubernetes/test_k8s_strategic_merge.py` records it anew, where kubectl is installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsrun.errors import UsageError
from dsrun.kubernetes.patch import merged

ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "tests" / "data" / "strategic_merge.yaml"
HEAD = "# What `kubectl patch --local --type strategic` of Kubernetes 1.32 makes of these Jobs.\n"
POD = {
    "nodeSelector": {"a": "b", "c": "d"},
    "tolerations": [{"key": "old", "operator": "Exists"}],
    "containers": [
        {
            "name": "node",
            "image": "dsrun",
            "args": ["--nodes", "2"],
            "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}, {"name": "C", "value": "3"}],
            "resources": {"limits": {"cpu": "1", "nvidia.com/gpu": "8"}},
            "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "runs", "mountPath": "/runs"}],
        }
    ],
    "restartPolicy": "Never",
    "securityContext": {"fsGroup": 1000, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
    "volumes": [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
        {"name": "runs", "emptyDir": {}},
    ],
}


def node(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "node", **fields}]}


CASES: dict[str, dict[str, Any]] = {
    "field is added, and one deleted": {"runtimeClassName": "kata", "nodeSelector": {"a": None, "e": "f"}},
    "list without a key is replaced": {"tolerations": [{"key": "new", "effect": "NoSchedule"}], **node(args=["x"])},
    "container is merged by its name": node(image="other", resources={"limits": {"cpu": None, "rdma/ib": "1"}}),
    "new container comes first": {"containers": [{"name": "side", "image": "x"}]},
    "order of the patch": {"containers": [{"name": "node", "tty": True}, {"name": "side", "image": "x"}]},
    "variables are merged by name": node(env=[{"name": "N", "value": "0"}, {"name": "B", "value": "9"}]),
    "order of variables": node(
        env=[{"name": "C", "value": "9"}, {"name": "A", "value": "9"}, {"name": "N", "value": "0"}]
    ),
    "variable is deleted": node(env=[{"name": "B", "$patch": "delete"}, {"name": "N", "value": "0"}]),
    "list is replaced on request": node(env=[{"name": "N", "value": "0"}, {"$patch": "replace"}]),
    "value of a variable becomes a reference": node(
        env=[{"name": "A", "value": None, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    ),
    "mounts are merged by their path": node(
        volumeMounts=[{"mountPath": "/runs", "name": "runs", "readOnly": True}, {"mountPath": "/x", "name": "shm"}]
    ),
    "mapping is replaced on request": {"securityContext": {"$patch": "replace", "runAsUser": 0}},
    "mapping is emptied": node(resources={"$patch": "delete"}),
    "keys are retained": {"securityContext": {"$retainKeys": ["runAsUser", "fsGroup"], "fsGroup": 5}},
    "volume of another kind": {
        "volumes": [
            {"name": "runs", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/lustre"}},
            {"name": "shm", "emptyDir": {"sizeLimit": "64Gi"}},
        ]
    },
    "init containers": {"initContainers": [{"name": "b", "image": "x"}, {"name": "a", "image": "x"}]},
}


def job(pod: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": "x", "finalizers": ["example.org/a", "example.org/b"]}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": {"spec": pod}}}


def patch_of(name: str) -> dict[str, Any]:
    metadata = {"finalizers": ["example.org/c", "example.org/b"]} if name == "init containers" else {}
    return {"metadata": metadata, "spec": {"template": {"spec": CASES[name]}}}


def by_kubectl(name: str, file: Path) -> Any:
    file.write_text(json.dumps(job(POD)))
    words = ["kubectl", "patch", "--local", "--type", "strategic", "-f", str(file), "-p", json.dumps(patch_of(name))]
    done = subprocess.run([*words, "-o", "json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> dict[str, Any]:
    if os.environ.get("UPDATE_GOLDEN"):
        file = tmp_path_factory.mktemp("kubectl") / "job.json"
        found = {name: by_kubectl(name, file)["spec"]["template"]["spec"] for name in CASES}
        found["finalizers"] = by_kubectl("init containers", file)["metadata"]["finalizers"]
        RECORDED.write_text(HEAD + yaml.safe_dump(found, sort_keys=True))
    return dict(yaml.safe_load(RECORDED.read_text()))


@pytest.mark.parametrize("name", CASES)
def test_merge_is_that_of_kubectl(name, recorded):
    before = job(POD)
    after = merged(before, patch_of(name), "Job", "Job")
    assert after["spec"]["template"]["spec"] == recorded[name]
    assert before == job(POD)


def test_list_of_texts_is_that_of_kubectl(recorded):
    after = merged(job(POD), patch_of("init containers"), "Job", "Job")
    assert after["metadata"]["finalizers"] == recorded["finalizers"]


@pytest.mark.parametrize(
    ("pod", "field"),
    [
        (
            {"initContainer": []},
            "Pod: Kubernetes 1.37.0 has no field initContainer here (did you mean initContainers?)",
        ),
        (node(envs=[]), "containers[node]: Kubernetes 1.37.0 has no field envs"),
        (node(env=[{"name": "A", "value": 1}]), "Pod.containers[node].env[A].value: 1 is not a text (quote it)"),
        (node(env=[{"name": "A", "value": True}]), "True is not a text (quote it)"),
        (node(args=[["x"]]), "Pod.containers[node].args[0]: ['x'] is not a text"),
        (node(ports=[{"containerPort": "80"}]), "containerPort: '80' is not a whole number"),
        (node(ports=[{"containerPort": True}]), "containerPort: True is not a whole number"),
        (node(tty="yes"), "Pod.containers[node].tty: 'yes' is not true or false"),
        (node(resources={"limits": {"cpu": [1]}}), "limits.cpu: [1] is not an amount"),
        ({"containers": {"name": "node"}}, "Pod.containers: {'name': 'node'} is not a list"),
        ({"containers": ["node"]}, "Pod.containers[0]: name is missing"),
        ({"containers": [{"image": "x"}]}, "Pod.containers[0]: name is missing"),
        ({"containers": [{"name": ["x"]}]}, "Pod.containers[0]: name is missing"),
        ({"securityContext": []}, "Pod.securityContext: [] is not a mapping"),
        ({"tolerations": [{"keys": "x"}]}, "Pod.tolerations[0]: Kubernetes 1.37.0 has no field keys"),
        (node(volumeMounts=[{"mountPath": "/x"}]), "Pod.containers[node].volumeMounts[/x]: name is missing"),
        (node(env=[{"name": "A"}, {"name": "A"}]), "name A is given twice"),
        (
            node(env=[{"name": "A", "$patch": "replace", "value": "x"}]),
            "replace stands alone (write - $patch: replace)",
        ),
        ({"$patch": "remove"}, "Pod.$patch: 'remove' is not one of replace, delete"),
        ({"$setElementOrder/containers": [{"name": "node"}]}, "$patch and $retainKeys"),
        ({"$deleteFromPrimitiveList/x": []}, "$patch and $retainKeys"),
        ({"securityContext": {"$retainKeys": ["fsGroup"], "runAsUser": 1}}, "name them all"),
        ({1: "x"}, "has no field 1"),
    ],
)
def test_what_kubernetes_does_not_take_is_named(pod, field):
    with pytest.raises(UsageError) as caught:
        merged(POD, pod, "PodSpec", "Pod")
    assert field in str(caught.value)


def test_fields_are_those_of_newest_schemas(tmp_path, monkeypatch):
    """`python tools/harvest_kubernetes_api.py` writes them; the check notices a difference."""
    spec = importlib.util.spec_from_file_location(
        "harvest_kubernetes_api", ROOT / "tools" / "harvest_kubernetes_api.py"
    )
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.main(["--check"]) == 0
    monkeypatch.setattr(tool, "TARGET", tmp_path / "api.json")
    assert tool.main(["--check"]) == 3
    assert tool.main([]) == 0
    assert tool.main(["--check"]) == 0
