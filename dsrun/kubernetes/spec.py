"""KubernetesSpec from what was given on the command line and in run.yaml, checked without a cluster."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import chain

from dsrun.errors import UsageError
from dsrun.kubernetes.notation import (
    EFFECTS,
    NAME,
    is_key,
    is_label_value,
    is_namespace,
    is_subdomain,
    mount,
    quantity,
    toleration,
)
from dsrun.kubernetes.options import KubernetesSpec
from dsrun.kubernetes.workload import CLAIM_PATH, missing_variables, mounts
from dsrun.options import OptionValue, filled, section_value
from dsrun.system.terminal.secrets import holds_secret, is_secret_variable, without_tokens

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
APP_LABEL, INSTANCE_LABEL = "app.kubernetes.io/name", "app.kubernetes.io/instance"
OWN_LABELS = (APP_LABEL, INSTANCE_LABEL, QUEUE_LABEL)
# Of these the controllers give pods their own, and the API takes no others.
_CONTROLLERS_LABELS = re.compile(
    r"(batch\.kubernetes\.io|jobset\.sigs\.k8s\.io|trainer\.kubeflow\.org)/.+|job-name|controller-uid"
)
# TotalAnnotationSizeLimitB of k8s.io/apimachinery.
_ANNOTATION_BYTES = 256 * 1024
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_KEY = re.compile(r"(?!\.$|\.\.)[-._A-Za-z0-9]{1,253}")
# By these `dsrun launch` would take a pod for one of another launcher, or for a worker.
_RESERVED_VARIABLES = re.compile(
    r"JOB_COMPLETION_INDEX|KUBERNETES_SERVICE_HOST|PET_\w+|RANK|LOCAL_RANK|WORLD_SIZE|NODE_RANK|MASTER_ADDR|MASTER_PORT|DSRUN_(OUTPUT|FAILURES|SAVE_ON|JOB_UID)"
)
# Mounted by the pods themselves.
SHM_PATH, SCRATCH_PATH = "/dev/shm", "/scratch"
# Field, what is wrong with its value, what to write instead.
PodProblem = tuple[str, str, str]


def run_file_value(key: str, values: Iterable[str], where: str) -> OptionValue:
    """The value of a key in run.yaml's `k8s:` section. Raises UsageError for an unknown one, with the nearest."""
    return section_value(KubernetesSpec, "k8s", key, values, where, page="docs/kubernetes.md")


def make_spec(*places: Iterable[OptionValue]) -> KubernetesSpec:
    """The spec of what was given, the strongest place first; lists of one place replace those of a weaker one.

    Raises UsageError for a value that its option does not take, and for options that contradict each other.
    """
    spec, where = filled(KubernetesSpec, places)
    checks = (_tokens, _names, _resources, _labels, _container, _variables, _storage)
    found = chain.from_iterable(check(spec) for check in checks)
    for name, message, fix in found:
        raise UsageError(f"{where[name]}: {message}", fix=fix or None)
    return spec


def _tokens(spec: KubernetesSpec) -> Iterator[PodProblem]:
    """First of all, as what is wrong with a value names the value. Those left out are never named."""
    for each in fields(spec):
        if each.name not in ("env", "secret", "notify") and holds_secret(getattr(spec, each.name)):
            yield each.name, "a token or password is in it, and everybody can read a job's manifest", "remove it"


def _names(spec: KubernetesSpec) -> Iterator[PodProblem]:
    if spec.name is not None and not NAME.fullmatch(spec.name):
        yield "name", f"{spec.name!r} is not a valid name", "lower-case letters, digits and -, a letter first"
    if spec.namespace is not None and not is_namespace(spec.namespace):
        yield "namespace", f"{spec.namespace!r} is not a valid name", "at most 63 lower-case letters, digits and -"
    for name in ("priority_class", "scheduler", "service_account", "storage_class"):
        value = getattr(spec, name)
        if value is not None and not is_subdomain(value):
            yield name, f"{value!r} is not a valid name", "lower-case letters, digits, - and ."
    for value in spec.image_pull_secret:
        if not is_subdomain(value):
            yield "image_pull_secret", f"{value!r} is not a secret's name", "lower-case letters, digits, - and ."
    if spec.queue is not None and not (is_subdomain(spec.queue) and is_label_value(spec.queue)):
        yield "queue", f"{spec.queue!r} is not a queue's name", "kubectl get localqueues lists them"
    if spec.ttl is not None and spec.kind == "trainjob":
        yield "ttl", "a TrainJob is never deleted by itself", "remove it, or --kind jobset"


def _resources(spec: KubernetesSpec) -> Iterator[PodProblem]:
    for name, example in (("cpus", "8 or 500m"), ("memory", "200Gi"), ("shm", "16Gi"), ("claim_size", "500Gi")):
        value = getattr(spec, name)
        number = quantity(value) if value is not None else 1
        if not number:
            yield name, f"{value!r} is not an amount", f"such as {example}"
        elif name != "cpus" and number != int(number):
            yield name, f"{value} is not a whole number of bytes", f"such as {example}"
    if spec.shm and spec.memory and (quantity(spec.shm) or 0) >= (quantity(spec.memory) or 0):
        yield "shm", f"{spec.shm} does not leave anything of --memory {spec.memory}", "it counts against that limit"
    if "/" not in spec.gpu_resource or not is_key(spec.gpu_resource):
        yield "gpu_resource", f"{spec.gpu_resource!r} is not a resource", "such as nvidia.com/gpu"
    seen = {spec.gpu_resource}
    for entry in spec.rdma:
        resource, _, count = entry.partition("=")
        if "/" not in resource or not is_key(resource) or not re.fullmatch("[1-9][0-9]{0,5}", count):
            yield "rdma", f"{entry!r} is not RESOURCE=N", "such as rdma/hca_shared_devices_a=1"
        if resource in seen:
            fix = "the number of GPUs is --gpus-per-node" if resource == spec.gpu_resource else "give it once"
            yield "rdma", f"{resource} is given twice", fix
        seen.add(resource)


def _labels(spec: KubernetesSpec) -> Iterator[PodProblem]:
    for name in ("label", "annotation", "node_selector"):
        for entry in getattr(spec, name):
            key, equals, value = entry.partition("=")
            if not equals or not is_key(key):
                yield name, f"{entry!r} is not KEY=VALUE", "such as example.org/team=nlp"
            elif name != "annotation" and not is_label_value(value):
                yield name, f"{value!r} is not a label's value", "63 letters, digits, -, _ and . at most"
            elif name == "label" and key in OWN_LABELS:
                yield name, f"{key} is set by dsrun", "write --queue" if key == QUEUE_LABEL else "remove it"
            elif name == "label" and _CONTROLLERS_LABELS.fullmatch(key):
                yield name, f"{key} is set by Kubernetes", "remove it"
    if sum(len(entry.encode(errors="replace")) for entry in spec.annotation) > _ANNOTATION_BYTES:
        yield "annotation", f"more than the {_ANNOTATION_BYTES // 1024} KiB that Kubernetes keeps", "shorten them"
    for entry in spec.toleration:
        if toleration(entry) is None:
            yield "toleration", f"{entry!r} is not KEY[=VALUE][:EFFECT]", f"effects are {', '.join(EFFECTS)}"


def _container(spec: KubernetesSpec) -> Iterator[PodProblem]:
    if spec.image is not None and (re.search(r"\s", spec.image) or spec.image.startswith("-")):
        yield "image", f"{spec.image!r} is not an image", "such as registry.example.org/dsrun:1"
    if spec.workdir is not None and not spec.workdir.startswith("/"):
        yield "workdir", f"{spec.workdir!r} is not an absolute path", "such as /workspace"
    for variable in missing_variables(spec, spec.notify):
        yield "notify", f"the pods have no {variable}", f"add --secret {variable}=SECRET:KEY"
    if spec.user == 0:
        yield "user", "0 is root", "write --run-as-root"


def _variables(spec: KubernetesSpec) -> Iterator[PodProblem]:
    for entry in spec.env:
        name, equals, value = entry.partition("=")
        yield from _variable("env", name)
        if is_secret_variable(name, value) or holds_secret(value):
            fix = f"put it into a secret, and write --secret {name}=SECRET:KEY"
            yield "env", f"{name} looks like a secret, and everybody can read a job's manifest", fix
        if not equals:
            yield "env", f"{name} has no value, and the pods do not get your environment", f"write {name}=VALUE"
        if "\0" in value:
            yield "env", f"{name} contains a NUL character, which no variable can", ""
    for entry in spec.secret:
        name, _, reference = entry.partition("=")
        secret, _, key = reference.partition(":")
        if not is_subdomain(secret) or not _SECRET_KEY.fullmatch(key):
            # Not the entry: whoever writes the secret itself here must not find it in a log.
            yield ("secret", "not NAME=SECRET:KEY, a secret's name and one of its keys", "such as HF_TOKEN=hub:token")
        yield from _variable("secret", name)
    names = [entry.partition("=")[0] for entry in (*spec.env, *spec.secret)]
    if doubled := next((name for name in names if names.count(name) > 1), None):
        yield "secret" if spec.secret else "env", f"{doubled} is given twice", "give it once"


def _variable(field: str, name: str) -> Iterator[PodProblem]:
    if not _VARIABLE.fullmatch(name):
        yield field, f"{without_tokens(name)!r} is not a variable's name", ""
    if _RESERVED_VARIABLES.fullmatch(name):
        yield field, f"{name} is set by the Job or by dsrun launch", "remove it"


def _storage(spec: KubernetesSpec) -> Iterator[PodProblem]:
    own = mount(spec.claim, CLAIM_PATH)
    if own is None or own.read_only:
        yield ("claim", f"{spec.claim!r} is not NAME or NAME:/PATH", f"the path is {CLAIM_PATH} by default")
    for entry in spec.mount:
        if mount(entry) is None:
            yield "mount", f"{entry!r} is not CLAIM:/PATH[:ro]", "such as datasets:/data:ro"
    if spec.storage_class and not spec.claim_size:
        yield "storage_class", "without --claim-size", "add --claim-size 500Gi, or remove it"
    paths = [SHM_PATH, SCRATCH_PATH, *(each.path for each in mounts(spec))]
    if doubled := next((path for path in paths if paths.count(path) > 1), None):
        yield "mount" if spec.mount else "claim", f"{doubled} is used twice", "name another path"
