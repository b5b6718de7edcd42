"""Ctrl-C in the first moments of a command: one line, and 130."""

from __future__ import annotations

import subprocess
import sys

import pytest

# As the console script, with Ctrl-C in the import of a module of ours or of what we build on.
AT_IMPORT = """
import os, signal, sys
import importlib.abc
module, how = sys.argv[1:]

class Interrupts(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == module:
            sys.meta_path.remove(self)
            if how == "swallowed":
                try:
                    os.kill(os.getpid(), signal.SIGINT)
                except KeyboardInterrupt as error:
                    raise RuntimeError("Error calling __set_name__") from error
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
"""
CONSOLE_SCRIPT = """
sys.argv[:] = ["/env/bin/dsrun", "render-slurm", "--nodes", "2"]
from dsrun.__main__ import main
main()
"""
EXPORT = """
import runpy
runpy.run_module("dsrun.train.export", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("program", "module", "how"),
    [
        (CONSOLE_SCRIPT, "dsrun.cli.main", "raised"),
        (CONSOLE_SCRIPT, "click", "raised"),
        (CONSOLE_SCRIPT, "dsrun.cli.render.training", "raised"),
        (CONSOLE_SCRIPT, "dsrun.cli.render.training", "swallowed"),
        (EXPORT, "torch", "raised"),
        (EXPORT, "torch", "swallowed"),
    ],
)
def test_ctrl_c_while_a_command_loads_is_one_line(program, module, how, here):
    argv = [sys.executable, "-c", AT_IMPORT + program, module, how]
    done = subprocess.run(argv, cwd=here, capture_output=True, text=True, check=False)
    # click begins a new line, as a terminal shows ^C on the present one.
    said = [line for line in done.stderr.splitlines() if line and not line.startswith("note: ")]
    assert (done.returncode, done.stdout, said) == (130, "", ["error: interrupted"])


def test_error_of_ours_is_not_taken_for_ctrl_c(dsrun):
    """An exception that no Ctrl-C has caused is shown as it is."""
    program = "import dsrun.cli.main as m\nm.cli.main = lambda *_, **__: 1 / 0\nm.main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
