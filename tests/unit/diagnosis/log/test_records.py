"""What the end of a log says by the words and the places of its lines, where no rule knows any of them."""

import pytest

from dsrun.diagnosis.log.records import SHOWN_LINES, decisive, excerpt_around, records_of

FRAME = '  File "/opt/lib/zed/run.py", line 7, in go\n    zed.go()\n'


def told(log: str) -> tuple[str, str] | None:
    """The kind and the text of the line that tells most."""
    record = decisive(records_of(log.encode(), log.count("\n") + 1))
    return (record.kind, record.text) if record else None


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("ValueError: bad", "exception"),
        ("**OSError: bad**", "exception"),
        ("it says `zed.OddError: bad` here", "exception"),
        ("zed.CallHintViolation in f()", "exception"),
        ("ModuleNotFoundError(\"No module named 'a'\")", "exception"),
        ("tool: error: argument COMMAND: invalid choice: 'x'", "error"),
        ("a.cc:3:1: fatal error: x.h: No such file", "error"),
        ("2026-11-21 | CRITICAL | it went wrong", "error"),
        ("E1121 10:00:00.1 zed.cc:3] it went wrong", "error"),
        ("thread 'main' panicked at src/main.rs:2", "error"),
        ("the server could not be reached", "failed"),
        ("Back-off restarting it", "failed"),
    ],
)
def test_line_tells_by_its_words(line: str, kind: str) -> None:
    assert told(f"begin\n{line}\n") == (kind, line)


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: could not open x",
        "UserWarning: ValueError: bad",
        "[W1121 10:00:00 a.cc:3] it failed",
        "0 errors, 3 lines",
        "error: 0.25",
        "ConnectionError: bad, retrying in 3 s",
        "all workers ended with code 0",
    ],
)
def test_line_that_only_sounds_like_a_failure(line: str) -> None:
    assert told(f"begin\n{line}\n") is None


@pytest.mark.parametrize(
    "line", ["ChildFailedError:", "srun: error: n1: task 3: Exited with exit code 1", "make: *** [x] Error 2"]
)
def test_effect_tells_least(line: str) -> None:
    assert told(f"{line}\n") == ("effect", line)
    assert told(f"cannot do it\n{line}\n") == ("failed", "cannot do it")


def test_exception_of_any_name_below_frames_without_a_header() -> None:
    """A log may begin within a traceback."""
    records = records_of(f"{FRAME}Oops: bad\n".encode(), 4)
    assert [(record.kind, record.line, record.frames) for record in records] == [
        ("exception", 3, ("/opt/lib/zed/run.py:7",))
    ]


def test_log_that_ends_where_the_exception_is_raised() -> None:
    assert told(f"{FRAME}    raise ValueError(\n") == ("exception", "raise ValueError(")
    assert told(f"    raise ValueError(\n{FRAME}more\nand more\n") is None


def test_last_exception_of_a_chain_tells() -> None:
    link = "\nDuring handling of the above exception, another exception occurred:\n\n"
    assert told(f"{FRAME}KeyError: 'x'\n{link}{FRAME}OSError: bad\n") == ("exception", "OSError: bad")


def test_what_a_step_or_the_end_came_after_is_over() -> None:
    for over in ("{'loss': 2.0}", "{'train_runtime': 3.0}"):
        assert told(f"ValueError: bad\n{over}\n") is None
        assert told(f"{over}\nValueError: bad\n") == ("exception", "ValueError: bad")


def test_exception_that_the_interpreter_ignored_tells_nothing() -> None:
    log = f"Exception ignored in: <function a>\nTraceback (most recent call last):\n{FRAME}TypeError: bad\n"
    assert told(log) is None
    assert told(f"{log}ValueError: worse\n") == ("exception", "ValueError: worse")


def test_first_error_and_last_failure_tell_most() -> None:
    assert told("a: error: one\nb: error: two\n") == ("error", "a: error: one")
    assert told("cannot one\ncannot two\n") == ("failed", "cannot two")


def test_excerpt_has_the_message_the_call_and_the_errors_beside_it() -> None:
    log = f"a: error: one\n{FRAME}    ^^^\nzed.Bad: 1 error\n  field x\nINFO more\nb: error: two\n" + "c: error\n" * 9
    last = log.count("\n") + 1
    shown = excerpt_around(log.encode(), last, [5], records_of(log.encode(), last))
    assert len(shown) == SHOWN_LINES
    assert {2, 5, 6} <= set(shown)
    assert 7 not in shown
    assert list(shown) == sorted(shown)
    assert shown[5] == "zed.Bad: 1 error"
