"""Running a program on another machine: in a SLURM allocation through srun, elsewhere through ssh."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dsrun.errors import MissingError
from dsrun.system.answer import Answer, ask

Way = Literal["srun", "ssh"]

# BatchMode: a question for a password would hang where nobody sees it.
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
# --overlap: the allocation's GPUs and processors may be in use by a step already.
_SRUN = ("srun", "--overlap", "--nodes=1", "--ntasks=1", "--quiet")


def way_here(environ: Mapping[str, str] | None = None) -> Way:
    """How nodes are reached from here: srun inside a SLURM allocation, else ssh."""
    environ = os.environ if environ is None else environ
    return "srun" if environ.get("SLURM_JOB_ID") and shutil.which("srun") else "ssh"


@dataclass(frozen=True)
class Node:
    """A machine and the way to it."""

    name: str
    way: Way

    def argv(self, command: Sequence[str]) -> list[str]:
        """What runs `command` there. ssh hands one line to the login shell; srun passes the words as they are."""
        if self.way == "srun":
            return [*_SRUN, f"--nodelist={self.name}", *command]
        return [*_SSH, self.name, shlex.join(command)]

    def run(self, command: Sequence[str], *, seconds: float, feed: Path | None = None) -> Answer:
        """Run `command` there with the local file `feed` for stdin.

        Raises ToolError after `seconds`, MissingError when the way itself is not installed here.
        """
        return ask(self.argv(command), seconds=seconds, feed=feed)


def broadcast(source: Path, target: str, *, seconds: float) -> Answer:
    """Copy a file to `target` on every node of this SLURM allocation, passed on from node to node.

    Raises ToolError after `seconds`, MissingError without sbcast.
    """
    if shutil.which("sbcast") is None:
        raise MissingError("sbcast is not installed here")
    return ask(["sbcast", "--force", str(source), target], seconds=seconds)
