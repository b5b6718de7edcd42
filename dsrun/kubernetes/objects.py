"""KubernetesSpec + TrainingWorkload -> the objects of a job, and their YAML. Pure.

- `job`: a headless Service and an Indexed Job (batch/v1; backoffLimitPerIndex needs Kubernetes 1.29).
- `jobset`: a JobSet of one replicated Job, which makes the Service itself (api/jobset/v1alpha2 of
  kubernetes-sigs/jobset).
- `trainjob`: a TrainingRuntime with that JobSet as its template, and a TrainJob that names it (pkg/apis/trainer of
  kubeflow/trainer). Without a policy for a framework: that for torch would set variables of torchrun, which the pods
  do not run.
"""

import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dsrun import __version__
from dsrun.errors import EXIT_FINDINGS, EXIT_MISSING, EXIT_RESUME, EXIT_USAGE, UsageError
from dsrun.kubernetes.options import KubernetesSpec
from dsrun.kubernetes.pod import KubernetesObject, labels, pairs, pod_template, present
from dsrun.kubernetes.spec import APP_LABEL, QUEUE_LABEL
from dsrun.kubernetes.workload import NODE, TrainingWorkload, claim
from dsrun.system.terminal.display import printable
from dsrun.system.terminal.secrets import masked

if TYPE_CHECKING:
    import yaml

TRAINER = "trainer.kubeflow.org"
VOLCANO = "volcano"
# By it Kubeflow Trainer finds the Job that trains (LabelTrainJobAncestor in pkg/constants/constants.go).
_ANCESTOR = f"{TRAINER}/trainjob-ancestor-step"


def render_objects(spec: KubernetesSpec, workload: TrainingWorkload) -> list[KubernetesObject]:
    """The objects in the order in which they are to be created. The spec is a completed one."""
    job = _job_spec(spec, workload)
    objects = [_claim(spec)] if spec.claim_size else []
    if spec.kind == "job":
        objects += [_service(spec)] if spec.nodes > 1 else []
        return [*objects, _object(spec, "batch/v1", "Job", job)]
    jobs = _jobset_spec(spec, job)
    if spec.kind == "jobset":
        return [*objects, _object(spec, "jobset.x-k8s.io/v1alpha2", "JobSet", jobs)]
    return [*objects, *_train_job(spec, jobs)]


def _object(
    spec: KubernetesSpec, api: str, kind: str, content: KubernetesObject, *, queued: bool = True
) -> KubernetesObject:
    """An object of the job's name; `queued` is the one that Kueue looks at."""
    queue = {QUEUE_LABEL: spec.queue} if queued and spec.queue else {}
    metadata = {
        "name": spec.name,
        "namespace": spec.namespace,
        "labels": {**labels(spec), **queue},
        "annotations": {**gang(spec), **pairs(spec.annotation)} if queued else None,
    }
    return {"apiVersion": api, "kind": kind, "metadata": present(metadata), "spec": content}


def gang(spec: KubernetesSpec) -> dict[str, str]:
    """The annotation of a Job by which Volcano starts all of its pods or none (getMinMemberFromUpperRes in
    pkg/controllers/podgroup/pg_controller_handler.go of volcano-sh/volcano)."""
    wanted = spec.scheduler == VOLCANO and spec.nodes > 1 and spec.kind != "trainjob"
    return {"scheduling.volcano.sh/group-min-member": str(spec.nodes)} if wanted else {}


def _claim(spec: KubernetesSpec) -> KubernetesObject:
    found = _object(spec, "v1", "PersistentVolumeClaim", {}, queued=False)
    found["metadata"]["name"] = claim(spec).claim
    # Few kinds of storage let several machines write; one pod does without.
    access = "ReadWriteMany" if spec.nodes > 1 else "ReadWriteOnce"
    size = {"requests": {"storage": spec.claim_size}}
    found["spec"] = present({"accessModes": [access], "storageClassName": spec.storage_class, "resources": size})
    # It outlives the job, and other jobs use it.
    found["metadata"]["labels"] = {APP_LABEL: "dsrun", **pairs(spec.label)}
    return found


def _service(spec: KubernetesSpec) -> KubernetesObject:
    """The names of the pods in DNS; also of those that are not ready yet, for they are waiting for each other."""
    content = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"batch.kubernetes.io/job-name": spec.name},
    }
    return _object(spec, "v1", "Service", content, queued=False)


def _job_spec(spec: KubernetesSpec, workload: TrainingWorkload) -> KubernetesObject:
    """One pod per index, each replaced under its index."""
    return present(
        {
            "completionMode": "Indexed",
            "completions": spec.nodes,
            "parallelism": spec.nodes,
            "backoffLimitPerIndex": spec.max_pod_failures,
            # Without one of its pods the job cannot go on.
            "maxFailedIndexes": 0,
            # A pod is replaced when it has ended, not when it is being ended: two would have one number. With a
            # podFailurePolicy the API takes nothing else.
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": _failure_rules()},
            "activeDeadlineSeconds": spec.deadline,
            "ttlSecondsAfterFinished": spec.ttl if spec.kind == "job" else None,
            "template": pod_template(spec, workload),
        }
    )


def _failure_rules() -> list[KubernetesObject]:
    """What the end of a pod means; what no rule names counts as one of --max-pod-failures."""
    wrong = sorted((EXIT_USAGE, EXIT_FINDINGS, EXIT_MISSING))
    return [
        # Preempted, evicted, or its machine lost or drained.
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        # Saved and to be started again: another pod was evicted.
        {"action": "Ignore", "onExitCodes": _exit_codes([EXIT_RESUME])},
        # Wrong flags, or something missing: it would be so again.
        {"action": "FailJob", "onExitCodes": _exit_codes(wrong)},
    ]


def _exit_codes(codes: list[int]) -> KubernetesObject:
    return {"containerName": NODE, "operator": "In", "values": codes}


def _jobset_spec(spec: KubernetesSpec, job: KubernetesObject) -> KubernetesObject:
    # The owner of the pods is this Job.
    metadata = {"annotations": gang(spec)} if spec.kind == "jobset" else {"labels": {_ANCESTOR: "trainer"}}
    network = {"enableDNSHostnames": True, "subdomain": spec.name, "publishNotReadyAddresses": True}
    return present(
        {
            "network": network,
            "replicatedJobs": [
                {"name": NODE, "replicas": 1, "template": present({"metadata": present(metadata), "spec": job})}
            ],
            "ttlSecondsAfterFinished": spec.ttl if spec.kind == "jobset" else None,
        }
    )


def _train_job(spec: KubernetesSpec, jobs: KubernetesObject) -> list[KubernetesObject]:
    # Kubeflow Trainer makes the PodGroup for Volcano itself (pkg/runtime/framework/plugins/volcano).
    group: KubernetesObject = {"podGroupPolicy": {"volcano": {}}} if spec.scheduler == VOLCANO else {}
    runtime = {"mlPolicy": {"numNodes": spec.nodes}, **group, "template": {"spec": jobs}}
    train = {
        "runtimeRef": {"apiGroup": TRAINER, "kind": "TrainingRuntime", "name": spec.name},
        "trainer": {"numNodes": spec.nodes},
    }
    return [
        _object(spec, f"{TRAINER}/v1alpha1", "TrainingRuntime", runtime, queued=False),
        _object(spec, f"{TRAINER}/v1alpha1", "TrainJob", train),
    ]


# Words that are texts also for readers of YAML who take y for true, 1e3 for a number and 010 for an octal one, as the
# library of Kubernetes does (sigs.k8s.io/yaml). All others are quoted.
_PLAIN = re.compile(r"(--)?[A-Za-z/][A-Za-z0-9_./@+-]*(:[A-Za-z0-9_./@+-]+)*")
_NO_TEXT = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"})


def manifest(objects: Sequence[KubernetesObject], command: Sequence[str] = ()) -> str:
    """The YAML of the objects. `command` rendered it, and is named in the first line. Raises UsageError for a text that
    YAML cannot hold."""
    import yaml

    origin = f": {printable(shlex.join(_masked(command)))}" if command else ""
    text = yaml.dump_all(
        objects, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=10**9, explicit_start=True
    )
    return f"# Rendered by dsrun {__version__}{origin}\n{text}"


def _masked(command: Sequence[str]) -> list[str]:
    """The command without tokens; the values of --secret are references and stay."""
    own = list(command)[: command.index("--")] if "--" in command else list(command)
    shown = masked(command)
    for at, word in enumerate(own):
        if word.startswith("--secret=") or (at and own[at - 1] == "--secret"):
            shown[at] = word
    return shown


def _dumper() -> "type[yaml.SafeDumper]":
    import yaml

    class Dumper(yaml.SafeDumper):
        """Each object in full, and no text that could be read as anything else."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
            super().increase_indent(flow, False)

    def text(dumper: "yaml.SafeDumper", value: str) -> "yaml.ScalarNode":
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise UsageError(f"{value[:40]!r} is not UTF-8, as the texts of a manifest are") from None
        plain = _PLAIN.fullmatch(value) and value.lower() not in _NO_TEXT
        # JSON is easier to read between single quotes; what these cannot hold PyYAML puts between double ones.
        quotes = "'" if '"' in value else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else quotes)

    Dumper.add_representer(str, text)
    return Dumper
