"""KubernetesSpec + TrainingWorkload -> the objects of a job, and their YAML. Pure.

- `job`: a headless Service and an Indexed Job.
- `jobset`: a JobSet of one replicated Job, which makes the Service itself.
- `trainjob`: a TrainingRuntime with that JobSet as its template, and a TrainJob that names it.

objects.yaml has the objects."""

import re
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dsrun import __version__, errors
from dsrun.datafiles import evaluate
from dsrun.kubernetes import spec as rules
from dsrun.kubernetes import workload as facts
from dsrun.kubernetes.notation import toleration
from dsrun.kubernetes.options import KubernetesSpec
from dsrun.system import variables
from dsrun.system.terminal.display import printable
from dsrun.system.terminal.secrets import masked

if TYPE_CHECKING:
    import yaml


KubernetesObject = dict[str, Any]


class _Expression(NamedTuple):
    text: str


def render_objects(spec: KubernetesSpec, workload: facts.TrainingWorkload) -> list[KubernetesObject]:
    """The objects in the order in which they are to be created. The spec is a completed one."""
    names = _names(spec, workload)
    kinds = ["claim"] if spec.claim_size else []
    kinds += ["service"] if spec.kind == "job" and spec.nodes > 1 else []
    kinds += ["runtime"] if spec.kind == "trainjob" else []
    return [_filled(_objects()[kind], names) for kind in (*kinds, spec.kind)]


def _names(spec: KubernetesSpec, workload: facts.TrainingWorkload) -> dict[str, Any]:
    """The names for the expressions of objects.yaml; `part` is for those that need another of its entries."""
    names: dict[str, Any] = {**vars(errors), **vars(variables), **vars(rules), **vars(facts)}
    names |= {each.__name__: each for each in (enumerate, map, pairs, sorted, str, toleration)}
    names |= {"spec": spec, "workload": workload, "part": lambda name: _filled(_objects()[name], names)}
    return names


def pairs(entries: Sequence[str]) -> dict[str, str]:
    """KEY=VALUE entries; of two for one key the last."""
    return {key: value for key, _, value in (each.partition("=") for each in entries)}


@cache
def _objects() -> dict[str, Any]:
    import yaml

    class Loader(yaml.SafeLoader):
        """Keeps expressions apart from texts."""

    Loader.add_constructor("!v", lambda _, node: _Expression(str(node.value)))
    found: dict[str, Any] = yaml.load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"), Loader)
    return found


def _filled(part: Any, names: dict[str, Any]) -> Any:
    """A part with the values of its expressions, without fields that are empty (0 and False are not) and items None."""
    if isinstance(part, _Expression):
        return evaluate(part.text, names)
    if isinstance(part, list):
        return [value for value in (_filled(each, names) for each in part) if value is not None]
    if not isinstance(part, dict):
        return part
    found = {_filled(key, names): _filled(value, names) for key, value in part.items()}
    return {key: value for key, value in found.items() if value not in (None, {}, [], ())}


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
            raise errors.UsageError(f"{value[:40]!r} is not UTF-8, as the texts of a manifest are") from None
        plain = _PLAIN.fullmatch(value) and value.lower() not in _NO_TEXT
        # JSON is easier to read between single quotes; what these cannot hold PyYAML puts between double ones.
        quotes = "'" if '"' in value else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else quotes)

    Dumper.add_representer(str, text)
    return Dumper
