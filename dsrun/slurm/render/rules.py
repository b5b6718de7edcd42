"""What a SlurmSpec must not say, whatever the cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dsrun.errors import UsageError
from dsrun.hardware.gres import parse_gres
from dsrun.slurm.render.notation import check_notation, directive_value, shell_quote
from dsrun.slurm.render.options import SlurmSpec, flag_of, options
from dsrun.slurm.units import MOST, gpu_words, time_limit

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY = re.compile(r"[a-z][a-z0-9-]+")
# HF_TOKEN, but neither TOKENIZERS_PARALLELISM nor MAX_TOKENS.
SECRET = re.compile(r"TOKEN(?![A-Z])|SECRET|PASSW|CREDENTIAL|(^|_)(API_?)?KEY($|_)", re.IGNORECASE)
_INTERFACES = re.compile(r"[=^]?\w[\w.:@-]*(,\w[\w.:@-]*)*", re.ASCII)
_MEMORY = re.compile(r"\d+[KMGT]?B?", re.IGNORECASE | re.ASCII)
# What bash keeps to itself, and what the script or SLURM sets for every job.
_TAKEN = re.compile(
    r"UID|EUID|PPID|PWD|BASHOPTS|BASH_VERSINFO|SHELLOPTS|DSRUN_(OUTPUT|FAILURES|STOP_FILE|SAVE_ON|LOCAL)"
    r"|SLURM_(JOB|JOBID|ARRAY|RESTART|NODEID|PROCID|LOCALID|NTASKS|NNODES)(_.*)?"
)
# The script's own variables: one that is exported already reaches the program with the script's value.
_SCRIPTS = frozenset(
    {
        "job",
        "restart",
        "hosts",
        "endpoint",
        "signalled",
        "interrupted",
        "watchdog",
        "code",
        "own",
        "log",
        "worker",
    }
    | {"on_node", "cache", "key", "cores", "threads", "make_room", "unpack", "root"}
)
# Their programs would take a value that begins with a dash for an option; a folder or file is written ./-x.
_UNDASHED = ("module", "conda", "container_image", "apptainer")
# Options of sbatch that would undo what the script relies on.
OWN = {
    "ntasks": "torch.distributed.run is one task a node; --nproc says how many workers it starts",
    "ntasks-per-node": "torch.distributed.run is one task a node; --nproc says how many workers it starts",
    "ntasks-per-gpu": "torch.distributed.run is one task a node; --nproc says how many workers it starts",
    "signal": "write --signal-lead SECONDS",
    "requeue": "it is the default; --no-requeue is the opposite",
    "no-requeue": "write --no-requeue",
    "open-mode": "the log is always appended to, or a requeued job would erase it",
    "export": "write --env NAME, and --clean-env to pass on nothing else",
    "wrap": "write the command after --",
    "het-group": "heterogeneous jobs are not rendered",
    "gpus": "GPUs must be the same on every node: --gpus-per-node",
    "gpus-per-task": "a node has one task: --gpus-per-node",
    "export-file": "write --env NAME, and --clean-env to pass on nothing else",
    "test-only": "write dsrun render-slurm --test-only",
    "wait": "write dsrun render-slurm --follow",
    "parsable": "--submit prints the number alone",
}


def check(spec: SlurmSpec, where: Mapping[str, str]) -> None:
    """Raise UsageError for the first thing that is wrong. `where` says, by field, where a value stands."""
    _directives(spec, where)
    _resources(spec, where)
    _environment(spec, where)
    _container(spec, where)
    if spec.array_flag and not spec.array:
        raise UsageError(f"{_at('array_flag', where)} without --array", fix="add --array 0-9")
    for entry in spec.sbatch:
        sbatch_entry(entry, where.get("sbatch", "--sbatch"))


def _at(name: str, where: Mapping[str, str]) -> str:
    return where.get(name, "--" + name.replace("_", "-"))


def _directives(spec: SlurmSpec, where: Mapping[str, str]) -> None:
    for name, each in options().items():
        value = getattr(spec, name)
        if each.metadata["sbatch"] and isinstance(value, str):
            directive_value(value, _at(name, where))
            check_notation(name, value, _at(name, where))


def sbatch_entry(entry: str, where: str) -> tuple[str, str | None]:
    """Key and value of one --sbatch; UsageError for what dsrun has an option of its own for."""
    key, equals, value = entry.partition("=")
    key = key.strip().removeprefix("--")
    if not _KEY.fullmatch(key):
        raise UsageError(
            f"{where}: {entry!r} is not key=value with a long option's name",
            fix='such as --sbatch "switches=1"',
        )
    known = {each.metadata["sbatch"]: name for name, each in options().items() if each.metadata["sbatch"]}
    if key in known:
        raise UsageError(f"{where}: {key} has a flag of its own", fix=f"write {flag_of(known[key])}")
    if key in OWN:
        raise UsageError(f"{where}: {key} is set by the script", fix=OWN[key])
    return key, directive_value(value.strip(), f"{where} {key}") if equals else None


def _resources(spec: SlurmSpec, where: Mapping[str, str]) -> None:
    found = gpu_words(spec.gpus_per_node) if spec.gpus_per_node is not None else (None, 0)
    if found is None or found[0] == "gpu" or found[1] > MOST:
        raise UsageError(
            f"{_at('gpus_per_node', where)}: {spec.gpus_per_node!r} is no number of GPUs",
            fix="write 4, or a100:4",
        )
    gpus = gres_gpus(spec, where)
    if gpus and spec.gpus_per_node is not None:
        raise UsageError(
            f"{_at('gres', where)} and {_at('gpus_per_node', where)} both ask for GPUs",
            fix="give one of them",
        )
    if spec.time is not None and time_limit(spec.time) is None:
        raise UsageError(
            f"{_at('time', where)}: {spec.time!r} is no time limit",
            fix="minutes, 20:00:00, 2-00 or 2-00:00:00",
        )
    if spec.time is not None and (time_limit(spec.time) or 0) > MOST:
        raise UsageError(
            f"{_at('time', where)}: {spec.time} is more than SLURM can count", fix="UNLIMITED is no limit"
        )
    if spec.mem is not None and not _MEMORY.fullmatch(spec.mem):
        raise UsageError(f"{_at('mem', where)}: {spec.mem!r} is no memory size", fix="such as 200G; 0 is all")
    _lead(spec, where)


def _lead(spec: SlurmSpec, where: Mapping[str, str]) -> None:
    limit = time_limit(spec.time) if spec.time else None
    if spec.signal_lead is None:
        return
    if spec.signal_lead > 65535:
        raise UsageError(f"{_at('signal_lead', where)}: SLURM takes at most 65535 seconds")
    if limit and spec.signal_lead >= limit:
        raise UsageError(
            f"{_at('signal_lead', where)}: {spec.signal_lead} s before a limit of {limit} s is before the start",
            fix="raise --time or lower --signal-lead",
        )


def gres_gpus(spec: SlurmSpec, where: Mapping[str, str]) -> int:
    """GPUs that --gres asks for on each node."""
    if not spec.gres:
        return 0
    try:
        return sum(each.count for each in parse_gres(spec.gres))
    except UsageError as error:
        raise UsageError(f"{_at('gres', where)}: {error.message}", fix=error.fix) from None


def _environment(spec: SlurmSpec, where: Mapping[str, str]) -> None:
    if spec.interface is not None and not _INTERFACES.fullmatch(spec.interface):
        raise UsageError(
            f"{_at('interface', where)}: {spec.interface!r} names no interface",
            fix="such as ib0, or ^docker0,lo",
        )
    for name in _UNDASHED:
        value = getattr(spec, name)
        for word in value if isinstance(value, tuple) else (value or "",):
            if word.startswith("-"):
                raise UsageError(
                    f"{_at(name, where)}: {word!r} begins with a dash, like an option of its program"
                )
    if not spec.local_dir.startswith("/"):
        raise UsageError(
            f"{_at('local_dir', where)}: {spec.local_dir!r} is no absolute path",
            fix="such as /tmp or /local/scratch",
        )
    if spec.conda is not None and spec.venv is not None:
        raise UsageError(f"{_at('conda', where)} and {_at('venv', where)} exclude each other")
    for entry in spec.env:
        name, equals, value = entry.partition("=")
        if not _NAME.fullmatch(name):
            raise UsageError(f"{_at('env', where)}: {name!r} is no name of a variable")
        if name in _SCRIPTS or (equals and _TAKEN.fullmatch(name)):
            raise UsageError(f"{_at('env', where)}: {name} is set by bash, by SLURM or by the script")
        if equals and SECRET.search(name):
            raise UsageError(
                f"{_at('env', where)}: {name} looks like a secret, and everybody can read a job's script",
                fix=f"export it where you call sbatch, and write --env {name}",
            )
        shell_quote(value)  # refuses what no variable can hold
    if "ALL" in spec.env:
        raise UsageError(f"{_at('env', where)}: ALL is the default", fix="name variables, or leave it away")


def _container(spec: SlurmSpec, where: Mapping[str, str]) -> None:
    if spec.container_image is not None and spec.apptainer is not None:
        raise UsageError(
            f"{_at('container_image', where)} (pyxis) and {_at('apptainer', where)} exclude each other"
        )
    image = spec.container_image or spec.apptainer
    if spec.container_mounts and not image:
        raise UsageError(
            f"{_at('container_mounts', where)} without a container",
            fix="add --container-image or --apptainer",
        )
    for mount in spec.container_mounts:
        if "," in mount:
            raise UsageError(
                f"{_at('container_mounts', where)}: {mount!r}: neither tool takes a comma in a path"
            )
        if "" in mount.split(":"):
            raise UsageError(
                f"{_at('container_mounts', where)}: {mount!r} leaves out a folder", fix="DIR or DIR:INSIDE"
            )
    if image and (spec.venv or spec.conda):
        raise UsageError(
            f"{_at('venv' if spec.venv else 'conda', where)}: the environment is that of the image",
            fix="leave it away, or the container",
        )
    if image and spec.stage:
        raise UsageError(
            f"{_at('stage', where)} with a container: the image is the environment",
            fix="leave it away, or the container",
        )
