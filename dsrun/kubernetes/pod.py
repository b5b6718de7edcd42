"""The pod of a job: one container with `dsrun launch` as its first process. The spec is a completed one.

Fields are those of k8s.io/api/core/v1. Neither probes, service links nor a token of the API: the supervisor watches its
workers itself, and talks to nobody but the other supervisors.
"""

from typing import Any

from dsrun.kubernetes.notation import literal, toleration
from dsrun.kubernetes.options import KubernetesSpec
from dsrun.kubernetes.spec import APP_LABEL, INSTANCE_LABEL, SCRATCH_PATH, SHM_PATH
from dsrun.kubernetes.workload import NODE, TrainingWorkload, claim, launch_arguments, mounts
from dsrun.system.variables import CACHE, GPUS, JOB_UID, SECRET

KubernetesObject = dict[str, Any]
# The Job controller gives it to all pods of a Job; nobody can know it before the Job is there.
_UID_LABEL = "batch.kubernetes.io/controller-uid"
_GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")


def labels(spec: KubernetesSpec) -> dict[str, str]:
    """The labels of the objects and of the pods."""
    return {APP_LABEL: "dsrun", INSTANCE_LABEL: str(spec.name), **pairs(spec.label)}


def pairs(entries: tuple[str, ...]) -> dict[str, str]:
    """KEY=VALUE entries; of two for one key the last."""
    return {key: value for key, _, value in (each.partition("=") for each in entries)}


def present(fields: KubernetesObject) -> KubernetesObject:
    """The fields that have something in them; 0 and False have."""
    return {key: value for key, value in fields.items() if value not in (None, {}, [], ())}


def pod_template(spec: KubernetesSpec, workload: TrainingWorkload) -> KubernetesObject:
    metadata = present({"labels": labels(spec), "annotations": pairs(spec.annotation)})
    volumes, volume_mounts = _volumes(spec)
    pod = {
        # What a podFailurePolicy requires (Kubernetes, Jobs, Pod failure policy).
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": spec.grace,
        "automountServiceAccountToken": False,
        # Or a Service called master would set MASTER_PORT to tcp://… in all pods of its namespace (Kubernetes,
        # Services, Discovering services).
        "enableServiceLinks": False,
        # In a Job; JobSet sets its own.
        "subdomain": spec.name if spec.kind == "job" and spec.nodes > 1 else None,
        "schedulerName": spec.scheduler,
        "priorityClassName": spec.priority_class,
        "serviceAccountName": spec.service_account,
        "imagePullSecrets": [{"name": name} for name in spec.image_pull_secret],
        "nodeSelector": pairs(spec.node_selector),
        "tolerations": [_toleration(entry) for entry in spec.toleration],
        "affinity": _apart(spec) if spec.spread else None,
        "securityContext": _pod_security(spec),
        "containers": [_container(spec, workload, volume_mounts)],
        "volumes": volumes,
    }
    return {"metadata": metadata, "spec": present(pod)}


def _container(
    spec: KubernetesSpec, workload: TrainingWorkload, volume_mounts: list[KubernetesObject]
) -> KubernetesObject:
    return present(
        {
            "name": NODE,
            "image": spec.image,
            "imagePullPolicy": spec.image_pull_policy,
            "workingDir": spec.workdir,
            "command": ["dsrun", "launch"],
            "args": [literal(word) for word in launch_arguments(spec, workload)],
            "env": _environment(spec),
            "resources": _resources(spec),
            "securityContext": _container_security(spec),
            "volumeMounts": volume_mounts,
        }
    )


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


def _resources(spec: KubernetesSpec) -> KubernetesObject:
    """Requests equal to the limits, so that the pod is among the last to be evicted; devices know limits only."""
    amounts = present({"cpu": spec.cpus, "memory": spec.memory})
    devices = {spec.gpu_resource: str(spec.gpus_per_node)} if spec.gpus_per_node else {}
    return present({"requests": amounts, "limits": {**amounts, **devices, **pairs(spec.rdma)}})


def _pod_security(spec: KubernetesSpec) -> KubernetesObject:
    """What the restricted pod security standard asks for; files on volumes belong to the group."""
    own = {} if spec.run_as_root else {"runAsNonRoot": True, "runAsUser": spec.user, "runAsGroup": spec.user}
    # Without OnRootMismatch each start would walk through all files of the claim.
    files = {} if spec.run_as_root else {"fsGroup": spec.user, "fsGroupChangePolicy": "OnRootMismatch"}
    return {**own, **files, "seccompProfile": {"type": "RuntimeDefault"}}


def _container_security(spec: KubernetesSpec) -> KubernetesObject:
    capabilities: KubernetesObject = {} if spec.run_as_root else {"drop": ["ALL"]}
    if spec.rdma:
        # Memory for RDMA must not be swapped out; the limit for locking it is often 64 KiB.
        capabilities["add"] = ["IPC_LOCK"]
    return present({"allowPrivilegeEscalation": False, "capabilities": capabilities})


def _volumes(spec: KubernetesSpec) -> tuple[list[KubernetesObject], list[KubernetesObject]]:
    """Volumes, and where they are mounted."""
    # The container runtime's own /dev/shm has 64 MiB, which NCCL and loaders of data exceed.
    found = [("shm", SHM_PATH, {"emptyDir": {"medium": "Memory", "sizeLimit": spec.shm}}, False)]
    if not spec.run_as_root:
        found.append(("scratch", SCRATCH_PATH, {"emptyDir": {}}, False))
    for index, each in enumerate(mounts(spec)):
        source = present({"claimName": each.claim, "readOnly": each.read_only or None})
        found.append(
            (f"data-{index}" if index else "runs", each.path, {"persistentVolumeClaim": source}, each.read_only)
        )
    return (
        [{"name": name, **source} for name, _, source, _ in found],
        [
            present({"name": name, "mountPath": path, "readOnly": read_only or None})
            for name, path, _, read_only in found
        ],
    )


def _toleration(entry: str) -> KubernetesObject:
    found = toleration(entry)
    assert found is not None  # checked by make_spec
    operator = "Exists" if found.value is None else "Equal"
    return {
        "key": found.key,
        "operator": operator,
        **({} if found.value is None else {"value": found.value}),
        **present({"effect": found.effect}),
    }


def _apart(spec: KubernetesSpec) -> KubernetesObject:
    term = {"labelSelector": {"matchLabels": {INSTANCE_LABEL: spec.name}}, "topologyKey": "kubernetes.io/hostname"}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
