"""Help, version and errors of `dsrun`, and what it must not import for them."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import dsrun as package
from dsrun.cli.main import COMMANDS

HEAVY = {
    "torch",
    "transformers",
    "deepspeed",
    "numpy",
    "pydantic",
    "datasets",
    "peft",
    "accelerate",
    "pandas",
    "pyarrow",
}
# `-X importtime` writes `import time:  self us | cumulative | name`, the name indented by its depth.
IMPORTED = re.compile(r"^import time:\s+\d+ \|\s+\d+ \|\s+(\S+)$", re.MULTILINE)
ESCAPE = "\x1b"

HELP = [["--help"], ["-h"], *([name, "--help"] for name in COMMANDS)]


@pytest.mark.parametrize("args", [*HELP, ["--version"]], ids=" ".join)
def test_help_and_version_import_no_heavy_library(dsrun, args):
    done = dsrun(*args, python=("-X", "importtime"))
    imported = {name.partition(".")[0] for name in IMPORTED.findall(done.stderr)}
    assert "click" in imported
    assert imported & HEAVY == set()
    assert done.returncode == 0


# Modules in a command's process, Python's own 30 and click's 60 included. The goal is 120 for all of them.
MODULES = {"--help": 120, "render-slurm --help": 270, "config --help": 215, "plan --help": 245}
COUNTED = """
import atexit, sys
from dsrun.cli.main import main
atexit.register(lambda: sys.stderr.write(str(len(sys.modules))))
main()
"""


@pytest.mark.parametrize("command", MODULES)
def test_help_imports_few_modules(command):
    argv = [sys.executable, "-c", COUNTED, *command.split()]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert int(done.stderr) <= MODULES[command]


@pytest.mark.parametrize("args", HELP, ids=" ".join)
def test_help_goes_to_stdout(dsrun, args):
    done = dsrun(*args)
    assert done.returncode == 0
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) > 5
    assert ESCAPE not in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_command_shows_usage(dsrun, name):
    assert f"Usage: dsrun {name} " in dsrun(name, "--help").stdout


def test_help_lists_every_command(dsrun):
    text = dsrun("--help").stdout
    for name, (_, line) in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(line)}$", text, re.MULTILINE)


def test_no_arguments_prints_help(dsrun):
    bare, explicit = dsrun(), dsrun("--help")
    assert bare.stdout == explicit.stdout
    assert bare.stderr == ""
    assert bare.returncode == 0


def test_version(dsrun):
    done = dsrun("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"dsrun, version {package.__version__}\n", "")


@pytest.mark.parametrize(
    ("typed", "hint"),
    [("trian", "did you mean `dsrun train`?"), ("prepaer", "did you mean `dsrun prepare`?")],
)
def test_unknown_command_suggests_nearest(dsrun, typed, hint):
    done = dsrun(typed, "--zero", "2")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: there is no command {typed!r} ({hint})\n"


def test_unknown_command_lists_all(dsrun):
    done = dsrun("frobnicate")
    assert done.returncode == 2
    assert done.stderr == f"error: there is no command 'frobnicate' (commands: {', '.join(COMMANDS)})\n"


def test_unknown_option_is_one_line_on_stderr(dsrun):
    done = dsrun("--nonsense")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"error: .*--nonsense.*\n", done.stderr)


def test_colours_on_a_terminal_only(on_terminal, dsrun):
    assert ESCAPE in on_terminal("trian")
    assert ESCAPE not in dsrun("trian").stderr


def test_no_color_variable_on_terminal(on_terminal, environ):
    environ["NO_COLOR"] = "1"
    message = on_terminal("trian")
    assert "no command 'trian'" in message
    assert ESCAPE not in message
