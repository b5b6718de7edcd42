"""A model as transformers builds it on the meta device, in a child process."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from dsrun.errors import ToolError
from dsrun.system.process.proc import capture
from dsrun.zero.memory.model.architecture import LayerWeight

COUNTER = "dsrun.train.model.zero_auto"
SECONDS = 300.0
RAISED = re.compile(r"[\w.]+(Error|Exception): \S")
"""The line of a traceback that names the exception."""
REASON = 300
"""Letters of it that are shown."""


def on_meta_device(folder: Path) -> tuple[tuple[LayerWeight, ...], dict[str, Any]]:
    """Every tensor of the model, and its settings with transformers' defaults, from a process that may load torch.

    Raises ToolError when it fails.
    """
    done = capture([sys.executable, "-m", COUNTER, str(folder)], seconds=SECONDS, changes={"HF_HUB_OFFLINE": "1"})
    if done.returncode != 0:
        raise ToolError(f"counting {folder} on the meta device failed: {_reason(done.stderr)}")
    output = json.loads(done.stdout.strip().splitlines()[-1])
    tensors = tuple(LayerWeight(name, tuple(shape), kind) for name, shape, kind in output["tensors"])
    return tensors, output["config"]


def _reason(stderr: str) -> str:
    """The first line of the exception that ended a process: transformers' go on for several. One that ends in a colon
    is nothing without the next."""
    lines = stderr.strip().splitlines() or ["no output"]
    raised = [number for number, line in enumerate(lines) if RAISED.match(line)]
    if not raised:
        return lines[-1][:REASON]
    reason = lines[raised[-1]].partition(": ")[2]
    if reason.endswith(":"):
        reason = " ".join([reason, *(line.strip() for line in lines[raised[-1] + 1 :][:1])])
    return reason[:REASON]
