"""What `dsrun` says without doing anything, and what it must not load to say it."""

from __future__ import annotations

import re

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
def test_answers_without_loading_anything_heavy(dsrun, args):
    done = dsrun(*args, python=("-X", "importtime"))
    imported = {name.partition(".")[0] for name in IMPORTED.findall(done.stderr)}
    assert "click" in imported
    assert imported & HEAVY == set()
    assert done.returncode == 0


@pytest.mark.parametrize("args", HELP, ids=" ".join)
def test_help_is_the_product_and_goes_to_stdout(dsrun, args):
    done = dsrun(*args)
    assert done.returncode == 0
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) > 5
    assert ESCAPE not in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_says_how_it_is_called(dsrun, name):
    assert f"Usage: dsrun {name} " in dsrun(name, "--help").stdout


def test_help_names_every_command_with_its_line(dsrun):
    text = dsrun("--help").stdout
    for name, (_, line) in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(line)}$", text, re.MULTILINE)


def test_called_without_arguments_it_prints_its_help(dsrun):
    bare, asked = dsrun(), dsrun("--help")
    assert bare.stdout == asked.stdout
    assert bare.stderr == ""
    assert bare.returncode == 0


def test_version(dsrun):
    done = dsrun("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"dsrun, version {package.__version__}\n", "")


@pytest.mark.parametrize(
    ("typed", "hint"),
    [("trian", "did you mean `dsrun train`?"), ("prepaer", "did you mean `dsrun prepare`?")],
)
def test_an_unknown_command_is_answered_with_the_nearest(dsrun, typed, hint):
    done = dsrun(typed, "--zero", "2")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: there is no command {typed!r} ({hint})\n"


def test_a_command_like_no_other_is_answered_with_all_of_them(dsrun):
    done = dsrun("frobnicate")
    assert done.returncode == 2
    assert done.stderr == f"error: there is no command 'frobnicate' (commands: {', '.join(COMMANDS)})\n"


def test_an_unknown_option_is_one_line_on_stderr(dsrun):
    done = dsrun("--nonsense")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"error: .*--nonsense.*\n", done.stderr)


def test_colours_on_a_terminal_only(on_terminal, dsrun):
    assert ESCAPE in on_terminal("trian")
    assert ESCAPE not in dsrun("trian").stderr


def test_no_color_is_honoured_on_a_terminal(on_terminal, environ):
    environ["NO_COLOR"] = "1"
    said = on_terminal("trian")
    assert "no command 'trian'" in said
    assert ESCAPE not in said
