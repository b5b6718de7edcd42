"""What a supervisor is told by signals, by the stop file, and by other nodes."""

from __future__ import annotations

import os
import signal

import pytest

from dsrun.launch.wishes import OUTER_LOOK_S, SOMEBODY, Wishes


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
