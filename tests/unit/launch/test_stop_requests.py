"""Requests to stop: by signals, by the stop file, and by other nodes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dsrun.launch.signals import OUTER_POLL_S, StopRequests
from dsrun.runs.heartbeat import UNKNOWN_SIGNAL, StopRequest, read_stop_file

ROOT = Path(__file__).parents[3]


@pytest.fixture
def announced():
    return []


@pytest.fixture
def stop_requests(tmp_path, announced):
    return StopRequests(tmp_path / "stop", announced.append)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_first_stop_signal_requests_save(stop_requests, announced, signum):
    """The first signal asks to save."""
    assert stop_requests.stop() is None
    stop_requests.handle(signum)
    name = signal.Signals(signum).name
    request = stop_requests.stop()
    assert (request.signal, request.rank, request.host) == (name, None, socket.gethostname())
    assert (stop_requests.force_quit, stop_requests.interrupted) == (None, False)
    assert announced == [request] == [read_stop_file(stop_requests.file)]


@pytest.mark.parametrize(
    ("signals", "force_quit"),
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
def test_stop_signal_sequences_that_force_quit(stop_requests, signals, force_quit):
    for name in signals:
        stop_requests.handle(signal.Signals[name])
    assert stop_requests.force_quit == (signal.Signals[force_quit] if force_quit else None)


def test_stop_signal_already_in_stop_file_not_counted_twice(stop_requests, announced):
    """The scheduler signals all processes of a job: the agent's word may be here before the signal itself."""
    stop_requests.file.write_text("SIGTERM")
    assert stop_requests.stop() == StopRequest("SIGTERM")
    stop_requests.handle(signal.SIGTERM)
    assert stop_requests.force_quit is None
    assert announced == [StopRequest("SIGTERM")]
    stop_requests.handle(signal.SIGTERM)
    assert stop_requests.force_quit == signal.SIGTERM


def test_empty_stop_file_requests_stop(stop_requests):
    """An empty stop file requests a stop all the same."""
    stop_requests.file.touch()
    assert str(stop_requests.stop()) == UNKNOWN_SIGNAL


def test_outer_stop_file_polled(tmp_path, announced, monkeypatch):
    """The stop file of an outer supervisor is polled now and then."""
    outer = tmp_path / "outer"
    stop_requests = StopRequests(tmp_path / "stop", announced.append, outer=outer)
    clock = [100.0]
    monkeypatch.setattr("dsrun.launch.signals.time.monotonic", lambda: clock[0])
    assert stop_requests.stop() is None
    outer.write_text("SIGUSR1")
    assert stop_requests.stop() is None
    clock[0] += OUTER_POLL_S
    assert stop_requests.stop() == StopRequest("SIGUSR1")
    assert announced == [StopRequest("SIGUSR1")]
    assert read_stop_file(stop_requests.file) == StopRequest("SIGUSR1")


def test_outer_stop_file_of_program_is_no_request(tmp_path, announced):
    """A program that gets the signals itself was asked to stop; the supervisor was not."""
    outer = tmp_path / "outer"
    stop_requests = StopRequests(tmp_path / "stop", announced.append, outer=outer, to_program=True)
    outer.write_text("SIGUSR1")
    assert stop_requests.stop() is None
    assert stop_requests.program_asked()
    assert (announced, stop_requests.file.exists()) == ([], False)
    stop_requests.handle(signal.SIGHUP)
    assert str(stop_requests.stop()).startswith("SIGHUP")
    assert not StopRequests(tmp_path / "stop", announced.append, outer=outer).program_asked()


@pytest.mark.parametrize("outer", ["", "x" * 300])
def test_unreadable_outer_stop_file_ignored(tmp_path, announced, outer):
    """As on a file server that does not answer; here a folder, and a name that is too long."""
    assert StopRequests(tmp_path / "stop", announced.append, outer=tmp_path / outer).stop() is None


def test_stop_file_with_invalid_utf8(stop_requests):
    stop_requests.file.write_bytes(b"\xff")
    assert str(stop_requests.stop()) == "\N{REPLACEMENT CHARACTER}"


# A process that may write nothing into files, as on a full disk.
FULL = """
import resource, sys
from pathlib import Path
from dsrun.launch.signals import StopRequests
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
stop_requests = StopRequests(Path(sys.argv[1]), print)
stop_requests.handle(15)
print(stop_requests.stop(), stop_requests.file.exists())
"""


@pytest.mark.parametrize("name", ["stop", "no such folder/stop"])
def test_stop_request_survives_full_disk(tmp_path, name):
    """A stop request survives a full disk."""
    argv = [sys.executable, "-c", FULL, str(tmp_path / name)]
    done = subprocess.run(
        argv, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["SIGTERM", f"SIGTERM {name == 'stop'}"], done.stderr


def test_stop_request_of_other_node_not_announced_again(stop_requests, announced):
    """What another node has announced is not announced again."""
    stop_requests.add(StopRequest("SIGUSR1"), announce=False)
    assert stop_requests.stop() == StopRequest("SIGUSR1")
    assert announced == []
    assert stop_requests.file.exists()


def test_signal_handlers_restored_and_ignored_signals_kept(stop_requests):
    """Signals are handled inside the context only, and ignored ones stay ignored."""
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_requests.handling_signals():
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGUSR1)
            assert stop_requests.stop().signal == "SIGUSR1"
        assert signal.getsignal(signal.SIGTERM) == before[signal.SIGTERM]
    finally:
        signal.signal(signal.SIGHUP, before[signal.SIGHUP])
