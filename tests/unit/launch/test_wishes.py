"""What a supervisor is told by signals, by the stop file, and by other nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dsrun.launch.wishes import OUTER_LOOK_S, SOMEBODY, Wishes

ROOT = Path(__file__).parents[3]


@pytest.fixture
def announced():
    return []


@pytest.fixture
def wishes(tmp_path, announced):
    return Wishes(tmp_path / "stop", announced.append)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_the_first_signal_asks_to_save(wishes, announced, signum):
    assert wishes.stop() is None
    wishes.heed(signum)
    name = signal.Signals(signum).name
    assert (wishes.stop(), wishes.at_once, wishes.interrupted) == (name, None, False)
    assert announced == [name]
    assert wishes.file.read_text() == name


@pytest.mark.parametrize(
    ("signals", "at_once"),
    [
        (["SIGTERM", "SIGTERM"], "SIGTERM"),
        (["SIGUSR1", "SIGTERM"], "SIGTERM"),
        (["SIGTERM", "SIGINT"], "SIGINT"),
        (["SIGINT", "SIGINT"], "SIGINT"),
        (["SIGINT", "SIGTERM"], "SIGTERM"),
        (["SIGUSR1", "SIGUSR1"], None),
        (["SIGTERM", "SIGUSR1"], None),
        (["SIGINT"], None),
    ],
)
def test_what_ends_at_once(wishes, signals, at_once):
    for name in signals:
        wishes.heed(signal.Signals[name])
    assert wishes.at_once == (signal.Signals[at_once] if at_once else None)


def test_a_signal_that_came_another_way_before_is_not_the_first_of_two(wishes, announced):
    """The scheduler signals all processes of a job: the agent's word may be here before the signal itself."""
    wishes.file.write_text("SIGTERM")
    assert wishes.stop() == "SIGTERM"
    wishes.heed(signal.SIGTERM)
    assert wishes.at_once is None
    assert announced == ["SIGTERM"]
    wishes.heed(signal.SIGTERM)
    assert wishes.at_once == signal.SIGTERM


def test_a_file_without_a_word(wishes):
    wishes.file.touch()
    assert wishes.stop() == SOMEBODY


def test_the_file_of_whoever_started_it_is_looked_at_now_and_then(tmp_path, announced, monkeypatch):
    outer = tmp_path / "outer"
    wishes = Wishes(tmp_path / "stop", announced.append, outer=outer)
    clock = [100.0]
    monkeypatch.setattr("dsrun.launch.wishes.time.monotonic", lambda: clock[0])
    assert wishes.stop() is None
    outer.write_text("SIGUSR1")
    assert wishes.stop() is None
    clock[0] += OUTER_LOOK_S
    assert wishes.stop() == "SIGUSR1"
    assert announced == ["SIGUSR1"]
    assert wishes.file.read_text() == "SIGUSR1"


@pytest.mark.parametrize("outer", ["", "x" * 300])
def test_a_file_that_cannot_be_looked_at_is_none(tmp_path, announced, outer):
    """As on a file server that does not answer; here a folder, and a name that is too long."""
    assert Wishes(tmp_path / "stop", announced.append, outer=tmp_path / outer).stop() is None


def test_a_file_of_other_bytes(wishes):
    wishes.file.write_bytes(b"\xff")
    assert wishes.stop() == "\N{REPLACEMENT CHARACTER}"


# A process that may write nothing into files, as on a full disk.
FULL = """
import resource, sys
from pathlib import Path
from dsrun.launch.wishes import Wishes
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
wishes = Wishes(Path(sys.argv[1]), print)
wishes.heed(15)
print(wishes.stop(), wishes.file.exists())
"""


@pytest.mark.parametrize("name", ["stop", "no such folder/stop"])
def test_a_wish_survives_a_full_disk(tmp_path, name):
    argv = [sys.executable, "-c", FULL, str(tmp_path / name)]
    done = subprocess.run(
        argv, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["SIGTERM", f"SIGTERM {name == 'stop'}"], done.stderr


def test_what_another_node_announced_is_not_announced_again(wishes, announced):
    wishes.ask("SIGUSR1", announce=False)
    assert wishes.stop() == "SIGUSR1"
    assert announced == []
    assert wishes.file.exists()


def test_signals_are_heeded_inside_only_and_ignored_ones_stay_ignored(wishes):
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with wishes.listening():
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGUSR1)
            assert wishes.stop() == "SIGUSR1"
        assert signal.getsignal(signal.SIGTERM) == before[signal.SIGTERM]
    finally:
        signal.signal(signal.SIGHUP, before[signal.SIGHUP])
