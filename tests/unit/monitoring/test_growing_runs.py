"""A run folder that is read again and again, and the overview of many."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dsrun.errors import UsageError
from dsrun.monitoring.overview import runs_of, size_on_disk, sort_rows
from dsrun.runs import reader as run_reader
from dsrun.runs.goodput import goodput
from dsrun.runs.reader import RunReader, read_history
from dsrun.runs.tail import FileTail


def add(path: Path, *records: Mapping[str, Any]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def begin(folder: Path, **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    add(folder / "events.jsonl", {"kind": "start", "time": "2026-11-25T10:00:00.000Z", "world_size": 2, **more})
    return folder


def test_only_what_was_added_is_read(tmp_path: Path) -> None:
    """The same history as read_history gives, also where a restart made steps again in between."""
    begin(tmp_path)
    reader = RunReader(tmp_path)
    assert reader.read().steps == ()
    for records in ([{"step": 10, "loss": 9.0}, {"step": 20, "loss": 8.0}], [{"step": 20, "eval_loss": 7.0}]):
        add(tmp_path / "metrics.jsonl", *records)
        assert reader.read() == read_history(tmp_path)
    add(tmp_path / "metrics.jsonl", {"step": 20, "loss": 5.0})
    assert reader.read() == read_history(tmp_path)
    assert reader.read().series("loss") == [(10, 9.0), (20, 5.0)]


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    begin(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "lo')
    reader = RunReader(tmp_path)
    assert reader.read().steps == ()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('ss": 2.0}\n')
    assert reader.read().series("loss") == [(1, 2.0)]


def test_files_of_a_new_run_replace_those_of_the_old(tmp_path: Path) -> None:
    """`--resume never` moves the records aside; a new run.json is read, too."""
    begin(tmp_path)
    add(tmp_path / "metrics.jsonl", *({"step": step, "loss": 1.0} for step in range(50)))
    reader = RunReader(tmp_path)
    assert len(reader.read().steps) == 50
    for name in ("metrics.jsonl", "events.jsonl"):
        (tmp_path / name).rename(tmp_path / f"old-{name}")
    begin(tmp_path, attempt=5)
    (tmp_path / "run.json").write_text('{"model": "t5"}')
    history = reader.read()
    assert (history.steps, history.events[0]["attempt"], history.run) == ((), 5, {"model": "t5"})


def test_records_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    """Until the file is there again, as after a moment of a network file system."""
    begin(tmp_path)
    metrics = tmp_path / "metrics.jsonl"
    add(metrics, {"step": 1, "loss": 2.0})
    reader = RunReader(tmp_path)
    assert len(reader.read().steps) == 1
    metrics.rename(tmp_path / "aside")
    assert reader.read().steps == ()
    (tmp_path / "aside").rename(metrics)
    assert reader.read().series("loss") == [(1, 2.0)]


def test_nothing_is_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at a run takes as many bytes of its records as were added."""
    begin(tmp_path)
    add(tmp_path / "metrics.jsonl", *({"step": step, "loss": 1.0} for step in range(1000)))
    taken: list[int] = []
    read = FileTail.read

    def counted(tail: FileTail) -> tuple[bytes, bool]:
        added, is_new = read(tail)
        taken.append(len(added))
        return added, is_new

    reader = RunReader(tmp_path)
    reader.read()
    monkeypatch.setattr(FileTail, "read", counted)
    reader.read()
    add(tmp_path / "metrics.jsonl", {"step": 1000, "loss": 1.0})
    reader.read()
    assert taken == [0, 0, 0, len('{"step": 1000, "loss": 1.0}\n')]


def test_a_long_file_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the older steps a few stand for all, the newest are all there, and evaluations come from the events."""
    monkeypatch.setattr(run_reader, "WHOLE", 50_000)
    begin(tmp_path)
    add(tmp_path / "metrics.jsonl", *({"step": step, "loss": 1 / step} for step in range(1, 20_001)))
    add(tmp_path / "events.jsonl", {"kind": "evaluate", "step": 500, "metrics": {"eval_loss": 0.5}})
    history = RunReader(tmp_path).read()
    steps = [step for step, _ in history.series("loss")]
    assert steps[0] == 1
    assert steps == sorted(set(steps))
    assert 300 < sum(step < 5000 for step in steps) * 2 < 2000
    assert steps[-1000:] == list(range(19_001, 20_001))
    assert history.series("eval_loss") == [(500, 0.5)]


def test_newest_steps_are_enough_for_a_status(tmp_path: Path) -> None:
    begin(tmp_path)
    add(tmp_path / "metrics.jsonl", *({"step": step, "loss": 1 / step} for step in range(1, 20_001)))
    counts = [len(RunReader(tmp_path, extent).read().steps) for extent in ("newest", "view")]
    assert counts[0] < 2000
    assert counts[1] > 8000
    assert RunReader(tmp_path, "newest").read().steps[-1]["step"] == 20_000


def test_steps_in_memory_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_reader, "MOST_STEPS", 100)
    begin(tmp_path)
    reader = RunReader(tmp_path)
    for part in range(10):
        add(tmp_path / "metrics.jsonl", *({"step": part * 50 + n, "loss": 1.0} for n in range(50)))
        steps = reader.read().series("loss")
    assert len(steps) <= 200
    assert (steps[0][0], steps[-1][0]) == (0, 499)


def test_progress_events_in_a_row_count_once(tmp_path: Path) -> None:
    """They are one a minute; the goodput stays the same without them."""
    begin(tmp_path)
    add(tmp_path / "events.jsonl", {"kind": "training", "time": "2026-11-25T10:01:00.000Z", "step": 0, "max_steps": 9})
    reader = RunReader(tmp_path)
    for minute in range(2, 30):
        add(
            tmp_path / "events.jsonl",
            {"kind": "progress", "time": f"2026-11-25T10:{minute:02}:00.000Z", "step": minute},
        )
        if minute % 3:
            history = reader.read()
    history = reader.read()
    assert [event["kind"] for event in history.events] == ["start", "training", "progress"]
    assert goodput(history.events) == goodput(read_history(tmp_path).events)


def test_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, what in (
        (tmp_path, "contains no run"),
        (tmp_path / "none", "does not exist"),
        (tmp_path / "file", "is not"),
    ):
        with pytest.raises(UsageError, match=what):
            RunReader(path).read()


def test_overview_of_a_folder(tmp_path: Path) -> None:
    """Runs two levels deep, each with its last figures; a folder that is a run is that one."""
    for name, losses in (("a", [3.0, 1.0]), ("group/b", [2.0]), ("c", [])):
        (tmp_path / name).mkdir(parents=True)
        run = begin(tmp_path / name)
        add(run / "metrics.jsonl", *({"step": n + 1, "loss": loss} for n, loss in enumerate(losses)))
    (tmp_path / "notes").mkdir()
    rows = runs_of(tmp_path)
    assert [row.name for row in rows] == ["a", "c", "group/b"]
    assert [row.name for row in sort_rows(rows, "loss")] == ["a", "group/b", "c"]
    assert [row.name for row in sort_rows(rows, "step")] == ["a", "group/b", "c"]
    assert {row.status.state for row in rows} == {"killed"}
    assert [row.name for row in runs_of(tmp_path / "a")] == ["a"]
    with pytest.raises(UsageError, match="contains no runs"):
        runs_of(tmp_path / "notes")


def test_size_counts_hard_links_once(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "weights").write_bytes(b"x" * 100_000)
    alone = size_on_disk(tmp_path)
    assert alone >= 100_000
    (tmp_path / "again").hardlink_to(tmp_path / "sub" / "weights")
    (tmp_path / "link").symlink_to("/")
    assert size_on_disk(tmp_path) < alone + 50_000
