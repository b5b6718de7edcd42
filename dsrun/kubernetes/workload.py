"""What runs in the pods, and what follows from it and from the options: name, GPUs, workers, run folder."""

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dsrun import __version__
from dsrun.datafiles import SubjectNames, evaluate, toml_beside
from dsrun.errors import UsageError
from dsrun.kubernetes.notation import LONGEST_LABEL, ClaimMount, mount, quantity, slug
from dsrun.kubernetes.options import KubernetesSpec
from dsrun.refusals import Refusals

CLAIM_PATH = "/runs"
# The replicated job of a JobSet; Kubeflow Trainer looks for this name, and for a container of it
# (pkg/constants/constants.go of kubeflow/trainer).
NODE = "node"
_SHM = "16Gi"
refusal = Refusals(__file__).error


@dataclass(frozen=True, kw_only=True)
class TrainingWorkload:
    """`words` are those of `dsrun launch` after `--`, `name` is that of the model or program.

    Of dsrun's own training: `output` is the run folder if it was named, `on_cpu` whether it is to do without GPUs, and
    `notify` are the targets of messages among its flags."""

    words: tuple[str, ...]
    name: str
    output: str | None = None
    on_cpu: bool = False
    notify: tuple[str, ...] = ()


def completed(spec: KubernetesSpec, workload: TrainingWorkload) -> KubernetesSpec:
    """The spec with what follows from the program filled in. Raises UsageError for what cannot be together."""
    longest = longest_name(spec)
    name = spec.name or slug(workload.name, longest)
    if len(name) > longest:
        raise refusal("refused.name", name=name, most=LONGEST_LABEL, longest=longest)
    for variable in missing_variables(spec, workload.notify):
        raise UsageError(f"--notify: the pods have no {variable}", fix=f"add --secret {variable}=SECRET:KEY")
    gpus = spec.gpus_per_node
    if gpus is None:
        gpus = 0 if spec.nproc or workload.on_cpu else 1
    if spec.nproc and 0 < gpus < spec.nproc:
        raise UsageError(f"--nproc {spec.nproc}: each pod has {gpus} GPUs", fix=f"--nproc {gpus}")
    return replace(
        spec,
        name=name,
        gpus_per_node=gpus,
        nproc=spec.nproc or gpus or 1,
        image=spec.image or f"dsrun:{__version__}",
        shm=spec.shm or _shm(spec.memory),
    )


def missing_variables(spec: KubernetesSpec, targets: tuple[str, ...]) -> list[str]:
    """Variables that the targets of messages are in, and that the pods do not have."""
    if not targets:
        return []
    from dsrun.notifications.notify_target import parse_targets  # few jobs have any

    given = {entry.partition("=")[0] for entry in (*spec.env, *spec.secret)}
    return [name for target in parse_targets(targets) for name in target.variables if name not in given]


def _shm(memory: str | None) -> str:
    """The default size: what is used of it counts against the limit of the container's memory."""
    limit = quantity(memory) if memory else None
    if limit is None or limit / 2 >= (quantity(_SHM) or 0):
        return _SHM
    return str(int(limit / 2))


def longest_name(spec: KubernetesSpec) -> int:
    """Characters of the longest valid name.

    A pod's host name is NAME-INDEX in an Indexed Job (validateJob in pkg/apis/batch/validation/validation.go of
    kubernetes/kubernetes), and JobSet checks NAME-node-0-INDEX with five random characters after it
    (pkg/webhooks/jobset_webhook.go of kubernetes-sigs/jobset)."""
    index = f"-{spec.nodes - 1}"
    return LONGEST_LABEL - len(index if spec.kind == "job" else f"-{NODE}-0{index}-abcde")


def main_pod(spec: KubernetesSpec) -> str:
    """The DNS name of the pod with index 0, which stays the same when the pod is replaced.

    Pods of an Indexed Job have the host name JOB-INDEX, those of a JobSet JOBSET-REPLICATEDJOB-0-INDEX, and their
    subdomain is the headless service of the job's name (GenPodName and GetSubdomain of kubernetes-sigs/jobset; a
    TrainJob's JobSet has the TrainJob's name)."""
    return f"{spec.name}-0.{spec.name}" if spec.kind == "job" else f"{spec.name}-{NODE}-0-0.{spec.name}"


def claim(spec: KubernetesSpec) -> ClaimMount:
    """The claim for run folders."""
    found = mount(spec.claim, CLAIM_PATH)
    assert found is not None  # checked by make_spec
    return found


def mounts(spec: KubernetesSpec) -> list[ClaimMount]:
    """All claims: that for run folders first."""
    return [claim(spec), *filter(None, map(mount, spec.mount))]


def run_folder(spec: KubernetesSpec, workload: TrainingWorkload) -> str:
    """Where the run is written, the same after each restart; a relative name is below the claim's path.

    Raises UsageError for a folder that would be lost with its pod."""
    folder = posixpath.normpath(posixpath.join(claim(spec).path, workload.output or str(spec.name)))
    writable = [each.path for each in mounts(spec) if not each.read_only]
    if not any(folder.startswith(f"{path}/") for path in writable):
        raise refusal("refused.output", output=workload.output, folder=folder, claim=claim(spec).path)
    return folder


def launch_arguments(spec: KubernetesSpec, workload: TrainingWorkload) -> list[str]:
    """The words after `dsrun launch`. Each pod finds its own number in JOB_COMPLETION_INDEX, which the Job sets."""
    words = ["--nodes", str(spec.nodes), "--master-addr", main_pod(spec)] if spec.nodes > 1 else []
    words += ["--nproc", str(spec.nproc), "--output", run_folder(spec, workload)]
    words += ["--max-restarts", str(spec.max_restarts)] if spec.max_restarts is not None else []
    words += ["--elastic", spec.elastic] if spec.elastic else []
    words += ["--rendezvous-timeout", str(spec.rendezvous_timeout)] if spec.rendezvous_timeout is not None else []
    words += [word for target in spec.notify for word in ("--notify", target)]
    return [*words, "--", *workload.words]


def notices(given: KubernetesSpec, spec: KubernetesSpec) -> Iterator[str]:
    """What was chosen for the user, and what has to be there first: `spec` is `given`, completed."""
    content = toml_beside(__file__)
    names = SubjectNames(spec, content["terms"], given=given, folder=claim(spec))
    return (row["text"].format_map(names) for row in content["notices"] if evaluate(row["when"], names))
