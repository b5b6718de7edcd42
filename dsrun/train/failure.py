"""How a worker tells why it failed, so that the launcher prints one line and not torchrun's table."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from pathlib import Path

from dsrun.errors import DsrunError

logger = logging.getLogger(__name__)

FOLDER_VARIABLE = "DSRUN_FAILURES"


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


def record(error: BaseException, *, rank: int, log: Path | None) -> tuple[int, str]:
    """Write the failure where the launcher looks for it; returns `explain(error)`."""
    code, message = explain(error)
    if log is not None:
        logger.error("rank %d failed", rank, exc_info=error)
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        facts = {
            "rank": rank,
            "exit_code": code,
            "message": message,
            "time": time.time(),
            "log": str(log) if log else None,
            "expected": isinstance(error, DsrunError),
        }
        partial = Path(folder) / f".rank-{rank}"
        partial.write_text(json.dumps(facts))
        partial.rename(Path(folder) / f"rank-{rank}.json")
    return code, message


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
