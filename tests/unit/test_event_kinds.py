"""dsrun/events.toml: every kind of event that dsrun writes, and what it means to those who read it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest

from dsrun.cli.monitor.view import _EVENT_STYLES
from dsrun.events import EventKind, event_kinds, kind_of, level_of
from dsrun.messages import _COUNTED, PLACEHOLDER
from dsrun.monitoring.event_text import _FORMS, describe, filled
from dsrun.monitoring.run_status import RunState
from dsrun.notifications.notification import NotificationKind
from dsrun.report.panels import MarkKind
from dsrun.report.timeline import rows
from dsrun.runs.goodput import WallTimeUse, goodput
from dsrun.system.terminal.log_format import event_line
from tests.ecs import parsed
from tests.run_folders import event

PACKAGE = Path(__file__).parents[2] / "dsrun"
WRITERS = ("write", "event", "_write", "_event", "event_reporter")
"""Functions that take the kind of an event. Of the files that are written to, none gets a single word."""


def written(source: str) -> Iterator[tuple[str, set[str]]]:
    """Each kind that a module writes, with the keys that the call names."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        words = node.args if name == "event_reporter" else node.args[:1]
        words = [*words, *(each.value for each in node.keywords if each.arg == "kind")]
        for kind in [each.value for each in words if isinstance(each, ast.Constant) and isinstance(each.value, str)]:
            if name in WRITERS and re.fullmatch(r"\w+", kind):
                yield kind, {each.arg for each in node.keywords if each.arg and each.arg != "kind"}


@cache
def written_by_dsrun() -> list[tuple[str, set[str]]]:
    """By its modules, and by the scripts of SLURM jobs, whose events all have a message."""
    found = [each for module in PACKAGE.rglob("*.py") for each in written(module.read_text(encoding="utf-8"))]
    for script in (PACKAGE.parent / "slurm").glob("*.bash"):
        for line in re.findall(r"^ *write_event .*", script.read_text(encoding="utf-8"), re.M):
            found.append((line.split()[1], {"message", *re.findall(r'"(\w+)":', line)}))
    return found


def test_table_has_what_dsrun_writes_and_nothing_else() -> None:
    assert {kind for kind, _ in written_by_dsrun()} == set(event_kinds())


def test_kind_is_found_in_any_module() -> None:
    assert list(written("def f(log):\n    log.write('brand_new', step=1)")) == [("brand_new", {"step"})]


@pytest.mark.parametrize("kind", event_kinds())
def test_keys_of_a_kind_are_documented(kind: str) -> None:
    keys = {key for name, named in written_by_dsrun() if name == kind for key in named}
    assert [key for key in sorted(keys) if f"`{key}`" not in event_kinds()[kind].keys] == []


@pytest.mark.parametrize("kind", event_kinds().values(), ids=lambda kind: kind.name)
def test_values_are_those_that_readers_know(kind: EventKind) -> None:
    for value, known in (
        (kind.state, get_args(RunState)),
        (kind.over, get_args(RunState)),
        (kind.use, (None, *get_args(WallTimeUse))),
        (kind.level, _EVENT_STYLES),
        (kind.notify, (None, *get_args(NotificationKind))),
        (kind.mark, (None, *get_args(MarkKind))),
    ):
        assert value in known
    assert kind.when
    assert bool(kind.label) == (kind.mark is not None)
    pieces = re.findall(PLACEHOLDER, str((*kind.text, *kind.label)))
    assert {form for _, _, form in pieces} <= {"", *_FORMS}
    assert {name for name, _, _ in pieces} <= {*re.findall(r"`(\w+)`", kind.keys), "cause", "message"}


TRAINS = {
    "training", "progress", "checkpoint_end", "checkpoint_failed", "evaluate", "nan", "spike", "interval", "straggler",
    "signal",
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value", "kinds"),
    [
        ("state", "training", TRAINS),
        ("state", "saving", {"checkpoint_begin"}),
        ("state", "starting", {"start", "resume", "end"}),
        ("is_under_way", True, {*TRAINS, "checkpoint_begin", "start", "resume", "end"}),
        ("level", "quiet", {"progress", "checkpoint_begin"}),
        (
            "level",
            "warning",
            {
                "checkpoint_failed",
                "failing",
                "nan",
                "nodes_reduced",
                "remedy",
                "restart",
                "signal",
                "spike",
                "straggler",
                "waiting",
            },
        ),
        ("level", "error", {"failure"}),
        ("outcome", "success", {"checkpoint_end", "end"}),
        ("outcome", "failure", {"checkpoint_failed", "failure"}),
        ("timed", True, {"checkpoint_end", "evaluate", "end"}),
    ],
)
def test_kinds_of_a_meaning(field: str, value: object, kinds: set[str]) -> None:
    assert {kind.name for kind in event_kinds().values() if getattr(kind, field) == value} == kinds


def test_marks_of_charts_have_their_text() -> None:
    found = {
        name: filled(kind.label, {"step": 5, "message": "it is inf"})
        for name, kind in event_kinds().items()
        if kind.mark
    }
    assert found == {
        "training": "training continued after step 5",
        "checkpoint_end": "checkpoint 5",
        "nan": "step 5 was skipped: it is inf",
    }


@pytest.mark.parametrize("kind", event_kinds())
@pytest.mark.parametrize("odd", [None, "", "7", -1, 1e300, [], {}, True])
def test_any_value_has_a_text(kind: str, odd: Any) -> None:
    """As another program may write it, and where nothing is known."""
    names = [name for name, _, _ in re.findall(PLACEHOLDER, str(event_kinds()[kind].text))]
    assert describe({"kind": kind, **dict.fromkeys(names, odd)})
    assert describe({"kind": kind})


@pytest.mark.parametrize(
    ("found", "level"),
    [
        ({"kind": "straggler", "rank": 3, "step": 9, "message": "rank 3 (gpu07) is slow"}, "warning"),
        ({"kind": "nan", "step": 5}, "warning"),
        ({"kind": "checkpoint_failed", "step": 5}, "warning"),
        ({"kind": "failure", "cause": "cuda_oom"}, "error"),
        ({"kind": "end", "exit_code": 0}, "info"),
        ({"kind": "end", "exit_code": 1}, "error"),
        ({"kind": "of a newer dsrun"}, "info"),
    ],
)
def test_level_is_the_same_everywhere(found: Mapping[str, Any], level: str) -> None:
    """In the monitor, in the report's table and in a log."""
    record = {**event(found["kind"], 1), **found}
    assert level_of(record) == level
    assert [row.bad for row in rows([record])] == [level in ("warning", "error")]
    assert parsed(event_line(record))["log.level"] == {"warning": "warn"}.get(level, level)


def test_events_count_one_in_the_singular() -> None:
    """A form, as "{accumulation:steps}", knows it; `of` nodes are two at least."""
    texts = str([kind.text for kind in event_kinds().values()])
    assert {found[1] for found in _COUNTED.finditer(texts)} == {"{of}"}
    assert describe({"kind": "interval", "steps": 1}) == "saves every 1 step"


def test_stop_at_an_unknown_step() -> None:
    """A program of the user's own tells none."""
    assert describe({"kind": "signal", "signal": "SIGTERM"}) == "asked to stop by SIGTERM at an unknown step"


def test_straggler_has_a_text() -> None:
    told = {"kind": "straggler", "rank": 3, "host": "gpu07", "step": 1200, "message": "rank 3 (gpu07) is slow"}
    assert describe(told) == "step 1,200: rank 3 (gpu07) is slow"
    assert describe({**told, "message": None}) == "rank 3 of gpu07 holds the others up"


def test_pieces_without_a_value_are_left_out() -> None:
    assert filled((["a {x}", "b"], ", {y:positive}", ", {z}"), {"y": 0, "z": 4000}) == "b, 4,000"
    assert filled(("a {x}",), {}) == "a unknown"
    assert filled(("{x}", ", code {y}"), {"x": "ended with code 5", "y": 5}) == "ended with code 5"


def test_time_after_a_failure_was_seen_is_not_training() -> None:
    """What follows `failing` is the end of the ranks, which makes no steps."""
    events = [event("start"), event("training", 10, step=0), event("progress", 60, step=50)]
    events += [event("failing", 70, step=60), event("failure", 100, step=60), event("end", 100, step=60)]
    assert goodput(events).restart == 10 + 30


def test_kinds_of_a_newer_dsrun_mean_nothing() -> None:
    unknown = kind_of({"kind": "of a newer dsrun"})
    assert (unknown.use, unknown.is_under_way, unknown.is_failure, unknown.level) == (None, False, False, "info")
