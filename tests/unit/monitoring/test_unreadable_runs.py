"""Folders, loops of links and named pipes in place of the files of a run: one line each, and other runs are shown."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dsrun.cli.main import cli
from dsrun.diagnosis.run_diagnosis import of_run
from dsrun.errors import UsageError
from dsrun.monitoring.overview import runs_of
from dsrun.monitoring.prometheus.samples import RunCollector
from dsrun.runs.lock import is_in_use
from dsrun.runs.node_status import read_node_status
from dsrun.runs.reader import UnreadableRun, read_history
from dsrun.runs.records import read_records
from dsrun.runs.tail import LineTail
from dsrun.system.files import read_object
from tests.run_folders import event, finished_run, steps, write_run

PLACES: dict[str, Callable[[Path], None]] = {
    "folder": Path.mkdir,
    "loop": lambda path: path.symlink_to(path.name),
    "pipe": os.mkfifo,
}


@pytest.fixture(params=PLACES)
def put(request) -> Callable[[Path], Path]:
    """Puts one of PLACES where a file was."""

    def replace(path: Path) -> Path:
        path.unlink(missing_ok=True)
        PLACES[request.param](path)
        return path

    return replace


@pytest.fixture
def folder(tmp_path) -> Path:
    """Run `a`, which has finished, and run `b`, which has failed."""
    finished_run(tmp_path / "a")
    failed = [event("start", world_size=2), event("failure", 9.0, cause="cuda_oom", message="CUDA out of memory")]
    write_run(tmp_path / "b", events=failed, metrics=steps(5))
    return tmp_path


@pytest.mark.parametrize("file", ["metrics.jsonl", "events.jsonl"])
def test_run_that_cannot_be_read_is_left_out(folder, put, file, capsys):
    put(folder / "b" / file)
    assert [row.name for row in runs_of(folder)] == ["a"]
    assert capsys.readouterr().err.startswith(f"note: {folder / 'b'} is left out: {folder / 'b' / file}: ")


def test_exporter_tells_once_which_run_it_leaves_out(folder, put, capsys):
    pytest.importorskip("prometheus_client")
    put(folder / "b" / "metrics.jsonl")
    collector = RunCollector([folder], now=lambda: 0.0)
    for _ in range(2):
        runs = {sample.labels["run"] for family in collector.collect() for sample in family.samples}
        assert runs == {"a"}
    assert capsys.readouterr().err.count("is left out") == 1


@pytest.mark.parametrize("command", ["monitor --once", "report", "compare a", "diagnose"])
def test_command_about_a_run_that_cannot_be_read_ends(folder, put, command, monkeypatch):
    monkeypatch.chdir(folder)
    put(folder / "b" / "events.jsonl")
    with pytest.raises(UsageError) as ended:
        cli.main([*command.split(), "b"], standalone_mode=False)
    assert ended.value.message.startswith("b/events.jsonl: ")


def test_diagnose_goes_by_events_where_metrics_cannot_be_read(folder, put, monkeypatch, capsys):
    put(folder / "b" / "metrics.jsonl")
    assert [each.code for each in of_run(folder / "b").findings] == ["cuda_oom", "metrics_unreadable"]
    assert cli.main(["diagnose", str(folder / "b")], standalone_mode=False) == 3
    with pytest.raises(UnreadableRun):
        read_history(folder / "b")


def test_readers_do_not_wait_for_the_writer_of_a_pipe(folder, put):
    for name in ("run.json", "recipe.json", ".lock", "samples-rank-0.jsonl"):
        put(folder / "a" / name)
    (folder / "a" / "status").mkdir()
    put(folder / "a" / "status" / "node-0.json")
    assert read_object(folder / "a" / "run.json") == {}
    assert is_in_use(folder / "a") is None
    assert read_node_status(folder / "a") == ()
    with pytest.raises(OSError, match="samples-rank-0"):
        read_records(folder / "a" / "samples-rank-0.jsonl")
    assert [row.name for row in runs_of(folder)] == ["a", "b"]


def test_line_without_end_is_not_held_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr("dsrun.runs.tail._LONGEST_LINE", 100)
    path = tmp_path / "events.jsonl"
    tail = LineTail(path)
    path.write_bytes(b'{"kind": "' + b"x" * 200)
    assert tail.read() == ([], True)
    with path.open("ab") as file:
        file.write(b'x"}\n{"kind": "end"}\n')
    assert tail.new_records() == [{"kind": "end"}]
