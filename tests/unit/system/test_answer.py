"""Asking real programs."""

from __future__ import annotations

import sys

import pytest

from dsrun.errors import MissingError, ToolError
from dsrun.system.answer import ask


def test_what_a_program_says_and_how_it_ends(tmp_path):
    code = "import os, sys; print(os.environ['WORD'], os.getcwd()); print('no', file=sys.stderr); sys.exit(3)"
    answer = ask([sys.executable, "-c", code], seconds=60, changes={"WORD": "yes"}, cwd=tmp_path)
    assert (answer.exit_code, answer.stdout, answer.stderr) == (3, f"yes {tmp_path}\n", "no\n")


def test_it_gets_nothing_to_read():
    answer = ask([sys.executable, "-c", "import sys; print(repr(sys.stdin.read()))"], seconds=60)
    assert answer.stdout == "''\n"


def test_death_by_a_signal_is_told():
    answer = ask([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], seconds=60)
    assert answer.exit_code == -9


def test_patience_ends():
    with pytest.raises(ToolError, match="did not end within"):
        ask([sys.executable, "-c", "import time; time.sleep(60)"], seconds=0.2)


def test_a_missing_program():
    with pytest.raises(MissingError, match="no program"):
        ask(["no-such-program-here"], seconds=1)
