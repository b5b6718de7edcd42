"""Worker-environment variables: is this process a worker that torchrun or srun started, and which one."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dsrun.errors import DsrunError, UsageError
from dsrun.refusals import Refusals
from dsrun.system.hostlist import expand_hosts

_TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
# Below Linux's ephemeral ports (32768 and up), so that no outgoing connection sits on the port by chance.
FIRST_PORT = 15000
PORTS = 15000
# int() itself refuses thousands of digits, with a traceback (sys.set_int_max_str_digits).
_MOST_DIGITS = 9
_MOST_SHOWN = 80
_REFUSALS = Refusals(__file__, "refusals.toml")


@dataclass(frozen=True, kw_only=True)
class WorkerPlace:
    """One process of a run: its rank among all, its place on its machine, and where the ranks meet."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    master_addr: str
    master_port: int
    source: Literal["torchrun", "slurm"]

    @property
    def is_main(self) -> bool:
        """Whether this worker speaks for the run."""
        return self.rank == 0

    def variables(self) -> dict[str, str]:
        """The variables that torch.distributed's env:// initialisation reads."""
        return {name.upper(): str(value) for name, value in vars(self).items() if name != "source"}


def worker_from_env(environ: Mapping[str, str]) -> WorkerPlace | None:
    """The worker that `environ` describes; None when this process was not started as one.

    torchrun's RANK wins. Without it a task of an `srun` step with several tasks is a worker; the shell of
    `sbatch` or `salloc` is not, although SLURM_PROCID is 0 there. LOCAL_RANK alone can only come from a launcher, for
    every process has another one; WORLD_SIZE and MASTER_ADDR alone also stand in job scripts, for what these start,
    and in profiles. Raises UsageError when the variables are incomplete, not integers, or contradict one another."""
    if _is_set(environ, "RANK") and not is_only_process(environ):
        worker = _from_torchrun(environ)
    elif _integer(environ, "SLURM_STEP_NUM_TASKS", 0) > 1 and "SLURM_STEP_ID" in environ:
        worker = _from_slurm(environ)
    elif _is_set(environ, "LOCAL_RANK"):
        raise _incomplete(environ, "LOCAL_RANK")
    else:
        return None
    _REFUSALS.check("numbers", worker=worker)
    return worker


def is_only_process(environ: Mapping[str, str]) -> bool:
    """Whether RANK and WORLD_SIZE say that there is one process, and none of several on this machine.

    Images of containers and scripts set them so, without the variables that launchers give to workers."""
    alone = (environ.get("RANK", "").strip(), environ.get("WORLD_SIZE", "").strip()) == ("0", "1")
    return alone and not _is_set(environ, "LOCAL_RANK")


def _is_set(environ: Mapping[str, str], name: str) -> bool:
    return bool(environ.get(name, "").strip())


def _incomplete(environ: Mapping[str, str], there: str) -> DsrunError:
    missing = [name for name in _TORCHRUN_VARIABLES if not _is_set(environ, name)]
    what = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not"
    return _REFUSALS.error("worker.incomplete", there=there, what=what)


def _from_torchrun(environ: Mapping[str, str]) -> WorkerPlace:
    if not all(_is_set(environ, name) for name in _TORCHRUN_VARIABLES):
        raise _incomplete(environ, "RANK")
    world_size = _integer(environ, "WORLD_SIZE")
    return WorkerPlace(
        rank=_integer(environ, "RANK"),
        world_size=world_size,
        local_rank=_integer(environ, "LOCAL_RANK"),
        local_world_size=_local_world_size(environ, world_size),
        master_addr=environ["MASTER_ADDR"].strip(),
        master_port=_integer(environ, "MASTER_PORT"),
        source="torchrun",
    )


def _local_world_size(environ: Mapping[str, str], world_size: int) -> int:
    """LOCAL_WORLD_SIZE of torchrun, else LOCAL_SIZE of the `deepspeed` launcher; one worker needs neither."""
    for name in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE"):
        if _is_set(environ, name):
            return _integer(environ, name)
    if world_size == 1:
        return 1
    raise _REFUSALS.error("worker.no_local_size")


def _from_slurm(environ: Mapping[str, str]) -> WorkerPlace:
    """A task of an srun step; every task derives the same meeting point without talking to the others."""
    world_size = _integer(environ, "SLURM_STEP_NUM_TASKS")
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    address = environ.get("MASTER_ADDR") or first_host(nodes)
    if not address:
        raise UsageError("SLURM_STEP_NODELIST is not set in this srun step", fix="set MASTER_ADDR to the first node")
    return WorkerPlace(
        rank=_integer(environ, "SLURM_PROCID"),
        world_size=world_size,
        local_rank=_integer(environ, "SLURM_LOCALID"),
        local_world_size=_slurm_local_world_size(environ, world_size),
        master_addr=address,
        master_port=_integer(environ, "MASTER_PORT", slurm_port(environ)),
        source="slurm",
    )


def _slurm_local_world_size(environ: Mapping[str, str], world_size: int) -> int:
    counts = expand_counts(environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", ""))
    node = _integer(environ, "SLURM_NODEID", 0)
    if node < len(counts):
        return counts[node]
    if _integer(environ, "SLURM_STEP_NUM_NODES", 1) == 1:
        return world_size
    raise _REFUSALS.error("worker.no_tasks", node=node)


def slurm_port(environ: Mapping[str, str]) -> int:
    """A port that differs between jobs, and between steps of one job, which may share a node."""
    job = _integer(environ, "SLURM_JOB_ID", 0)
    # Seven steps of a job have ports before they meet those of the next job's.
    return FIRST_PORT + (job * 7 + _integer(environ, "SLURM_STEP_ID", 0)) % PORTS


def first_host(nodes: str) -> str | None:
    """First host of a SLURM host list: "gpu[03-05,9],login" is gpu03; None for an empty list."""
    return expand_hosts(nodes)[0] if nodes.strip() else None


def expand_counts(text: str) -> list[int]:
    """SLURM's tasks per node, one number a node: "4(x2),3" is [4, 4, 3]; [] for what cannot be read."""
    counts: list[int] = []
    for part in text.split(",") if text else []:
        found = re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,5})\))?", part.strip())
        if not found:
            return []
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def is_count(text: str) -> bool:
    """Whether `text` is a whole number from 0 that is not absurd."""
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def shortened(text: str) -> str:
    """The value of a variable, for a message of one line."""
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _integer(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name, "").strip()
    if not text and default is not None:
        return default
    if not re.fullmatch(r"-?\d{1,18}", text):
        raise UsageError(f"{name}={shortened(text)!r} is not an integer", fix="start workers with torchrun or srun")
    return int(text)
