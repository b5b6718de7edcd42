"""How a worker tells why it failed or left, so that the launcher prints one line and not torchrun's table."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsrun.errors import DsrunError
from dsrun.system import variables
from dsrun.system.files import replacing

logger = logging.getLogger(__name__)


@dataclass
class Progress:
    """How far this process is, for whoever has to tell of its end: optimizer steps done, None before training; the step
    of the newest checkpoint; and the samples per forward pass, None before that is decided."""

    step: int | None = None
    saved: int | None = None
    micro_batch: int | None = None


def explain(error: BaseException) -> tuple[int, str]:
    """The exit code and the one line for whatever ended a worker."""
    if isinstance(error, DsrunError):
        return error.exit_code, str(error)
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT, "interrupted"
    if isinstance(error, SystemExit):
        return int(error.code or 0), "ended by a signal"
    words = str(error).strip().splitlines()
    first = words[0] if words else ""
    advice = _advice(type(error).__name__, str(error))
    return 1, f"{type(error).__name__}: {first[:300]}" + (f" ({advice})" if advice else "")


def record(error: BaseException, *, rank: int, log: Path | None, progress: Progress) -> tuple[int, str]:
    """Write the failure where the launcher looks for it; returns `explain(error)`."""
    happened = time.time()
    code, message = explain(error)
    if log is not None:
        logger.error("rank %d failed", rank, exc_info=error)
    cause, consequence = _diagnosed(error)
    facts = {
        "rank": rank,
        "exit_code": code,
        "message": message,
        "time": happened,
        "log": str(log) if log else None,
        "expected": isinstance(error, DsrunError),
        "cause": cause,
        # The rank lost its peers: whoever failed before it knows why.
        "consequence": consequence,
        "trace": trace_of(error),
        "step": progress.step,
        "micro_batch": progress.micro_batch,
        "rollback": bool(getattr(error, "rollback", False)),
    }
    _write(f"rank-{rank}.json", facts)
    return code, message


def interrupted(step: int | None = None, path: str | None = None) -> None:
    """Tell the launcher that this run left because it was told to: after optimizer step `step`, which the checkpoint
    `path` of the run folder holds, or before training (None)."""
    _write("interrupted.json", {"step": step, "path": path})


def cause_of(error: BaseException) -> str | None:
    """The code of docs/diagnose.md for `error`, None where nothing is known of it."""
    return _diagnosed(error)[0]


def _diagnosed(error: BaseException) -> tuple[str | None, bool]:
    """The code, and whether such an error only follows from another rank's."""
    if isinstance(error, DsrunError):
        return error.cause, False
    if not isinstance(error, Exception):
        return None, False  # ended from outside
    # Only now, as reading the rules takes time and most runs do not fail.
    from dsrun.diagnosis.classify import classify

    diagnosis = classify("".join(traceback.format_exception(error)))
    return (diagnosis.cause, diagnosis.weight == "consequence") if diagnosis else (None, False)


def trace_of(error: BaseException) -> str:
    """A digest of where `error` comes from: the same for the same crash in another attempt, whatever the addresses and
    numbers in its message."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{frame.filename}:{frame.name}:{frame.lineno}" for frame in frames]
    return hashlib.sha256("\n".join([type(error).__qualname__, *places]).encode()).hexdigest()


def _write(name: str, facts: dict[str, Any]) -> None:
    folder = os.environ.get(variables.FAILURES)
    if not folder:
        return
    try:
        with replacing(Path(folder) / name) as partial:
            partial.write_text(json.dumps(facts))
    except OSError:
        # The launcher is gone, and its folder with it; what happened stands in the log.
        logger.exception("could not write %s", Path(folder) / name)


def _advice(kind: str, text: str) -> str:
    """What helps with the failures everybody meets."""
    if "OutOfMemory" in kind or "out of memory" in text:
        return "halve --micro-batch-size, add --gradient-checkpointing, or raise --zero"
    if "DataLoader worker" in text and ("bus error" in text or "shm" in text):
        return "/dev/shm is full: --dataloader-num-workers 0, or more shared memory for the container (--shm-size)"
    if "DataLoader worker" in text and ("killed" in text or "exited unexpectedly" in text):
        return "a data loader process was killed, usually for memory: --dataloader-num-workers 0 or 1"
    if "No space left" in text:
        return "free some disk space or choose another --output"
    return ""
