"""Lines of the builds as they come."""

from __future__ import annotations

import errno
import io
import os
import queue
import threading

import pytest

from dsrun.wheel.compile.output import BuildTracker, follow

COMPILED = "a\t[1/2] c++ -c one.cpp -o one.o\n"
BEGIN, END = "a\t!begin\n", "a\t!end 0\n"


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "no space")


def followed(text, log=None):
    """The events that `watch` saw of builds that print `text` at once, the log, and the exit codes."""
    read, write = os.pipe()
    os.write(write, text.encode())
    os.close(write)
    seen, codes, log = [], {}, log or io.StringIO()
    tracker = BuildTracker(weights={"a": 1.0, "b": 1.0}, libraries={"a": 1, "b": 1})
    with os.fdopen(read, "rb") as pipe:
        follow(pipe, log, tracker, lambda event, _: seen.append(event), codes)
    return [(event.kind, event.label, event.file) for event in seen], log, codes, tracker


def test_build_events_and_log_are_complete():
    """Every event is seen and every line logged."""
    text = f"{BEGIN}a\tcopying\n{COMPILED}b\t!begin\n{END}no label\nb\t!end 3\nb\twithout an end"
    seen, log, codes, _ = followed(text)
    assert seen == [
        ("begin", "a", ""), ("file", "a", "one.cpp"), ("begin", "b", ""), ("end", "a", ""), ("end", "b", ""),
    ]  # fmt: skip
    assert log.getvalue() == text
    assert codes == {"a": 0, "b": 3}


def test_finished_file_is_reported_at_once():
    """A finished file is reported before the next line arrives."""
    read, write = os.pipe()
    seen: queue.Queue[str] = queue.Queue()
    tracker = BuildTracker(weights={"a": 1.0}, libraries={"a": 1})
    with os.fdopen(read, "rb") as pipe:
        words = (pipe, io.StringIO(), tracker, lambda event, _: seen.put(event.kind), {})
        thread = threading.Thread(target=follow, args=words, daemon=True)
        thread.start()
        try:
            os.write(write, COMPILED.encode())
            assert seen.get(timeout=60) == "file"
        finally:
            os.close(write)
            thread.join(60)


def test_full_disk_does_not_stop_reading_build_output():
    seen, _, codes, _ = followed(BEGIN + END, Full())
    assert [kind for kind, *_ in seen] == ["begin", "end"]
    assert codes == {"a": 0, "": errno.ENOSPC}


def test_build_output_of_invalid_utf8():
    read, write = os.pipe()
    os.write(write, b"a\t\xff\r\n")
    os.close(write)
    log = io.StringIO()
    with os.fdopen(read, "rb") as pipe:
        follow(pipe, log, BuildTracker(weights={}, libraries={}), lambda *_: None, {})
    assert log.getvalue().startswith("a\t\ufffd")


def test_failing_event_callback_does_not_block_builds():
    """The pipe is still drained when the callback raises."""
    read, write = os.pipe()

    def watch(event, tracker):
        raise RuntimeError("the screen is gone")

    def build():
        with os.fdopen(write, "w") as output:
            output.write(COMPILED * 20_000)  # a pipe holds 64 KiB

    thread = threading.Thread(target=build, daemon=True)
    thread.start()
    tracker = BuildTracker(weights={"a": 1.0}, libraries={"a": 1})
    with os.fdopen(read, "rb") as pipe, pytest.raises(RuntimeError):
        follow(pipe, io.StringIO(), tracker, watch, {})
    thread.join(60)
    assert not thread.is_alive()
