"""Running real programs and capturing their output."""

from __future__ import annotations

import sys

import pytest

from dsrun.errors import MissingError, ToolError
from dsrun.system.process.proc import capture


def test_captured_output_and_exit_code(tmp_path):
    code = "import os, sys; print(os.environ['WORD'], os.getcwd()); print('no', file=sys.stderr); sys.exit(3)"
    answer = capture([sys.executable, "-c", code], seconds=60, changes={"WORD": "yes"}, cwd=tmp_path)
    assert (answer.returncode, answer.stdout, answer.stderr) == (3, f"yes {tmp_path}\n", "no\n")


def test_captured_program_has_empty_stdin():
    answer = capture([sys.executable, "-c", "import sys; print(repr(sys.stdin.read()))"], seconds=60)
    assert answer.stdout == "''\n"


def test_captured_program_killed_by_signal():
    answer = capture([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], seconds=60)
    assert answer.returncode == -9


def test_captured_program_timeout():
    with pytest.raises(ToolError, match="did not end within"):
        capture([sys.executable, "-c", "import time; time.sleep(60)"], seconds=0.2)


def test_captured_program_missing():
    with pytest.raises(MissingError, match="no program"):
        capture(["no-such-program-here"], seconds=1)
