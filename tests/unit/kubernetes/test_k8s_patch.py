"""Patches of a job's objects: what the documents of the page and of the examples come to, and what is refused."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from dsrun.errors import UsageError
from dsrun.kubernetes.options import KubernetesSpec
from dsrun.kubernetes.patch import apply_patches
from dsrun.kubernetes.workload import completed
from tests.unit.kubernetes.jobs import KINDS, SCRIPT, check_object, container_of, job_of, objects_of, pod_of, spec_of

DOCS = Path(__file__).parents[3] / "docs"
BLOCKS = re.findall(r"^```yaml\n(.*?)^```$", (DOCS / "kubernetes.md").read_text(), re.MULTILINE | re.DOTALL)
PATCHES = [block for block in BLOCKS if not block.startswith("train:")]
EXAMPLES = sorted((DOCS / "examples" / "kubernetes").glob("*.yaml"))
NEEDED = {"nodes": "2", "gpus_per_node": "8", "memory": "800Gi"}


def patched(patch: str, cwd: Path = Path(), oldest: str | None = None, **options) -> tuple[list[dict], list[str]]:
    """The objects of a job after a patch, all of them valid, and the notes."""
    options = {**NEEDED, **options}
    objects = objects_of(SCRIPT, **options)
    spec: KubernetesSpec = completed(spec_of(**options, patch=[patch]), SCRIPT)
    notes = apply_patches(objects, spec, cwd)
    for each in objects:
        check_object(each, oldest)
    return objects, notes


def refusal(patch: str, **options) -> str:
    with pytest.raises(UsageError) as caught:
        patched(patch, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("at", range(len(PATCHES)))
def test_patches_of_the_page_apply(tmp_path, at):
    """Each changes the job, and the result is what the API takes."""
    (tmp_path / "patch.yaml").write_text(PATCHES[at])
    objects, notes = patched("patch.yaml", tmp_path)
    assert objects != objects_of(SCRIPT, **NEEDED)
    assert notes == []


def test_page_has_patches_for_what_has_no_option():
    text = "".join(PATCHES)
    assert len(PATCHES) >= 5
    for field in ("initContainers", "ephemeral", "secret:", "envFrom", "nodeAffinity", "kind: Service", "kind: Job"):
        assert field in text


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_fit_their_schemas(path):
    """Of the command that the file names; each says what to fill in, and where the facts are from."""
    text = path.read_text()
    assert re.search(r"^# Fill in: ", text, re.MULTILINE)
    assert re.search(r"^# Sources?: ", text, re.MULTILINE)
    line = re.search(r"^# (dsrun render-k8s .*)$", text, re.MULTILINE)
    if line is None:
        assert kubernetes_validate.validate(yaml.safe_load(text), "1.34", strict=True) == "1.34"
        return
    words = shlex.split(line[1])
    assert words[words.index("--patch") + 1] == path.name
    options = {"run_as_root": str("--run-as-root" in words)}
    oldest = "1.34" if "resourceClaims" in text else None
    for kind in KINDS:
        objects, notes = patched(path.name, path.parent, oldest, kind=kind, **options)
        before = objects_of(SCRIPT, **NEEDED, kind=kind, **options)
        assert job_of(objects)["template"] != job_of(before)["template"]
        assert notes == []


def test_every_kind_is_patched():
    patch = "{kind: Pod, metadata: {annotations: {a: b}}, spec: {runtimeClassName: kata}}"
    for kind in KINDS:
        objects, _ = patched(patch, kind=kind)
        assert job_of(objects)["template"]["metadata"]["annotations"] == {"a": "b"}
        assert pod_of(objects)["runtimeClassName"] == "kata"
        objects, _ = patched("{kind: Job, spec: {suspend: true}}", kind=kind)
        assert job_of(objects)["suspend"] is True
    objects, _ = patched("{kind: Service, apiVersion: v1, metadata: {annotations: {a: b}}}")
    assert objects[0]["metadata"]["annotations"] == {"a": "b"}
    objects, _ = patched("{kind: PersistentVolumeClaim, spec: {volumeMode: Filesystem}}", claim_size="1Gi")
    assert objects[0]["spec"]["volumeMode"] == "Filesystem"


def test_values_that_stay_are_no_change():
    """A patch may repeat what was rendered."""
    objects, _ = patched("{kind: Job, metadata: {name: my-train}, spec: {completions: 2, completionMode: Indexed}}")
    assert job_of(objects)["completions"] == 2
    patched("{kind: Pod, spec: {containers: [{name: node, resources: {limits: {nvidia.com/gpu: 8}}}]}}")


@pytest.mark.parametrize("patch", ["", "{kind: Pod, spec: {containers: [{name: nosuch, $patch: delete}]}}"])
def test_patch_that_changes_nothing_is_noted(tmp_path, patch):
    """As one that removes a container by another name."""
    (tmp_path / "patch.yaml").write_text(patch)
    assert len(patched("patch.yaml", tmp_path)[1]) == 1
    (tmp_path / "patch.yaml").write_text("{kind: Pod, spec: {priority: 5}}")
    assert patched("patch.yaml", tmp_path)[1] == []


def test_second_container_is_noted():
    _, notes = patched("{kind: Pod, spec: {containers: [{name: side, image: x}]}}")
    assert len(notes) == 1
    assert "side" in notes[0]
    assert patched("{kind: Pod, spec: {initContainers: [{name: side, image: x, restartPolicy: Always}]}}")[1] == []


@pytest.mark.parametrize(
    ("patch", "field"),
    [
        ("{kind: Job, spec: {completions: 3}}", "Job.spec.completions"),
        ("{kind: Job, spec: {parallelism: 1}}", "Job.spec.parallelism"),
        ("{kind: Job, spec: {completionMode: NonIndexed}}", "Job.spec.completionMode"),
        ("{kind: Job, spec: {podReplacementPolicy: TerminatingOrFailed}}", "Job.spec.podReplacementPolicy"),
        ("{kind: Job, spec: {podFailurePolicy: null}}", "Job.spec.podFailurePolicy"),
        ("{kind: Job, spec: {backoffLimitPerIndex: 9}}", "Job.spec.backoffLimitPerIndex"),
        ("{kind: Job, spec: {manualSelector: true}}", "Job.spec.manualSelector"),
        ("{kind: Job, spec: null}", "Job.spec.completions"),
        ("{kind: Job, metadata: {name: other}}", "Job.metadata.name"),
        ("{kind: Job, spec: {template: {spec: {restartPolicy: OnFailure}}}}", "Pod.spec.restartPolicy"),
        ("{kind: Pod, spec: {restartPolicy: OnFailure}}", "Pod.spec.restartPolicy"),
        ("{kind: Pod, spec: {subdomain: null}}", "Pod.spec.subdomain"),
        ("{kind: Pod, spec: {hostname: x}}", "Pod.spec.hostname"),
        ("{kind: Pod, spec: {hostNetwork: true}}", "Pod.spec.hostNetwork"),
        ("{kind: Pod, spec: {enableServiceLinks: true}}", "Pod.spec.enableServiceLinks"),
        ("{kind: Pod, metadata: {labels: {app.kubernetes.io/instance: x}}}", "app.kubernetes.io/instance"),
        ("{kind: Pod, spec: {containers: [{name: node, command: [x]}]}}", "containers[node].command"),
        ("{kind: Pod, spec: {containers: [{name: node, args: null}]}}", "containers[node].args"),
        ("{kind: Pod, spec: {containers: [{name: node, restartPolicy: Always}]}}", "containers[node].restartPolicy"),
        ("{kind: Pod, spec: {containers: [{name: node, $patch: delete}]}}", "containers[node]"),
        ("{kind: Pod, spec: {containers: [{$patch: replace}, {name: x, image: y}]}}", "containers[node]"),
        ("{kind: Pod, spec: {containers: [{name: node, env: [{name: RANK, value: '0'}]}]}}", "RANK"),
        (
            "{kind: Pod, spec: {containers: [{name: node, env: [{name: DSRUN_JOB_UID, $patch: delete}]}]}}",
            "DSRUN_JOB_UID",
        ),
        ("{kind: Pod, spec: {containers: [{name: node, env: [{name: API_KEY, value: jkl}]}]}}", "API_KEY"),
        ("{kind: Pod, spec: {initContainers: [{name: i, image: x, env: [{name: API_KEY, value: jkl}]}]}}", "API_KEY"),
        ("{kind: Pod, spec: {volumes: [{name: scratch, hostPath: {path: /x}}]}}", "volumes[scratch]"),
        ("{kind: Pod, spec: {volumes: [{name: runs, $retainKeys: [name, emptyDir], emptyDir: {}}]}}", "/runs"),
        ("{kind: Pod, spec: {volumes: [{name: runs, $patch: delete}]}}", "no volume is called runs"),
        (
            "{kind: Pod, spec: {containers: [{name: node, volumeMounts: [{mountPath: /runs, $patch: delete}]}]}}",
            "/runs",
        ),
        ("{kind: Pod, spec: {containers: [{name: node, resources: {claims: [{name: x}]}}]}}", "no claim is called x"),
        ("{kind: Pod, spec: {initContainers: [{name: i}]}}", "the container i has no image"),
        (
            "{kind: Pod, spec: {containers: [{name: node, resources: {limits: {nvidia.com/gpu: 3}}}]}}",
            "containers[node].resources.limits",
        ),
        ("{kind: Job, $patch: delete}", "Job.$patch"),
        ("{kind: Pod, $patch: replace, spec: {}}", "Pod.$patch"),
        ("{kind: Service, metadata: {name: other}}", "Service.metadata.name"),
        ("{kind: Service, spec: {clusterIP: null}}", "Service.spec.clusterIP"),
        ("{kind: Service, spec: {publishNotReadyAddresses: false}}", "Service.spec.publishNotReadyAddresses"),
        ("{kind: Service, spec: {selector: {a: b}}}", "Service.spec.selector"),
        ("{kind: PersistentVolumeClaim, metadata: {labels: {a: b}}}", "--claim-size"),
        ("{kind: Deployment, spec: {}}", "Deployment"),
        ("{spec: {}}", "without a kind"),
        ("{kind: Job, apiVersion: batch/v1beta1}", "apiVersion batch/v1"),
        ("{kind: Pod, kind: Job}", "kind is given twice"),
        ("{kind: Pod", "not YAML"),
    ],
)
def test_what_dsrun_needs_stays(patch, field):
    assert field in refusal(patch)


def test_service_is_patched_where_there_is_one():
    patch = "{kind: Service, metadata: {annotations: {a: b}}}"
    assert "no Service is rendered" in refusal(patch, nodes="1")
    assert "no Service is rendered" in refusal(patch, kind="jobset")


def test_run_may_be_on_a_shared_folder():
    patch = "{kind: Pod, spec: {volumes: [{name: runs, $retainKeys: [name, hostPath], hostPath: {path: /lustre}}]}}"
    volumes = pod_of(patched(patch)[0])["volumes"]
    assert {"name": "runs", "hostPath": {"path": "/lustre"}} in volumes


def test_later_patch_sees_earlier_one(tmp_path):
    (tmp_path / "one.yaml").write_text(
        "kind: Pod\nspec: {nodeSelector: {a: b}}\n---\n---\nkind: Job\nspec: {suspend: true}\n"
    )
    objects = objects_of(SCRIPT, **NEEDED)
    spec = spec_of(**NEEDED, patch=["one.yaml", "{kind: Pod, spec: {nodeSelector: {c: d}}}"])
    apply_patches(objects, completed(spec, SCRIPT), tmp_path)
    assert pod_of(objects)["nodeSelector"] == {"a": "b", "c": "d"}
    assert job_of(objects)["suspend"] is True
    assert container_of(objects)["name"] == "node"
