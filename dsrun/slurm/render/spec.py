"""SlurmSpec from what was given on the command line and in run.yaml, checked without a cluster."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain

from dsrun.datafiles import toml_beside
from dsrun.errors import UsageError
from dsrun.options import MAX_NUMBER, OptionValue, filled, flag_of, section_value
from dsrun.slurm.render.notation import check_notation, directive_value, parse_gpus, shell_quote, time_limit
from dsrun.slurm.render.options import SlurmSpec, options
from dsrun.system.terminal.secrets import holds_secret, is_secret_variable
from dsrun.system.variables import BEGAN, FAILURES, LOCAL, OUTPUT, QUEUED, SAVE_ON, STOP_FILE

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The largest sig_time of --signal (sbatch(1)).
_LONGEST_LEAD_S = 65535
_KEY = re.compile(r"[a-z][a-z0-9-]+")
_INTERFACES = re.compile(r"[=^]?\w[\w.:@-]*(,\w[\w.:@-]*)*", re.ASCII)
# Commands that people give as the file to source.
_SETUP_COMMANDS = {
    "--conda": re.compile(r"(?:conda|mamba|micromamba|source)\s+activate\s+(\S+)"),
    "--module": re.compile(r"(?:module\s+(?:load|add)|ml)\s+(.+)"),
    "--venv": re.compile(r"(?:source|\.)\s+(\S+)/bin/activate"),
    "--setup-file": re.compile(r"(?:source|\.)\s+(\S+)"),
    "--env": re.compile(r"export\s+(.+)"),
}
_MEMORY = re.compile(r"\d+[KMGT]?B?", re.IGNORECASE | re.ASCII)
# What bash keeps to itself, and what the script or SLURM sets for every job.
_RESERVED_VARIABLES = re.compile(
    r"UID|EUID|PPID|PWD|BASHOPTS|BASH_VERSINFO|SHELLOPTS"
    rf"|{OUTPUT}|{FAILURES}|{STOP_FILE}|{SAVE_ON}|{LOCAL}|{BEGAN}|{QUEUED}"
    r"|SLURM_(JOB|JOBID|ARRAY|RESTART|NODEID|PROCID|LOCALID|NTASKS|NNODES)(_.*)?"
)
# The script's own variables: one that is exported already reaches the program with the script's value.
_SCRIPT_VARIABLES = frozenset(
    {"job", "restart", "hosts", "endpoint", "cpus", "on_node", "signalled", "interrupted", "watchdog", "code"}
    | {"nproc", "cpu_only", "trains", "requeue", "max_requeues", "saving_time", "join_timeout", "rdzv_backend"}
    | {"gpus_per_node", "faulty", "supervised", "memory", "gpu_check"}
    | {"all_hosts", "used_nodes", "left_out", "step_nodes"}
)
# Their programs would take a value that begins with a dash for an option; a folder or file is written ./-x.
_UNDASHED = ("module", "conda", "container_image", "apptainer")
# Options of sbatch that would undo what the script relies on.
RESERVED_OPTIONS: Mapping[str, str] = toml_beside(__file__, "reserved.toml")
# Field, what is wrong with its value, what to write instead.
SpecProblem = tuple[str, str, str]


def _check(spec: SlurmSpec, where: Mapping[str, str]) -> None:
    """Raise UsageError for the first invalid value, whatever the cluster; `where` is the place of each field."""
    _refuse_secrets(spec, where)
    for name, each in options().items():
        value = getattr(spec, name)
        if each.metadata.get("sbatch") and isinstance(value, str):
            directive_value(value, where[name])
            check_notation(name, value, where[name])
    for name, message, fix in chain(_resources(spec), _time(spec), _environment(spec), _shell(spec), _container(spec)):
        raise UsageError(f"{where[name]}: {message}", fix=fix)
    for entry in spec.sbatch:
        sbatch_entry(entry, where["sbatch"])


def _refuse_secrets(spec: SlurmSpec, where: Mapping[str, str]) -> None:
    """First of all, as what is wrong with a value names the value. --env and --notify have refusals of their own."""
    for name in options():
        if name not in ("env", "notify") and holds_secret(getattr(spec, name)):
            message = "a token or password is in it, and everybody can read a job's script"
            raise UsageError(f"{where[name]}: {message}", fix="remove it")


def sbatch_entry(entry: str, where: str) -> tuple[str, str | None]:
    """Key and value of one --sbatch; UsageError for what dsrun has an option of its own for."""
    key, equals, value = entry.partition("=")
    key = key.strip().removeprefix("--")
    if not _KEY.fullmatch(key):
        raise UsageError(
            f"{where}: {entry!r} is not key=value with a long option's name", fix='such as --sbatch "switches=1"'
        )
    own = next((each for each in options().values() if each.metadata.get("sbatch") == key), None)
    if own:
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


def _resources(spec: SlurmSpec) -> Iterator[SpecProblem]:
    if spec.gpus_per_node is not None:
        found = parse_gpus(spec.gpus_per_node)
        if found is None or found[0] == "gpu" or found[1] > MAX_NUMBER:
            yield "gpus_per_node", f"{spec.gpus_per_node!r} is not a number of GPUs", "write 4, or a100:4"
    try:
        if gres_gpus(spec) and spec.gpus_per_node is not None:
            yield "gres", "it and --gpus-per-node both ask for GPUs", "give one of them"
    except UsageError as error:
        yield "gres", error.message, error.fix or ""
    if spec.mem is not None and not _MEMORY.fullmatch(spec.mem):
        yield "mem", f"{spec.mem!r} is not a memory size", "such as 200G; 0 is all"
    if spec.array_flag and not spec.array:
        yield "array_flag", "without --array", "add --array 0-9"
    for name in ("min_gpus", "min_gpu_memory"):
        if getattr(spec, name) is not None and not spec.preflight:
            yield name, "without --preflight", "add --preflight"


def _time(spec: SlurmSpec) -> Iterator[SpecProblem]:
    limit = time_limit(spec.time) if spec.time is not None else 0
    if limit is None:
        yield "time", f"{spec.time!r} is not a time limit", "minutes, 20:00:00, 2-00 or 2-00:00:00"
        return
    if limit > MAX_NUMBER:
        yield "time", f"{spec.time} is more than SLURM can count", "UNLIMITED means no limit"
    lead = spec.signal_lead or 0
    if lead > _LONGEST_LEAD_S:
        yield "signal_lead", f"SLURM takes at most {_LONGEST_LEAD_S} seconds", ""
    if limit and lead >= limit:
        message = f"{lead} s before a limit of {limit} s is before the start"
        yield "signal_lead", message, "raise --time or lower --signal-lead"


def _environment(spec: SlurmSpec) -> Iterator[SpecProblem]:
    if spec.interface is not None and not _INTERFACES.fullmatch(spec.interface):
        yield "interface", f"{spec.interface!r} is not a list of interfaces", "such as ib0, or ^docker0,lo"
    for name in _UNDASHED:
        value = getattr(spec, name) or ""
        for word in (value,) if isinstance(value, str) else value:
            if word.startswith("-"):
                yield name, f"{word!r} begins with a dash, like an option of its program", ""
    if not spec.local_dir.startswith("/"):
        yield "local_dir", f"{spec.local_dir!r} is not an absolute path", "such as /tmp or /local/scratch"
    if spec.conda is not None and spec.venv is not None:
        yield "conda", "it and --venv exclude each other", ""


def _shell(spec: SlurmSpec) -> Iterator[SpecProblem]:
    """What the script's shell is given: files to source, and variables."""
    for file in spec.setup_file:
        for flag, pattern in _SETUP_COMMANDS.items():
            if found := pattern.fullmatch(file.strip()):
                fix = " ".join(f"{flag} {word}" for word in found[1].split())
                yield "setup_file", f"{file!r} is a command, not a file", f"write {fix}"
    for entry in spec.env:
        name, equals, value = entry.partition("=")
        if not _NAME.fullmatch(name):
            yield "env", f"{name!r} is not a variable's name", ""
        if name in _SCRIPT_VARIABLES or (equals and _RESERVED_VARIABLES.fullmatch(name)):
            yield "env", f"{name} is set by bash, by SLURM or by the script", ""
        if equals and (is_secret_variable(name, value) or holds_secret(value)):
            fix = f"export it where you call sbatch, and write --env {name}"
            yield "env", f"{name} looks like a secret, and everybody can read a job's script", fix
        shell_quote(value)  # refuses what no variable can hold
    if "ALL" in spec.env:
        yield "env", "ALL is the default", "name variables, or remove it"


def _container(spec: SlurmSpec) -> Iterator[SpecProblem]:
    image = spec.container_image or spec.apptainer
    if spec.container_image is not None and spec.apptainer is not None:
        yield "container_image", "it and --apptainer exclude each other", ""
    if spec.container_mounts and not image:
        yield "container_mounts", "without a container", "add --container-image or --apptainer"
    for mount in spec.container_mounts:
        if "," in mount:
            yield "container_mounts", f"{mount!r}: neither tool takes a comma in a path", ""
        if "" in mount.split(":"):
            yield "container_mounts", f"{mount!r} leaves out a folder", "DIR or DIR:INSIDE"
    for name in ("venv", "conda", "stage"):
        if image and getattr(spec, name):
            yield name, "the environment is that of the image", "remove it, or the container"


def run_file_value(key: str, values: Iterable[str], where: str) -> OptionValue:
    """The value of a key in run.yaml's `slurm:` section. Raises UsageError for an unknown one, with the nearest."""
    return section_value(SlurmSpec, "slurm", key, values, where, page="docs/slurm.md")


def make_spec(*places: Iterable[OptionValue]) -> SlurmSpec:
    """The spec of what was given, the strongest place first; lists of one place replace those of a weaker one.

    Raises UsageError for a value that its option does not take, and for options that contradict each other.
    """
    spec, where = filled(SlurmSpec, places)
    if spec.gpus_per_node is not None:
        from dsrun.hardware.gres import written_gpus

        spec = replace(spec, gpus_per_node=written_gpus(spec.gpus_per_node))
    _check(spec, where)
    return spec
