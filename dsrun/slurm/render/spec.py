"""SlurmSpec from what was given on the command line and in run.yaml, checked without a cluster."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from dsrun.datafiles import patterns_beside, toml_beside
from dsrun.errors import UsageError
from dsrun.options import MAX_NUMBER, OptionValue, broken_rules, filled, flag_of, section_value
from dsrun.slurm.render.notation import check_notation, directive_value, parse_gpus, shell_quote, time_limit
from dsrun.slurm.render.options import SlurmSpec, options
from dsrun.system.terminal.secrets import holds_secret, is_secret_variable
from dsrun.system.variables import BEGAN, FAILURES, LOCAL, OUTPUT, QUEUED, SAVE_ON, STOP_FILE

_KEY = re.compile(r"[a-z][a-z0-9-]+")
_SETUP_COMMANDS = patterns_beside(__file__, table="setup_commands")
# What bash keeps to itself, and what the script or SLURM sets for every job.
_RESERVED_VARIABLES = re.compile(
    r"UID|EUID|PPID|PWD|BASHOPTS|BASH_VERSINFO|SHELLOPTS"
    rf"|{OUTPUT}|{FAILURES}|{STOP_FILE}|{SAVE_ON}|{LOCAL}|{BEGAN}|{QUEUED}"
    r"|SLURM_(JOB|JOBID|ARRAY|RESTART|NODEID|PROCID|LOCALID|NTASKS|NNODES)(_.*)?"
)
# Options of sbatch that would undo what the script relies on.
RESERVED_OPTIONS: Mapping[str, str] = toml_beside(__file__, "reserved.toml")


def _check(spec: SlurmSpec, where: Mapping[str, str]) -> None:
    """Raise UsageError for the first invalid value, whatever the cluster; `where` is the place of each field."""
    for name in options():
        # First of all, as what is wrong with a value names the value. --env and --notify have refusals of their own.
        if name not in ("env", "notify") and holds_secret(getattr(spec, name)):
            message = "a token or password is in it, and everybody can read a job's script"
            raise UsageError(f"{where[name]}: {message}", fix="remove it")
    for name, each in options().items():
        value = getattr(spec, name)
        if each.metadata.get("sbatch") and isinstance(value, str):
            directive_value(value, where[name])
            check_notation(name, value, where[name])
    for name, message, fix in broken_rules(toml_beside(__file__), spec, _names()):
        raise UsageError(f"{where[name]}: {message}", fix=fix)
    for entry in spec.sbatch:
        sbatch_entry(entry, where["sbatch"])


def sbatch_entry(entry: str, where: str) -> tuple[str, str | None]:
    """Key and value of one --sbatch; UsageError for what dsrun has an option of its own for."""
    key, equals, value = entry.partition("=")
    key = key.strip().removeprefix("--")
    if not _KEY.fullmatch(key):
        raise UsageError(
            f"{where}: {entry!r} is not key=value with a long option's name", fix='such as --sbatch "switches=1"'
        )
    own = next((each for each in options().values() if each.metadata.get("sbatch") == key), None)
    if own and not own.metadata.get("by_sbatch"):
        raise UsageError(f"{where}: {key} has a flag of its own", fix=f"write {flag_of(own)}")
    if key in RESERVED_OPTIONS:
        raise UsageError(f"{where}: {key} is set by the script", fix=RESERVED_OPTIONS[key])
    return key, directive_value(value.strip(), f"{where} {key}") if equals else None


def gres_gpus(spec: SlurmSpec) -> int:
    """GPUs that --gres asks for on each node."""
    if not spec.gres:
        return 0
    from dsrun.hardware.gres import parse_gres

    return sum(each.count for each in parse_gres(spec.gres))


def gpu_requests(spec: SlurmSpec) -> dict[str, str]:
    """[TYPE:]N of each node, by the flags that ask for it; --gres aside."""
    given = {"--gpus-per-node": spec.gpus_per_node, "--gpus": spec.gpus, "--gpus-per-task": spec.gpus_per_task}
    asked = {flag: parsed for flag, text in given.items() if text is not None and (parsed := parse_gpus(text))}
    per_node = {flag: count // spec.nodes if flag == "--gpus" else count for flag, (_, count) in asked.items()}
    return {flag: f"{kind}:{per_node[flag]}" if kind else str(per_node[flag]) for flag, (kind, _) in asked.items()}


def _names() -> dict[str, Any]:
    """What the rules of spec.toml name, beside the options."""
    functions = (
        gpu_requests, gres_error, gres_gpus, holds_secret, is_secret_variable, parse_gpus,
        setup_flags, shell_quote, time_limit,
    )  # fmt: skip
    return {
        **{each.__name__: each for each in functions},
        **{f"is_{name}": pattern.fullmatch for name, pattern in patterns_beside(__file__).items()},
        "is_reserved": _RESERVED_VARIABLES.fullmatch,
        "script_variables": toml_beside(__file__)["script_variables"],
        "MAX_NUMBER": MAX_NUMBER,
    }


def gres_error(text: str) -> UsageError | None:
    """What is wrong with a value of --gres."""
    from dsrun.hardware.gres import parse_gres

    try:
        types = [each.type for each in parse_gres(text)]
    except UsageError as error:
        return error
    # SLURM gives some of it.
    twice = len({*types}) < len(types) or (len(types) > 1 and None in types)
    return UsageError(f"{text!r} asks for GPUs twice", fix="name each type once") if twice else None


def setup_flags(file: str) -> str:
    """The flags instead of a command that was given as a file to source; "" for a file."""
    for flag, pattern in _SETUP_COMMANDS.items():
        if found := pattern.fullmatch(file.strip()):
            return " ".join(f"{flag} {word}" for word in found[1].split())
    return ""


def run_file_value(key: str, values: Iterable[str], where: str) -> OptionValue:
    """The value of a key in run.yaml's `slurm:` section. Raises UsageError for an unknown one, with the nearest."""
    return section_value(SlurmSpec, "slurm", key, values, where, page="docs/slurm.md")


def make_spec(*places: Iterable[OptionValue]) -> SlurmSpec:
    """The spec of what was given, the strongest place first; lists of one place replace those of a weaker one.

    All GPUs are those of `gpus_per_node` or `gres` in it, whatever asked for them. Raises UsageError for a value that
    its option does not take, and for options that contradict each other."""
    spec, where = filled(SlurmSpec, _strongest(places))
    named = [name for name in ("gpus_per_node", "gpus", "gpus_per_task") if getattr(spec, name) is not None]
    if named:
        from dsrun.hardware.gres import written_gpus

        written: dict[str, Any] = {name: written_gpus(getattr(spec, name)) for name in named}
        spec = replace(spec, **written)
    _check(spec, where)
    if spec.elastic:
        from dsrun.recipe.preflight.elastic import nodes_of

        spec = replace(spec, nodes=nodes_of(spec.elastic, spec.nodes, where["elastic"]))
    return replace(spec, gpus_per_node=next(iter(gpu_requests(spec).values()), None))


def _strongest(places: Iterable[Iterable[OptionValue]]) -> Iterator[list[OptionValue]]:
    """`places` without what asks for a resource that a stronger place asks for, also by another option."""
    taken: set[str] = set()
    for place in places:
        resources = {each: options()[each.name].metadata.get("resource") for each in place}
        yield [each for each, resource in resources.items() if resource not in taken]
        taken.update(filter(None, resources.values()))
