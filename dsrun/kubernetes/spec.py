"""KubernetesSpec from what was given on the command line and in run.yaml, checked without a cluster."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from itertools import chain
from typing import Any

from dsrun.datafiles import SubjectNames, evaluate, toml_beside
from dsrun.errors import UsageError
from dsrun.kubernetes.notation import (
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
_RULES = toml_beside(__file__)
_NAMES: dict[str, Any] = {
    **{each.__name__: each for each in (int, is_key, is_label_value, is_namespace, is_subdomain, quantity)},
    "is_name": NAME.fullmatch,
    "is_controllers": _CONTROLLERS_LABELS.fullmatch,
    "has_blank": re.compile(r"\s").search,
    "tolerated": toleration,
    "mounted": mount,
    "queue_label": QUEUE_LABEL,
    "own_labels": OWN_LABELS,
    "claim_path": CLAIM_PATH,
}


def run_file_value(key: str, values: Iterable[str], where: str) -> OptionValue:
    """The value of a key in run.yaml's `k8s:` section. Raises UsageError for an unknown one, with the nearest."""
    return section_value(KubernetesSpec, "k8s", key, values, where, page="docs/kubernetes.md")


def make_spec(*places: Iterable[OptionValue]) -> KubernetesSpec:
    """The spec of what was given, the strongest place first; lists of one place replace those of a weaker one.

    Raises UsageError for a value that its option does not take, and for options that contradict each other.
    """
    spec, where = filled(KubernetesSpec, places)
    checks = (
        _tokens, _ruled("names"), _ruled("resources"), _rdma, _ruled("labels"), _ruled("image"), _notify,
        _ruled("user"), _variables, _ruled("storage"), _paths,
    )  # fmt: skip
    found = chain.from_iterable(check(spec) for check in checks)
    for name, message, fix in found:
        raise UsageError(f"{where[name]}: {message}", fix=fix or None)
    return spec


def _tokens(spec: KubernetesSpec) -> Iterator[PodProblem]:
    """First of all, as what is wrong with a value names the value. Those left out are never named."""
    for each in fields(spec):
        if each.name not in ("env", "secret", "notify") and holds_secret(getattr(spec, each.name)):
            yield each.name, "a token or password is in it, and everybody can read a job's manifest", "remove it"


def _ruled(section: str) -> Callable[[KubernetesSpec], Iterator[PodProblem]]:
    """What finds what a section of spec.toml has against single values."""

    def look(spec: KubernetesSpec) -> Iterator[PodProblem]:
        for field, rules in ((field, row["rules"]) for row in _RULES[section] for field in row["fields"]):
            given = getattr(spec, field)
            for value in given if isinstance(given, tuple) else () if given is None else (given,):
                key, _, rest = str(value).partition("=")
                names = SubjectNames(spec, {}, value=value, key=key, rest=rest, **_NAMES)
                names["annotation_bytes"] = sum(len(each.encode(errors="replace")) for each in spec.annotation)
                for rule in rules:
                    if evaluate(rule["when"], names):
                        yield field, rule["message"].format(value=value, key=key, rest=rest, spec=spec), rule["fix"]

    return look


def _rdma(spec: KubernetesSpec) -> Iterator[PodProblem]:
    seen = {spec.gpu_resource}
    for entry in spec.rdma:
        resource, _, count = entry.partition("=")
        if "/" not in resource or not is_key(resource) or not re.fullmatch("[1-9][0-9]{0,5}", count):
            yield "rdma", f"{entry!r} is not RESOURCE=N", "such as rdma/hca_shared_devices_a=1"
        if resource in seen:
            fix = "the number of GPUs is --gpus-per-node" if resource == spec.gpu_resource else "give it once"
            yield "rdma", f"{resource} is given twice", fix
        seen.add(resource)


def _notify(spec: KubernetesSpec) -> Iterator[PodProblem]:
    for variable in missing_variables(spec, spec.notify):
        yield "notify", f"the pods have no {variable}", f"add --secret {variable}=SECRET:KEY"


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


def _paths(spec: KubernetesSpec) -> Iterator[PodProblem]:
    paths = [SHM_PATH, SCRATCH_PATH, *(each.path for each in mounts(spec))]
    if doubled := next((path for path in paths if paths.count(path) > 1), None):
        yield "mount" if spec.mount else "claim", f"{doubled} is used twice", "name another path"
