"""Asking another program something: start it, wait, read what it printed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dsrun.errors import MissingError, ToolError


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a finished program said; `exit_code` as Popen gives it, negative for death by a signal."""

    exit_code: int
    stdout: str
    stderr: str


def ask(
    argv: Sequence[str],
    *,
    seconds: float,
    changes: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    feed: Path | None = None,
) -> Answer:
    """Run `argv` to its end with `changes` to the environment; its stdin is the file `feed`, or nothing.

    Raises ToolError when it takes longer than `seconds` and MissingError when there is no such program.
    """
    with feed.open("rb") if feed else nullcontext(subprocess.DEVNULL) as stdin:
        return _answer(argv, stdin, seconds, {**os.environ, **(changes or {})}, cwd)


def _answer(
    argv: Sequence[str], stdin: IO[bytes] | int, seconds: float, env: Mapping[str, str], cwd: Path | None
) -> Answer:
    try:
        done = subprocess.run(
            argv,
            env=env,
            cwd=cwd,
            stdin=stdin,
            capture_output=True,
            text=True,
            errors="replace",  # what a node's login shell prints need not be UTF-8
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"{argv[0]} did not end within {seconds:g} s") from error
    except FileNotFoundError as error:
        raise MissingError(f"there is no program {argv[0]}") from error
    return Answer(exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr)
