"""Every command and sub-command without an argument, as somebody calls it who looks around."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from dsrun.cli.main import cli
from tests.cli.conftest import Dsrun

# Done, wrong usage, findings, something missing: the documented codes that a command without arguments can have.
CODES = (0, 2, 3, 4)


def commands(found: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of `found` and of all commands below it."""
    yield path
    if isinstance(found, click.Group):
        ctx = click.Context(found)
        for name in found.list_commands(ctx):
            below = found.get_command(ctx, name)
            assert below is not None
            yield from commands(below, (*path, name))


@pytest.fixture
def home(tmp_path: Path, environ: dict[str, str]) -> Path:
    """An empty home, and a cache that cannot be written: `build-wheel` would compile for minutes into another."""
    folder = tmp_path / "home"
    folder.mkdir()
    (tmp_path / "file").touch()
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "TORCH_EXTENSIONS_DIR"):
        environ.pop(name, None)
    environ.update(HOME=str(folder), DSRUN_CACHE=str(tmp_path / "file"))
    return folder


@pytest.mark.parametrize("words", [*commands(cli)], ids=lambda words: " ".join(words) or "dsrun")
def test_bare_command_ends_by_itself(words: tuple[str, ...], dsrun: Dsrun, here: Path, home: Path) -> None:
    """No traceback, a documented exit code, a word about what is missing, and nothing left behind."""
    done = dsrun(*words)
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode in CODES
    assert done.stdout or done.returncode, "neither does nor refuses anything"
    if done.returncode in (2, 4):
        assert sum(line.startswith(("error: ", "Usage: ")) for line in done.stderr.splitlines()) == 1
        assert "\\n" not in done.stderr
    assert list(here.iterdir()) == list(home.iterdir()) == []


@pytest.mark.parametrize("words", [("checkpoint",), ("wheel",)], ids=" ".join)
def test_bare_group_shows_its_usage(words: tuple[str, ...], dsrun: Dsrun) -> None:
    """As its --help has it, on stderr, as wrong usage."""
    done, shown = dsrun(*words), dsrun(*words, "--help")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == shown.stdout


@pytest.mark.parametrize("command", ["train", "prepare"])
def test_bare_training_names_two_ways_to_go_on(command: str, dsrun: Dsrun) -> None:
    done = dsrun(command)
    assert (done.returncode, done.stdout) == (2, "")
    missing, demo, init = done.stderr.splitlines()
    assert "--model" in missing
    assert dsrun(*demo.split("  ")[1].split()[1:], "--dry-run").returncode == 0
    assert init.split()[:2] == ["dsrun", "init"]
