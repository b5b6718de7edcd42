"""KubernetesSpec from what was given on the command line and in run.yaml, checked without a cluster."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from dsrun.datafiles import patterns_beside, toml_beside
from dsrun.errors import UsageError
from dsrun.kubernetes import notation, workload
from dsrun.kubernetes.options import KubernetesSpec
from dsrun.options import OptionValue, broken_rules, filled, section_value
from dsrun.system.terminal import secrets

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
APP_LABEL, INSTANCE_LABEL = "app.kubernetes.io/name", "app.kubernetes.io/instance"
OWN_LABELS = (APP_LABEL, INSTANCE_LABEL, QUEUE_LABEL)
# Mounted by the pods themselves.
SHM_PATH, SCRATCH_PATH = "/dev/shm", "/scratch"


def run_file_value(key: str, values: Iterable[str], where: str) -> OptionValue:
    """The value of a key in run.yaml's `k8s:` section. Raises UsageError for an unknown one, with the nearest."""
    return section_value(KubernetesSpec, "k8s", key, values, where, page="docs/kubernetes.md")


def make_spec(*places: Iterable[OptionValue]) -> KubernetesSpec:
    """The spec of what was given, the strongest place first; lists of one place replace those of a weaker one.

    Raises UsageError for a value that its option does not take, and for options that contradict each other."""
    spec, where = filled(KubernetesSpec, places)
    for each in fields(KubernetesSpec):
        # First of all, as what is wrong with a value names the value. Those left out are never named.
        if each.name not in ("env", "secret", "notify", "patch") and secrets.holds_secret(getattr(spec, each.name)):
            message = "a token or password is in it, and everybody can read a job's manifest"
            raise UsageError(f"{where[each.name]}: {message}", fix="remove it")
    if spec.elastic:
        from dsrun.recipe.preflight.elastic import nodes_of

        spec = replace(spec, nodes=nodes_of(spec.elastic, spec.nodes, where["elastic"]))
    for name, message, fix in broken_rules(toml_beside(__file__), spec, rule_names()):
        raise UsageError(f"{where[name]}: {message}", fix=fix or None)
    return spec


def rule_names() -> dict[str, Any]:
    """What the rules of spec.toml and patch.toml name, beside the options: functions and constants of these modules."""
    names: dict[str, Any] = {**vars(notation), **vars(workload), **vars(secrets), **globals()}
    names |= {each.__name__: each for each in (Counter, filter, int, len, map, sorted, zip)}
    return names | {f"is_{name}": pattern.fullmatch for name, pattern in patterns_beside(__file__).items()}
