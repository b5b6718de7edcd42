"""NCCL's flight recorder: which collective operation a rank is in, from the dump that torch writes when it hangs.

A dump is a pickle, or JSON, of one object (torch/csrc/distributed/c10d/FlightRecorder*.hpp): "entries", a list of
operations with "collective_seq_id", "profiling_name" ("nccl:all_reduce"), "state" and "process_group"; "pg_status", by
process group the numbers of the operations last enqueued, started and completed.
"""

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dsrun.system.files import parse_json

_DONE = "completed"


@dataclass(frozen=True)
class RecordedOperation:
    """The oldest operation that is not done: its name and number, in a process group ("0": of all ranks).

    `enqueued` is the number of the last operation that the rank has begun in that group.
    """

    operation: str
    number: int
    group: str
    enqueued: int


class _PlainUnpickler(pickle.Unpickler):
    """Lists, dictionaries, text and numbers only: a pickle that names anything else is rejected."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed")


def parse_dump(content: bytes) -> RecordedOperation | None:
    """What the dump of one rank says; None where it cannot be read, or no operation is waited for."""
    try:
        found = parse_json(content) if content.lstrip()[:1] == b"{" else _PlainUnpickler(io.BytesIO(content)).load()
    except Exception:  # damaged pickles raise anything
        return None
    entries = found.get("entries") if isinstance(found, Mapping) else None
    entries = [each for each in entries if isinstance(each, Mapping)] if isinstance(entries, list) else []
    waiting = [each for each in entries if each.get("state") != _DONE and not each.get("is_p2p")]
    numbered = [each for each in waiting if isinstance(each.get("collective_seq_id"), int)]
    if not numbered:
        return None
    # torch numbers process groups as they are made, so the one of all ranks is 0.
    first = min(numbered, key=lambda each: (_group(each) != "0", each["collective_seq_id"]))
    number, group = first["collective_seq_id"], _group(first)
    same = [each["collective_seq_id"] for each in numbered if _group(each) == group]
    # all_gather_into_tensor is "nccl:_all_gather_base" there.
    operation = str(first.get("profiling_name", "")).rpartition(":")[2].removeprefix("_") or "a collective operation"
    return RecordedOperation(operation=operation, number=number, group=group, enqueued=max(same))


def _group(entry: Mapping[str, Any]) -> str:
    """The name of an operation's process group; torch writes a pair of name and description."""
    named = entry.get("process_group")
    return str(named[0]) if isinstance(named, (list, tuple)) and named else str(entry.get("pg_id", "0"))
