"""The status line: a spinner on a terminal, plain lines elsewhere, and no line torn by it."""

from __future__ import annotations

import os
import pty
import select
from itertools import pairwise

import pytest

from dsrun.system.terminal import stderr
from dsrun.system.terminal.status_line import LONGEST_S, SILENCE_S, SPINNER_S, StatusLine, status

ERASE = "\r\x1b[2K"
BAR = f"{ERASE}training ━━━ 3/9"


class Shown:
    """A status line over a pipe or a pseudo-terminal, with a clock that a test moves."""

    def __init__(self, fd: int, read: int, *, terminal: bool) -> None:
        self.now = 100.0
        self.fd, self._read = fd, read
        self.line = StatusLine(self.print, fd=fd, terminal=terminal, clock=lambda: self.now)

    def print(self, text: str, *, line: bool = True) -> None:
        data = f"{text}\n".encode() if line else text.encode()
        with self.line.writing(data, line=line):
            os.write(self.fd, data)

    def after(self, seconds: float) -> str:
        """What is new on the screen, so many seconds later."""
        self.now += seconds
        self.line.tick()
        return self.screen()

    def screen(self) -> str:
        found = b""
        while select.select([self._read], [], [], 0)[0]:
            found += os.read(self._read, 65536)
        return found.decode().replace("\r\n", "\n")


@pytest.fixture
def make(monkeypatch):
    monkeypatch.setattr(StatusLine, "over_at", 0.0)
    fds: list[int] = []

    def shown(pair: tuple[int, int], *, terminal: bool) -> Shown:
        fds.extend(pair)
        return Shown(pair[1], pair[0], terminal=terminal)

    yield shown
    for fd in fds:
        os.close(fd)


@pytest.fixture
def pipe(make):
    return make(os.pipe(), terminal=False)


@pytest.fixture
def screen(make):
    return make(pty.openpty(), terminal=True)


def test_pipe_gets_a_line_after_silence_alone(pipe):
    pipe.line.say("loading")
    assert pipe.after(SILENCE_S - 0.1) == ""
    assert pipe.after(0.1) == "loading … 2 s\n"
    assert pipe.after(0.1) == ""
    pipe.print("a note")
    assert pipe.after(SILENCE_S - 0.1) == "a note\n"
    assert pipe.after(0.2) == "loading … 5 s\n"


def test_lines_of_long_work_come_at_growing_distances(pipe):
    pipe.line.say("compiling")
    lines = [at for at in range(3600) if pipe.after(1)]
    gaps = [after - before for before, after in pairwise(lines)]
    assert gaps == sorted(gaps)
    assert gaps[0] <= SILENCE_S + 1
    assert gaps[-1] == LONGEST_S


def test_next_activity_is_told_at_once_after_long_silence(pipe):
    pipe.line.say("training", ", step 1")
    pipe.now += 900
    pipe.line.tick()
    assert pipe.screen() == "training, step 1 … 15 min\n"
    pipe.now += SILENCE_S
    pipe.line.say("training", ", step 2")
    pipe.line.tick()
    assert pipe.screen() == ""
    pipe.line.say("saving")
    pipe.line.tick()
    assert pipe.screen() == "saving …\n"


@pytest.mark.parametrize("kind", ["pipe", "screen"])
def test_nothing_is_said_of_nothing_and_into_no_line(request, kind):
    shown = request.getfixturevalue(kind)
    shown.line.say("")
    assert shown.after(60) == ""
    shown.line.say("loading")
    shown.print("how far", line=False)
    assert shown.after(60) == "how far"
    shown.print(": done", line=True)
    assert "loading" in shown.after(60)


def test_spinner_turns_on_a_terminal_and_is_erased_by_a_line(screen):
    screen.line.say("loading")
    assert screen.after(SPINNER_S / 2) == ""
    first, second = screen.after(SPINNER_S), screen.after(0.1)
    assert first != second
    assert all(each.startswith(ERASE) and "loading" in each and "\n" not in each for each in (first, second))
    screen.print("a note")
    assert screen.screen() == f"{ERASE}a note\n"


def test_spinner_is_erased_where_there_is_nothing_more_to_say(screen):
    screen.line.say("loading")
    assert "loading" in screen.after(1)
    screen.line.say("")
    assert screen.after(0.1) == ERASE
    assert screen.after(1) == ""


def test_no_spinner_over_a_bar_and_no_bar_before_a_line(screen):
    screen.line.say("training")
    screen.print(BAR, line=False)
    assert screen.after(9) == BAR
    screen.print("a note")
    assert screen.screen() == f"{ERASE}\x1b[?25ha note\n"
    # As rich ends a bar.
    screen.print(f"{BAR}\n\x1b[?25h\r\x1b[1A\x1b[2K", line=False)
    assert "training …" in screen.after(9).rpartition(ERASE)[2]


def test_bar_of_a_killed_process_is_erased_in_the_end(screen):
    screen.print(BAR, line=False)
    screen.line.close()
    assert screen.screen() == f"{BAR}{ERASE}\x1b[?25h"


def test_silence_goes_on_where_one_status_follows_another(pipe):
    pipe.line.say("looking")
    pipe.now += 2
    pipe.line.close()
    following = StatusLine(pipe.print, fd=pipe.fd, clock=lambda: pipe.now)
    following.say("loading")
    pipe.now += SILENCE_S - 2
    following.tick()
    assert pipe.screen() == "loading …\n"


def test_notes_of_a_process_go_through_its_status(monkeypatch, capfd):
    monkeypatch.setattr(StatusLine, "over_at", 0.0)
    with status("loading") as shown:
        assert stderr.shown is shown
        before = shown._last_write
        stderr.print_note("a note")
        assert shown._last_write > before
    assert stderr.shown is None
    assert capfd.readouterr().err == "note: a note\n"
