"""`dsrun runs` and `dsrun compare` as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

TIME = "2026-11-25T10:00:00.000Z"


def make_run(folder: Path, *losses: float, exit_code: int | None = 0, **train: object) -> None:
    folder.mkdir(parents=True)
    steps = [{"step": 10 * (n + 1), "loss": loss, "time": TIME} for n, loss in enumerate(losses)]
    evaluation = {"step": 10 * len(losses), "eval_loss": losses[-1] + 0.5, "time": TIME}
    events = [{"kind": "start", "world_size": 2}, {"kind": "training", "step": 0, "max_steps": 100}]
    events += [] if exit_code is None else [{"kind": "end", "exit_code": exit_code, "step": 10 * len(losses)}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in (*steps, evaluation)))
    (folder / "events.jsonl").write_text("".join(json.dumps({**each, "time": TIME}) + "\n" for each in events))
    run = {"model": "t5", "world_size": 2, "specs": {"train": {"seed": 1, **train}}, "gpus": ["NVIDIA A100"] * 2}
    (folder / "run.json").write_text(json.dumps(run))


@pytest.fixture
def runs(here):
    make_run(here / "runs" / "small", 3.0, 2.0, 1.0, learning_rate=0.1)
    make_run(here / "runs" / "group" / "large", 3.0, 2.5, learning_rate=0.2, exit_code=None)
    return here / "runs"


def test_runs_table(dsrun, runs):
    done = dsrun("runs", "--sort", "name")
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows = (line.split() for line in done.stdout.splitlines())
    assert head == ["RUN", "STATE", "STEP", "LOSS", "BEST", "AGE", "TIME", "SIZE", "RANKS"]
    assert [row[:6] for row in rows] == [
        ["group/large", "killed", "20/100", "2.5", "loss", "3"],
        ["small", "finished", "30/100", "1", "loss", "1.5"],
    ]
    assert rows[0][-3:] == ["2", "×", "A100"]
    assert "SIZE" not in dsrun("runs", "--no-size").stdout
    assert [line.split()[0] for line in dsrun("runs", "--sort", "loss").stdout.splitlines()[1:]] == [
        "small",
        "group/large",
    ]


def test_runs_of_some_states(dsrun, runs):
    done = dsrun("runs", "runs", "--state", "failed,finished")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["RUN", "small"]
    assert done.stderr == "note: 1 of 2 runs are in other states than failed,finished\n"
    done = dsrun("runs", "--state", "finnished")
    assert (done.returncode, done.stderr) == (
        2,
        "error: --state: 'finnished' is not a state of a run (did you mean finished?)\n",
    )


def test_runs_json(dsrun, runs):
    found = json.loads(dsrun("runs", "--format", "json", "--sort", "step").stdout)
    assert (found["version"], found["folder"]) == (1, "runs")
    first = found["runs"][0]
    assert (first["name"], first["state"], first["step"], first["gpus"]) == (
        "small",
        "finished",
        30,
        ["NVIDIA A100"] * 2,
    )
    assert first["best"] == {"metric": "eval_loss", "value": 1.5, "step": 30, "greater_is_better": False}
    assert first["bytes"] > 0


def test_folders_without_runs(dsrun, here):
    done = dsrun("runs")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: . contains no runs (give a folder with the --output of several dsrun train)\n"
    assert "error: none does not exist" in dsrun("runs", "none").stderr


def test_compare_two_runs(dsrun, runs):
    done = dsrun("compare", "runs/small", "runs/group/large")
    assert (done.returncode, done.stderr) == (0, "")
    settings, metrics, plot = done.stdout.split("\n\n")
    assert [line.split() for line in settings.splitlines()] == [
        ["settings", "that", "differ"], ["small", "large"], ["learning_rate", "0.1", "0.2"],
    ]  # fmt: skip
    assert ["eval_loss", "1.5", "3"] in [line.split() for line in metrics.splitlines()]
    assert plot.splitlines()[0] == "loss  ● small  ▲ large"
    assert "●" in plot.splitlines()[-3]
    assert plot.splitlines()[-1].split() == ["10", "step", "30"]


def test_compare_json_of_a_metric(dsrun, runs):
    done = dsrun("compare", "runs/small", "runs/group/large", "--metric", "eval_loss", "--format", "json")
    found = json.loads(done.stdout)
    assert found["version"] == 1
    assert [run["name"] for run in found["runs"]] == ["small", "large"]
    assert found["settings"] == {"learning_rate": [0.1, 0.2]}
    assert found["metrics"]["loss"] == [1.0, 2.5]
    assert found["curves"] == [[[30, 1.5]], [[20, 3.0]]]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["runs/small"], "1 run to compare (name 2 to 10)"),
        (["runs/small", "runs/../runs/small"], "the same run is named twice (name different runs)"),
        (["runs/small", "none"], "none does not exist (give the --output of a dsrun train or launch)"),
        (["runs/small", "runs/group/large", "--metric", "eval_los"],
         "--metric: none of the runs has logged eval_los (did you mean eval_loss?)"),
    ],
    ids=["one", "twice", "missing", "metric"],
)  # fmt: skip
def test_what_cannot_be_compared_is_one_line(dsrun, runs, args, message):
    done = dsrun("compare", *args)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {message}\n")
