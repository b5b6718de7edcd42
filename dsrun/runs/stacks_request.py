"""A request to the supervisors of a running run, through its folder, to write down where their ranks stand.

status/stacks/ID/ is the request: a new folder. Each supervisor lists status/stacks about once a second, writes the
files of its ranks into a new one, and then node-N.json, which says that it has answered. A listing, and names that are
never used twice, are what a network file system does not answer from its cache.
"""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from dsrun.runs.node_status import FOLDER
from dsrun.runs.records import write_json_atomic
from dsrun.system.files import parse_json

_ANSWER = re.compile(r"node-\d+\.json")


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
                said = parse_json(file.read_text(encoding="utf-8"))
                answer = StacksAnswer(node=int(said["node"]), host=str(said["host"]), ranks=tuple(said["ranks"]))
                found[answer.node] = answer
    return found
