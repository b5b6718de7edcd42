"""The end of a process that Python must not take apart."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import NoReturn


def end(code: int) -> NoReturn:
    """End this process now, with what it printed written out, whoever still reads it.

    Threads of NCCL, wandb and data loaders can keep a finished interpreter alive for minutes. Those of gloo, which live
    as long as anybody holds a process group (DeepSpeed does), can come to drop a tensor while it is taken apart, and
    then abort a process whose work is done: "terminate called without an active exception".
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
