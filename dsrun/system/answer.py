"""Asking another program something: start it, wait, read what it printed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsrun.errors import MissingError, ToolError


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a finished program said; `exit_code` as Popen gives it, negative for death by a signal."""

    exit_code: int
    stdout: str
    stderr: str


def ask(
    argv: Sequence[str], *, seconds: float, changes: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Answer:
    """Run `argv` to its end with `changes` to the environment, reading nothing from stdin.

    Raises ToolError when it takes longer than `seconds` and MissingError when there is no such program.
    """
    try:
        done = subprocess.run(
            argv,
            env={**os.environ, **(changes or {})},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"{argv[0]} did not end within {seconds:g} s") from error
    except FileNotFoundError as error:
        raise MissingError(f"there is no program {argv[0]}") from error
    return Answer(exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr)
