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
def test_default_name(model, slug):
    assert default_name(model, NOW) == f"runs/{slug}-20261121-044800"


def test_paths():
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


def test_create_makes_the_folder_and_takes_over_a_former_run(tmp_path):
    run = RunFolder.create(tmp_path / "deep" / "run with 'quotes'\nand lines")
    assert run.logs.is_dir()
    assert RunFolder.create(run.path) == run  # died before run.json
    run.run_json.write_text("{}")
    (run.path / "notes.txt").write_text("mine")
    assert RunFolder.create(run.path) == run


def test_a_folder_that_only_holds_the_batch_systems_output_is_fit(tmp_path):
    (tmp_path / "slurm-4711.out").touch()
    refuse_unfit(tmp_path)


def test_a_folder_with_other_things_is_refused_unless_forced(tmp_path):
    for name in "dbca":
        (tmp_path / name).touch()
    with pytest.raises(UsageError, match=r"is no run folder and holds a, b, c and 1 more"):
        RunFolder.create(tmp_path)
    assert not (tmp_path / "logs").exists()
    RunFolder.create(tmp_path, force=True)


@pytest.mark.parametrize("below", ["", "below", "far/below"])
def test_a_file_is_refused(tmp_path, below):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file"):
        RunFolder.create(tmp_path / "file" / below, force=True)


def test_a_place_that_cannot_be_written_is_refused():
    # Even root cannot write there.
    with pytest.raises(UsageError, match="cannot write to output folder /proc"):
        RunFolder.create("/proc/self/runs/a")


def test_open(tmp_path):
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


def test_an_output_name_too_long_for_the_file_system_is_refused_in_one_line(tmp_path):
    with pytest.raises(UsageError, match=r"cannot write to output folder.*File name too long"):
        refuse_unfit(tmp_path / ("a" * 300))


def test_a_run_that_ran_out_of_memory_while_loading_may_start_again(tmp_path):
    """The supervisor has written the remedy, and nobody run.json yet."""
    RunFolder.create(tmp_path / "run")
    for name in ("remedy.json", "skip-steps.json", ".remedy.json.12.tmp"):
        (tmp_path / "run" / name).touch()
    refuse_unfit(tmp_path / "run")


def test_a_checkpoint_has_its_step_as_its_name_and_no_other(tmp_path):
    """What is moved or deleted by its step has to be what was found."""
    run = RunFolder(tmp_path)
    for name in ("checkpoint-0", "checkpoint-20", "checkpoint-0030", "checkpoint-", "checkpoint-٣"):
        (tmp_path / name).mkdir()
    assert run.checkpoints() == [(20, run.checkpoint(20)), (0, run.checkpoint(0))]
