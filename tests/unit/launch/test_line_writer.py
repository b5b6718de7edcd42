"""Lines for the user, written by a thread."""

import threading

from dsrun.launch.supervisor.events import AsyncLineWriter


def test_async_line_writer_flushes_all_lines_in_order():
    """All lines are written in their order before the end."""
    said = []
    with AsyncLineWriter(said.append, timeout_s=60) as writer:
        for number in range(100):
            writer(str(number))
    assert said == [str(number) for number in range(100)]


def test_async_line_writer_does_not_wait_for_blocked_output():
    """A blocked output does not hold up the writer for long."""
    heard, said = threading.Event(), []

    def say(line):
        heard.wait(60)
        said.append(line)

    with AsyncLineWriter(say, timeout_s=0.1) as writer:
        for line in ("one", "two"):
            writer(line)
        assert said == []
    assert said == []
    heard.set()
    writer._thread.join(60)
    assert said == ["one", "two"]


def test_async_line_writer_ignores_broken_pipe():
    """A reader that is gone is no error."""
    said = []

    def say(line):
        said.append(line)
        raise BrokenPipeError

    with AsyncLineWriter(say, timeout_s=60) as writer:
        writer("one")
        writer("two")
    assert said == ["one", "two"]
