"""Runs side by side, and events as lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsrun.errors import UsageError
from dsrun.monitoring.comparison import configuration, curves, differences, labels, metrics
from dsrun.monitoring.event_text import describe
from dsrun.monitoring.run_status import status_of
from dsrun.runs.reader import RunHistory


def history(path: Path, *, train: dict[str, Any], losses: tuple[float, ...] = (3.0, 2.0), **run: Any) -> RunHistory:
    steps = tuple({"step": n + 1, "loss": loss, "tokens_per_s": 100.0 * n} for n, loss in enumerate(losses))
    evaluations = ({"step": len(losses), "eval_loss": losses[-1] + 1, "eval_seconds": 9.0},) if losses else ()
    return RunHistory(path=path, run={"specs": {"train": train}, **run}, steps=steps, evaluations=evaluations)


def test_only_settings_that_differ(tmp_path: Path) -> None:
    one = history(
        tmp_path / "a",
        train={"learning_rate": 0.1, "seed": 1, "output": "a", "zero": "2", "token": "hf_secret"},
        batch={"micro_batch": 4}, zero_stage=2, versions={"torch": "2.13", "numpy": "2"},
    )  # fmt: skip
    other = history(
        tmp_path / "b",
        train={"learning_rate": 0.2, "seed": 1, "output": "b", "zero": "2", "token": "hf_other", "lora": 8},
        batch={"micro_batch": 8}, zero_stage=2, versions={"torch": "2.12", "numpy": "2"},
    )  # fmt: skip
    assert {row.name: row.values for row in differences([one, other])} == {
        "batch.micro_batch": (4, 8),
        "learning_rate": (0.1, 0.2),
        "lora": (None, 8),
        "versions.torch": ("2.13", "2.12"),
    }
    assert "hf_secret" not in str(configuration(one))


def test_given_settings_come_first_and_a_run_without_any_tells_nothing(tmp_path: Path) -> None:
    token = "hf_" + "a1B2c3D4e5F6g7H8i9J0"
    runs = [
        history(
            tmp_path / name,
            train={"seed": n, "model": f"{token}{n}", "zero": str(n), "lr": n, "run_name": name},
            zero_stage=n, host=name, sources={"seed": "default", "lr": "command line", "zero": "run.yaml"},
        )
        for n, name in enumerate("ab", 1)
    ]  # fmt: skip
    runs.append(RunHistory(path=tmp_path / "c"))
    found = differences(runs)
    assert [(row.name, row.kind) for row in found] == [
        ("zero_stage", "setting"), ("lr", "setting"), ("seed", "setting"), ("host", "environment"),
    ]  # fmt: skip
    assert found[1].values == (1, 2, None)
    assert token not in str(configuration(runs[0]))


def test_settings_of_a_run_that_has_only_its_recipe(tmp_path: Path) -> None:
    one = history(tmp_path / "a", train={"seed": 1})
    other = RunHistory(path=tmp_path / "b", recipe={"values": {"seed": 2}, "sources": {"seed": "run.yaml"}})
    assert [(row.name, row.values) for row in differences([one, other])] == [("seed", (1, 2))]


def test_a_setting_and_what_it_resolves_to_are_one_row(tmp_path: Path) -> None:
    """Where both tell the same; `--zero auto` resolves to one stage or the other."""
    runs = [
        history(tmp_path / str(stage), train={"zero": str(stage)}, zero_stage=stage,
                deepspeed={"zero_optimization": {"stage": stage}})
        for stage in (2, 3)
    ]  # fmt: skip
    assert [row.name for row in differences(runs)] == ["zero_stage"]
    runs[1] = history(tmp_path / "auto", train={"zero": "auto"}, zero_stage=3)
    assert [row.name for row in differences(runs)][:2] == ["zero_stage", "zero"]


def test_metrics_of_each_run(tmp_path: Path) -> None:
    runs = [history(tmp_path / "a", train={}), history(tmp_path / "b", train={}, losses=(5.0, 1.0, 4.0))]
    rows = {row.name: row.values for row in metrics(runs, [status_of(run) for run in runs])}
    assert rows["loss"] == (2.0, 4.0)
    assert rows["lowest_loss"] == (2.0, 1.0)
    assert rows["eval_loss"] == rows["best_value"] == (3.0, 5.0)
    assert rows["tokens_per_s"] == (50.0, 100.0)
    assert "eval_seconds" not in rows
    assert "mfu" not in rows


def test_labels_are_as_short_as_they_differ() -> None:
    def named(*paths: str) -> list[str]:
        return labels([Path(path) for path in paths])

    assert named("/runs/a", "/runs/b") == ["a", "b"]
    assert named("/x/run", "/y/run") == ["x/run", "y/run"]


def test_curves_of_a_metric(tmp_path: Path) -> None:
    runs = [history(tmp_path / "a", train={}), history(tmp_path / "b", train={}, losses=())]
    assert curves(runs, "loss") == {"a": [(1, 3.0), (2, 2.0)], "b": []}
    assert curves(runs, "eval_loss")["a"] == [(2, 3.0)]
    with pytest.raises(UsageError, match=r"none of the runs has logged los \(did you mean loss"):
        curves(runs, "los")


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"kind": "start", "world_size": 8, "attempt": 2}, "started on 8 ranks, attempt 2"),
        ({"kind": "training", "step": 0, "max_steps": 5000}, "training begins, of 5,000 steps"),
        ({"kind": "training", "step": 40}, "training goes on after step 40"),
        (
            {"kind": "checkpoint_end", "step": 1000, "seconds": 2.41},
            "checkpoint of step 1,000 saved, training waited 2.41 s",
        ),
        (
            {"kind": "evaluate", "step": 5, "metrics": {"eval_loss": 1.23456, "eval_seconds": 9.0, "epoch": 1.0}},
            "evaluated at step 5: loss 1.235",
        ),
        (
            {"kind": "failure", "rank": 3, "cause": "cuda_oom", "message": "no memory"},
            "rank 3 failed: cuda_oom: no memory",
        ),
        ({"kind": "signal", "signal": "SIGTERM", "step": 7}, "asked to stop by SIGTERM at step 7"),
        ({"kind": "end", "step": 60, "seconds": 19.2, "exit_code": 1}, "ended at step 60 after 19 s, exit code 1"),
        (
            {"kind": "restart", "attempt": 1, "message": "from checkpoint-40"},
            "restarts, attempt 1 (from checkpoint-40)",
        ),
        (
            {"kind": "start", "world_size": 8, "queued_s": 300.0, "starting_s": 12.0},
            "started on 8 ranks, 5 min in the queue, 12 s starting",
        ),
        (
            {"kind": "checkpoint_end", "step": 5, "bytes": 5 << 20, "seconds": 0.001},
            "checkpoint of step 5 saved, 5.0 MiB",
        ),
        ({"kind": "failure", "cause": "unknown", "exit_code": 7}, "failed: unknown, exit code 7"),
        ({"kind": "end", "exit_code": 3, "cause": "cuda_oom"}, "ended: cuda_oom, exit code 3"),
        ({"kind": "something_new"}, "something_new"),
    ],
)  # fmt: skip
def test_events_as_lines(event: dict[str, Any], text: str) -> None:
    assert describe(event) == text
