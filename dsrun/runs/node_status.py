"""status/ in a run folder: what the supervisor of each node sees of its ranks and GPUs, every few seconds, and where
their ranks stand, on request.

Heartbeats stay on the node; this is what a monitor on another machine can read."""

import json
import re
import shutil
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Self

from dsrun.machine.gpu_samples import GpuSample
from dsrun.options import type_text
from dsrun.runs.heartbeat import StepFigures
from dsrun.runs.records import plain, write_json_atomic
from dsrun.system.files import parse_json, read_bytes, replacing

FOLDER = "status"
SILENT_S = 60.0
"""Least seconds without a heartbeat that are worth a line; a slow step may take that long."""
_STEPS = 5
_ANSWER = re.compile(r"node-\d+\.json")


@dataclass(frozen=True, kw_only=True)
class RankProgress(StepFigures):
    """One rank at the time of its node's status; `silent_s`: seconds since its last heartbeat. A program without
    heartbeats has the phase "running" and step 0."""

    rank: int
    pid: int
    phase: str
    step: int
    silent_s: float

    @property
    def is_silent(self) -> bool:
        """Whether it has given no heartbeat for long, by its own steps."""
        return self.phase != "running" and self.silent_s > max(SILENT_S, _STEPS * (self.step_s or 0.0))

    @property
    def own_s(self) -> float | None:
        """Median seconds in data and computing: what a step takes this rank itself."""
        return None if self.data_s is None or self.compute_s is None else self.data_s + self.compute_s


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """One node of a run at `time` (ISO 8601 in UTC); host memory in bytes, `cpu` is its load from 0 to 1."""

    time: str
    host: str
    node: int
    attempt: int
    world_size: int
    ranks: tuple[RankProgress, ...] = ()
    gpus: tuple[GpuSample, ...] = ()
    cpu: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Self:
        """The inverse of `asdict`; unknown keys are ignored. Raises TypeError or ValueError for anything else."""
        values = _known(cls, found)
        ranks = tuple(RankProgress(**_known(RankProgress, each)) for each in found.get("ranks", ()))
        gpus = tuple(
            GpuSample(**{**_known(GpuSample, each), "throttled": tuple(map(str, each.get("throttled", ())))})
            for each in found.get("gpus", ())
        )
        return cls(**{**values, "ranks": ranks, "gpus": gpus})


def write_node_status(run: Path, status: NodeStatus) -> None:
    """Write the status of one node into the run folder; a reader sees the old one or this one. Raises OSError."""
    folder = run / FOLDER
    folder.mkdir(exist_ok=True)
    # Not forced to the disk: the next one comes in seconds, and the file servers of large clusters have enough to do.
    with replacing(folder / f"node-{status.node}.json") as partial:
        partial.write_text(json.dumps(plain({"version": 1, **asdict(status)})) + "\n", encoding="utf-8")


def read_node_status(run: Path) -> tuple[NodeStatus, ...]:
    """The newest status of each node, by its number; what cannot be read is left out."""
    found = []
    for file in (run / FOLDER).glob("node-*.json"):
        with suppress(OSError, ValueError, TypeError, AttributeError):
            found.append(NodeStatus.from_dict(parse_json(read_bytes(file))))
    return tuple(sorted(found, key=lambda each: each.node))


_TYPES: Mapping[str, type | tuple[type, ...]] = {"int": int, "float": (int, float), "str": str}


@cache
def _typed(kind: type) -> tuple[tuple[str, type | tuple[type, ...], bool], ...]:
    """The fields of `kind` that hold a number or a text: the name, what fits, and whether None does."""
    split = ((each.name, *type_text(each).partition(" | ")) for each in fields(kind))
    return tuple((name, _TYPES[wanted], bool(optional)) for name, wanted, _, optional in split if wanted in _TYPES)


def _known(kind: type, found: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers and texts of `found` that `kind` has. Raises TypeError for one of another type."""
    known = {name: found[name] for name, _, _ in _typed(kind) if name in found}
    for name, wanted, optional in _typed(kind):
        value = known.get(name)
        fits = isinstance(value, wanted) and not isinstance(value, bool)
        if name in known and not fits and not (value is None and optional):
            raise TypeError(f"{name} is {value!r}")
    return known


# A request to the supervisors of a running run, through its folder, to write down where their ranks stand.
#
# status/stacks/ID/ is the request: a new folder. Each supervisor lists status/stacks about once a second, writes the
# files of its ranks into a new one, and then node-N.json, which says that it has answered. A listing, and names that
# are never used twice, are what a network file system does not answer from its cache.


@dataclass(frozen=True, kw_only=True)
class StacksAnswer:
    """Node `node` has written the files of its `ranks`."""

    node: int
    host: str
    ranks: tuple[int, ...]


def requests_folder(run: Path) -> Path:
    """The folder of all requests to a run."""
    return run / FOLDER / "stacks"


def request_stacks(run: Path) -> Path:
    """Ask all supervisors; returns the folder of their answers. Earlier requests are removed. Raises OSError."""
    folder = requests_folder(run)
    folder.mkdir(parents=True, exist_ok=True)
    for earlier in folder.iterdir():
        shutil.rmtree(earlier, ignore_errors=True)
    mine = folder / uuid.uuid4().hex[:12]
    mine.mkdir()
    # Supervisors of another user's run cannot write otherwise.
    mine.chmod(folder.stat().st_mode & 0o777)
    return mine


def open_requests(run: Path) -> set[Path]:
    """The folders of the requests there are; a supervisor answers those that it has not seen before."""
    with suppress(OSError):
        return {entry for entry in requests_folder(run).iterdir() if entry.is_dir()}
    return set()


def write_answer(request: Path, answer: StacksAnswer) -> None:
    """Tell that this node has answered. Raises OSError."""
    write_json_atomic(request / f"node-{answer.node}.json", {"version": 1, **asdict(answer)})


def read_answers(request: Path) -> Mapping[int, StacksAnswer]:
    """The nodes that have answered so far, by their number."""
    found = {}
    for file in request.iterdir():
        if _ANSWER.fullmatch(file.name):
            with suppress(OSError, ValueError, TypeError, KeyError):
                said = parse_json(read_bytes(file))
                answer = StacksAnswer(node=int(said["node"]), host=str(said["host"]), ranks=tuple(said["ranks"]))
                found[answer.node] = answer
    return found
