"""The run folder: names, paths, and which folders are refused."""

from datetime import datetime
from pathlib import Path

import pytest

from dsrun.errors import UsageError
from dsrun.runs.folder import RunFolder, default_name, refuse_unfit

NOW = datetime(2026, 11, 21, 4, 48, 0)


@pytest.mark.parametrize(
    ("model", "slug"),
    [
        ("t5-large", "t5-large"),
        ("google/mt5-small", "mt5-small"),
        ("/data/models/Llama 3.2 (1B)/", "Llama-3.2-1B"),
        ("../..", "run"),
        ("", "run"),
        ("模型", "run"),
        ("x" * 200, "x" * 60),
    ],
)
def test_default_run_folder_name(model, slug):
    assert default_name(model, NOW) == f"runs/{slug}-20261121-044800"


def test_run_folder_paths():
    run = RunFolder(Path("runs/a"))
    assert [
        path.relative_to("runs/a").as_posix()
        for path in (
            run.run_json,
            run.metrics,
            run.events,
            run.logs,
            run.model,
            run.lock,
            run.checkpoint(7),
            run.log(3, 1),
        )
    ] == [
        "run.json",
        "metrics.jsonl",
        "events.jsonl",
        "logs",
        "model",
        ".lock",
        "checkpoint-7",
        "logs/rank-3.attempt-1.log",
    ]


def test_create_run_folder_or_take_over_former_run(tmp_path):
    """The folder is made, or taken over from a former run."""
    run = RunFolder.create(tmp_path / "deep" / "run with 'quotes'\nand lines")
    assert run.logs.is_dir()
    assert RunFolder.create(run.path) == run  # died before run.json
    run.run_json.write_text("{}")
    (run.path / "notes.txt").write_text("mine")
    assert RunFolder.create(run.path) == run


def test_folder_with_only_slurm_output_accepted(tmp_path):
    """A folder that only holds the batch system's output is accepted."""
    (tmp_path / "slurm-4711.out").touch()
    refuse_unfit(tmp_path)


def test_folder_of_a_dead_run_with_a_report_accepted(tmp_path):
    """A report about a run that died before run.json does not keep the next start out."""
    (tmp_path / "events.jsonl").touch()
    (tmp_path / "report.html").touch()
    refuse_unfit(tmp_path)


def test_folder_with_other_files_refused_unless_forced(tmp_path):
    """A folder with other files is refused unless forced."""
    for name in "dbca":
        (tmp_path / name).touch()
    with pytest.raises(UsageError, match=r"is not a run folder and contains a, b, c and 1 more"):
        RunFolder.create(tmp_path)
    assert not (tmp_path / "logs").exists()
    RunFolder.create(tmp_path, force=True)


@pytest.mark.parametrize("below", ["", "below", "far/below"])
def test_file_as_output_folder_refused(tmp_path, below):
    """A file as the output folder, or above it, is refused."""
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file"):
        RunFolder.create(tmp_path / "file" / below, force=True)


def test_unwritable_output_folder_refused():
    """An output folder that cannot be written is refused."""
    # Even root cannot write there.
    with pytest.raises(UsageError, match="cannot write to output folder /proc"):
        RunFolder.create("/proc/self/runs/a")


def test_open_run_folder(tmp_path):
    with pytest.raises(UsageError, match=r"has no run\.json"):
        RunFolder.open(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        RunFolder.open(tmp_path / "missing")
    (tmp_path / "run.json").write_text("{}")
    assert RunFolder.open(tmp_path).path == tmp_path


def test_checkpoints_are_sorted_by_number(tmp_path):
    run = RunFolder(tmp_path / "run")
    assert run.checkpoints() == []
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-x", "checkpoint-11-tmp", "model"):
        (run.path / name).mkdir(parents=True)
    (run.path / "checkpoint-12").touch()
    assert run.checkpoints() == [(10, run.checkpoint(10)), (9, run.checkpoint(9))]


def test_output_folder_name_too_long_refused(tmp_path):
    """A name too long for the file system is refused in one line."""
    with pytest.raises(UsageError, match=r"cannot write to output folder.*File name too long"):
        refuse_unfit(tmp_path / ("a" * 300))


def test_run_folder_after_oom_while_loading_accepted(tmp_path):
    """A run that ran out of memory while loading may start again.

    The supervisor has written the remedy, and nobody run.json yet.
    """
    RunFolder.create(tmp_path / "run")
    for name in ("remedy.json", "skip-steps.json", ".remedy.json.12.tmp"):
        (tmp_path / "run" / name).touch()
    refuse_unfit(tmp_path / "run")


def test_checkpoint_folder_name_is_its_step(tmp_path):
    """A checkpoint has its step as its name, and no other.

    What is moved or deleted by its step has to be what was found.
    """
    run = RunFolder(tmp_path)
    for name in ("checkpoint-0", "checkpoint-20", "checkpoint-0030", "checkpoint-", "checkpoint-٣"):
        (tmp_path / name).mkdir()
    assert run.checkpoints() == [(20, run.checkpoint(20)), (0, run.checkpoint(0))]


def test_folder_whose_logs_cannot_be_written_refused(tmp_path, monkeypatch):
    """They may be a link to another place, or of another user."""
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr("dsrun.runs.folder.os.access", lambda path, _mode: path.name != "logs")
    with pytest.raises(UsageError, match=r"no permission in .*logs"):
        RunFolder.create(tmp_path)
