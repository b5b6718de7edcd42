"""What objects.yaml names: the fields of a job's objects that are more than an option. The spec is a completed one."""

from typing import Any

from dsrun.errors import EXIT_FINDINGS, EXIT_MISSING, EXIT_RESUME, EXIT_USAGE
from dsrun.kubernetes.notation import literal, toleration
from dsrun.kubernetes.options import KubernetesSpec
from dsrun.kubernetes.spec import APP_LABEL, INSTANCE_LABEL, QUEUE_LABEL, SCRATCH_PATH, SHM_PATH
from dsrun.kubernetes.workload import NODE, TrainingWorkload, claim, launch_arguments, mounts
from dsrun.system.variables import CACHE, GPUS, JOB_UID, SECRET

KubernetesObject = dict[str, Any]
VOLCANO = "volcano"
# The Job controller gives it to all pods of a Job; nobody can know it before the Job is there.
_UID_LABEL = "batch.kubernetes.io/controller-uid"
_GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")


def fields_of(spec: KubernetesSpec, workload: TrainingWorkload) -> dict[str, Any]:
    """The names for the expressions of objects.yaml."""
    labels = {APP_LABEL: "dsrun", INSTANCE_LABEL: str(spec.name), **pairs(spec.label)}
    volumes, volume_mounts = _volumes(spec)
    devices = {spec.gpu_resource: str(spec.gpus_per_node)} if spec.gpus_per_node else {}
    return {
        "spec": spec,
        "node": NODE,
        "several": spec.nodes > 1,
        "claim": claim(spec),
        "instance_label": INSTANCE_LABEL,
        "labels": labels,
        "shared_labels": {APP_LABEL: "dsrun", **pairs(spec.label)},
        # Of the object that Kueue looks at.
        "queued_labels": {**labels, QUEUE_LABEL: spec.queue} if spec.queue else labels,
        "annotations": pairs(spec.annotation),
        "gang": gang(spec),
        "resume_codes": [EXIT_RESUME],
        "wrong_codes": sorted((EXIT_USAGE, EXIT_FINDINGS, EXIT_MISSING)),
        "image_pull_secrets": [{"name": name} for name in spec.image_pull_secret],
        "node_selector": pairs(spec.node_selector),
        "tolerations": [_toleration(entry) for entry in spec.toleration],
        "arguments": [literal(word) for word in launch_arguments(spec, workload)],
        "environment": _environment(spec),
        "limits": {**_present({"cpu": spec.cpus, "memory": spec.memory}), **devices, **pairs(spec.rdma)},
        "volumes": volumes,
        "volume_mounts": volume_mounts,
    }


def gang(spec: KubernetesSpec) -> dict[str, str]:
    """The annotation of a Job by which Volcano starts all of its pods or none (getMinMemberFromUpperRes in
    pkg/controllers/podgroup/pg_controller_handler.go of volcano-sh/volcano)."""
    wanted = spec.scheduler == VOLCANO and spec.nodes > 1 and spec.kind != "trainjob"
    return {"scheduling.volcano.sh/group-min-member": str(spec.nodes)} if wanted else {}


def pairs(entries: tuple[str, ...]) -> dict[str, str]:
    """KEY=VALUE entries; of two for one key the last."""
    return {key: value for key, _, value in (each.partition("=") for each in entries)}


def _present(fields: KubernetesObject) -> KubernetesObject:
    """The fields that have something in them."""
    return {key: value for key, value in fields.items() if value not in (None, {})}


def _environment(spec: KubernetesSpec) -> list[KubernetesObject]:
    """The variables: dsrun's own, which the user's replace, then the references to secrets."""
    # One download and one tokenisation for all pods, and for those that replace them; both are behind locks.
    cache = f"{claim(spec).path}/.cache"
    own = {"HF_HOME": f"{cache}/huggingface", CACHE: f"{cache}/dsrun"}
    if not spec.run_as_root:
        # The user ID need not be in the image's /etc/passwd, where Python would look for both.
        own |= {"HOME": SCRATCH_PATH, "USER": "dsrun"}
    # Of other vendors' devices torch may know nothing; a process sees one MIG instance at most.
    if spec.gpu_resource in _GPU_RESOURCES:
        own[GPUS] = str(spec.gpus_per_node)
    if spec.gpus_per_node == 0:
        # Where the container runtime gives GPUs to all pods, one that asked for none would see them.
        own |= {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    by_reference = pairs(spec.secret)
    values = {name: value for name, value in (own | pairs(spec.env)).items() if name not in by_reference}
    found = [{"name": name, "value": literal(value)} for name, value in values.items()]
    uid = {"fieldPath": f"metadata.labels['{_UID_LABEL}']"}
    # By it a pod that is created again knows which run of its folder it belongs to.
    found.append(_from(JOB_UID, "fieldRef", uid))
    if spec.nodes > 1 and SECRET not in by_reference:
        found.append(_from(SECRET, "fieldRef", uid))
    for name, reference in by_reference.items():
        secret, _, key = reference.partition(":")
        found.append(_from(name, "secretKeyRef", {"name": secret, "key": key}))
    return found


def _from(name: str, source: str, reference: KubernetesObject) -> KubernetesObject:
    return {"name": name, "valueFrom": {source: reference}}


def _volumes(spec: KubernetesSpec) -> tuple[list[KubernetesObject], list[KubernetesObject]]:
    """Volumes, and where they are mounted."""
    # The container runtime's own /dev/shm has 64 MiB, which NCCL and loaders of data exceed.
    found = [("shm", SHM_PATH, {"emptyDir": {"medium": "Memory", "sizeLimit": spec.shm}}, False)]
    if not spec.run_as_root:
        found.append(("scratch", SCRATCH_PATH, {"emptyDir": {}}, False))
    for index, each in enumerate(mounts(spec)):
        source = _present({"claimName": each.claim, "readOnly": each.read_only or None})
        found.append(
            (f"data-{index}" if index else "runs", each.path, {"persistentVolumeClaim": source}, each.read_only)
        )
    return (
        [{"name": name, **source} for name, _, source, _ in found],
        [
            _present({"name": name, "mountPath": path, "readOnly": read_only or None})
            for name, path, _, read_only in found
        ],
    )


def _toleration(entry: str) -> KubernetesObject:
    found = toleration(entry)
    assert found is not None  # checked by make_spec
    operator = "Exists" if found.value is None else "Equal"
    return _present({"key": found.key, "operator": operator, "value": found.value, "effect": found.effect})
