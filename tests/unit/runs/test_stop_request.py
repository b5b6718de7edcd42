"""Requests to stop: what they hold, how they are read, and which of several counts."""

from __future__ import annotations

import pytest

from dsrun.runs.heartbeat import StopRequest, first_request, read_stop_file, write_stop_file


def test_first_request_in_stop_file_stays(tmp_path):
    file = tmp_path / "stop"
    first = StopRequest.now("SIGTERM", rank=3)
    write_stop_file(file, first)
    write_stop_file(file, StopRequest.now("SIGUSR1"))
    assert read_stop_file(file) == first
    assert str(first) == f"SIGTERM to rank 3 on {first.host}"


def test_request_names_another_machine():
    """Who waits on one node wants to know which one was told to stop."""
    assert str(StopRequest.now("SIGTERM")) == "SIGTERM"
    assert str(StopRequest("SIGTERM", host="gpu07")) == "SIGTERM to gpu07"


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("", StopRequest("a signal")),
        ("SIGUSR1\n", StopRequest("SIGUSR1")),
        ("null", StopRequest()),
        ("[1]", StopRequest()),
        ('{"signal": 7, "rank": "x", "host": null}', StopRequest()),
        ('{"signal": "SIGTERM", "rank": 0, "more": 1}', StopRequest("SIGTERM", rank=0)),
    ],
)
def test_stop_file_of_other_programs(tmp_path, text, request_):
    file = tmp_path / "stop"
    file.write_text(text)
    assert read_stop_file(file) == request_


def test_earliest_request_counts():
    late, early = (StopRequest("SIGTERM", rank, "host", time) for rank, time in ((0, "2026-02"), (1, "2026-01")))
    assert first_request([None, late, early, StopRequest("SIGUSR1")]) == early
    assert first_request([None, StopRequest("SIGUSR1")]) == StopRequest("SIGUSR1")
    assert first_request([None]) == StopRequest()
