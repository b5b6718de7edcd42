"""The end of a run's metrics, read from the end."""

from __future__ import annotations

import json
import math

import pytest

from dsrun.runs.tail import RunProgress, progress


def write(path, records, end=""):
    path.write_text("".join(json.dumps(each) + "\n" for each in records) + end)
    return path


@pytest.fixture
def metrics(tmp_path):
    return tmp_path / "metrics.jsonl"


def test_progress_last_step_and_loss(metrics):
    write(metrics, [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0, "epoch": 0.5, "time": "t"}])
    assert progress(metrics) == RunProgress(step=2, loss=2.0, epoch=0.5, time="t")


def test_progress_loss_is_not_eval_loss(metrics):
    """An evaluation's loss is not the training loss."""
    write(metrics, [{"step": 8, "loss": 2.0}, {"step": 10, "eval_loss": 1.0}])
    assert (progress(metrics).step, progress(metrics).loss) == (10, 2.0)


def test_progress_loss_without_step_is_foreign(metrics):
    write(metrics, [{"step": 1, "loss": 3.0}, {"loss": 9.0}])
    assert (progress(metrics).step, progress(metrics).loss) == (1, 3.0)


def test_progress_ignores_torn_last_line(metrics):
    """A torn last line does not count."""
    write(metrics, [{"step": 1, "loss": 3.0}], end='{"step": 2, "loss": 1.0}')
    assert progress(metrics).step == 1


def test_progress_with_nonfinite_loss(metrics):
    write(metrics, [{"step": 1, "loss": 3.0}, {"step": 2, "loss": None, "nonfinite": {"loss": "nan"}}])
    assert math.isnan(progress(metrics).loss)
    assert progress(metrics).step == 2


def test_progress_passes_over_foreign_values(metrics):
    write(metrics, [{"step": 2, "loss": 10**400, "epoch": True}, {"step": True, "loss": 1.0}])
    assert progress(metrics) == RunProgress(step=2, loss=None, epoch=None, time="")


@pytest.mark.parametrize("text", ["", "\n", "not json\n", '{"step": 1', "[1]\n", '{"event": "start"}\n'])
def test_progress_of_metrics_without_step(metrics, text):
    metrics.write_text(text)
    assert progress(metrics) is None


def test_progress_of_missing_file_and_of_folder(tmp_path):
    assert progress(tmp_path / "none") is None
    assert progress(tmp_path) is None


def test_progress_lines_across_block_borders(metrics):
    # 64 KiB are read at a time; every record must come out whole wherever the border falls.
    for filler in range(65400, 65560, 7):
        write(metrics, [{"step": 5, "loss": 1.5}, {"note": "x" * filler}, {"step": 6}])
        assert (progress(metrics).step, progress(metrics).loss) == (6, 1.5)


def test_progress_reads_only_the_tail(metrics):
    """A long history is not read to its beginning."""
    with metrics.open("w") as file:
        file.write('{"step": 0, "loss": 9.0}\n')
        file.writelines(f'{{"step": {step}}}\n' for step in range(1, 200_000))
    # The loss lies megabytes back.
    assert (progress(metrics).step, progress(metrics).loss) == (199_999, None)
