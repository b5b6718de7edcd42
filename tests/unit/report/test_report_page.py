"""The page of a report: for runs in every state, well formed, self-contained, without foreign HTML and secrets."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsrun.errors import UsageError
from dsrun.machine.gpu_samples import GpuSample
from dsrun.monitoring import run_status as status
from dsrun.report.data import read_run
from dsrun.report.page import node_tables, render_page
from dsrun.runs.folder import RunFolder
from dsrun.runs.node_status import NodeStatus, RankProgress, write_node_status
from tests.run_folders import RUN, at, event, finished_run, steps, write_run
from tests.unit.report.pages import Page, page_of, report_on

SECRET = "hf_" + "a1B2c3D4e5F6g7H8i9J0"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'"


def killed(folder: Path) -> Path:
    return write_run(folder, events=[event("start"), event("training", 1, step=0, max_steps=90)], metrics=steps(20))


STATES = {
    "finished": finished_run,
    "failed": lambda folder: write_run(
        folder,
        events=[
            event("start"),
            event("training", 1),
            event("failure", 9, cause="cuda_oom", message="rank 1: no memory"),
        ],
        metrics=steps(5),
    ),
    "stopped": lambda folder: write_run(
        folder, events=[event("start"), event("training", 1), event("signal", 5, signal="SIGTERM")], metrics=steps(5)
    ),
    "killed": killed,
}


@pytest.mark.parametrize("state", STATES)
def test_page_of_a_run_in_each_state(tmp_path: Path, state: str) -> None:
    page = page_of(STATES[state](tmp_path / "run"))
    symbol = {"finished": "✓", "stopped": "■"}.get(state, "✕")
    assert f"run {symbol} {state}" in page.text
    assert "t5-small · node1" in page.text
    assert "learning_rate 0.0001 run.yaml" in page.text
    assert "2 × NVIDIA H100" in page.text


def test_failed_run_shows_cause_and_fix(tmp_path: Path) -> None:
    page = page_of(STATES["failed"](tmp_path / "run"))
    assert "GPU memory exhausted Cause cuda_oom" in page.text
    assert "rank 1: no memory" in page.text
    assert "Fix halve --micro-batch-size" in page.text


def test_running_run_shows_the_time_left(tmp_path: Path) -> None:
    folder = killed(tmp_path / "run")
    with RunFolder(folder).acquire():
        page = page_of(folder)
    assert "▶ training" in page.text
    assert "of 90" in page.text
    assert "Time left 70 s 1 s a step" in page.text
    assert "Goodput 95.0% of 20 s" in page.text
    assert "Why it stopped" not in page.text


def test_program_of_launch_has_a_page(tmp_path: Path) -> None:
    """Its run folder holds events and logs only."""
    folder = write_run(
        tmp_path / "run", run=None, events=[event("failure", cause="unknown", message="rank 0: exit code 1")]
    )
    (folder / "metrics.jsonl").unlink()
    page = page_of(folder)
    assert "a program under dsrun launch" in page.text
    assert "nor is one in the output of the program" in page.text
    assert "rank 0: exit code 1" in page.text


def test_run_that_died_before_run_json_shows_its_recipe(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", run=None)
    recipe = {
        "version": 1,
        "values": {"model": "t5-base", "seed": 3},
        "sources": {"model": "command line", "seed": "run.yaml"},
    }
    (folder / "recipe.json").write_text(json.dumps(recipe))
    page = page_of(folder)
    assert "seed 3 run.yaml" in page.text
    assert "t5-base" in page.text


def test_evaluations_texts_and_checkpoints(tmp_path: Path) -> None:
    folder = finished_run(tmp_path / "run")
    (folder / "checkpoint-15").mkdir()
    page = page_of(folder)
    assert "step Loss BLEU 15 2 5 30 best 1 10" in page.text
    assert "Prompt one step 15 text 15 step 30 text 30" in page.text
    assert "source prediction reference two doi doi" in page.text
    assert "damaged" in page.text
    assert "checkpoint of step 15 saved, 5.0 MiB, training waited 1 s" in page.text


def node(number: int, *ranks: RankProgress, second: float = 25.0, **more: Any) -> NodeStatus:
    return NodeStatus(
        time=at(second), host=f"gpu{number}", node=number, attempt=0, world_size=4, ranks=tuple(ranks), **more
    )


def test_ranks_and_gpus_of_the_nodes(tmp_path: Path) -> None:
    """Only those of this start, and no columns of which nothing is known."""
    folder = finished_run(tmp_path / "run")
    gpu = GpuSample(index=3, uuid="GPU-3", name="NVIDIA H100", utilization=0.99, power_w=250, power_limit_w=700)
    fast, slow = (
        RankProgress(rank=rank, pid=rank, phase="training", step=30, silent_s=0, step_s=2.0, data_s=0.1, compute_s=work)
        for rank, work in ((0, 1.0), (1, 1.8))
    )
    for each in (node(0, fast, gpus=(gpu,)), node(1, slow), node(2, replace(slow, rank=9), second=-60)):
        write_node_status(folder, each)
    page = page_of(folder)
    assert "rank host phase step step time for data own work 0 gpu0 training 30 2 s 0.1 s 1.1 s 1" in page.text
    assert "1 gpu1 training 30 2 s 0.1 s 1.9 s slowest" in page.text
    assert "GPU name use power gpu0, 3 H100 99% 250 of 700 W busy at low power" in page.text
    assert "gpu2" not in page.text


def test_of_many_ranks_the_slowest_are_shown() -> None:
    ranks = [
        RankProgress(
            rank=n, pid=n, phase="training", step=5 - (n == 70), silent_s=0, step_s=1, data_s=0, compute_s=n / 100
        )
        for n in range(100)
    ]
    table = node_tables([node(0, *ranks)])[0]
    assert [int(row[0]) for row in table.rows] == [70, *range(85, 100)]
    assert table.caption.startswith("The 16 slowest of 100 ranks at 2026-11-25 10:00")


def test_configuration_is_checked(tmp_path: Path) -> None:
    wrong = {**RUN, "deepspeed": {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}}
    run = read_run(finished_run(tmp_path / "run", run=wrong), "run")
    assert run.findings
    assert "info" not in {finding.level for finding in run.findings}
    page = page_of(tmp_path / "run")
    assert all(finding.code in page.text for finding in run.findings)
    assert read_run(finished_run(tmp_path / "right"), "run").findings == ()


def hostile_run(folder: Path, text: str) -> Path:
    """A run in which every text that a page shows is `text`."""
    run = {
        **RUN, "model": text, "host": text, "command": ["dsrun", text], "task": text, "git_commit": text,
        "gpus": [text], "versions": {text: text},
        "specs": {"train": {"model": text, text: text, "list": [text, {text: text}]}},
        "sources": {"model": text, text: "default"}, "deepspeed": {text: text}, "model_type": text,
    }  # fmt: skip
    metrics = steps(5, **{f"loss/{text}": 1.0})
    metrics.append({"step": 5, "eval_loss": 1.0, f"eval_{text}": 2.0, "eval_note": text})
    kinds = ("start", "training", "resume", "checkpoint_end", "evaluate", "nan", "spike", "signal", "failure", text)
    details = {
        "message": text,
        "path": text,
        "signal": text,
        "cause": text,
        "host": text,
        "metrics": {f"eval_{text}": 1.0},
    }
    events = [event(kind, second, step=second, **details) for second, kind in enumerate(kinds)]
    write_run(
        folder, run=run, events=events, metrics=metrics,
        samples=[{"step": 1, "prompt": text, "text": text}, {"step": 1, "prompt": [{"content": text}], "text": text}],
        predictions_validation=[{"source": text, "prediction": text, "reference": text}],
    )  # fmt: skip
    (folder / "logs").mkdir()
    (folder / "logs" / "rank-0.attempt-0.log").write_bytes(
        f"Traceback (most recent call last):\nValueError: {text}\n".encode("utf-8", "replace")
    )
    return folder


def test_foreign_text_is_no_html(tmp_path: Path) -> None:
    """Of one run and of several, whose names are foreign, too."""
    one = hostile_run(tmp_path / "<script>alert(3)<", HOSTILE)
    for folders in ([one], [one, finished_run(tmp_path / "<img src=x onerror=alert(4)>")]):
        page = page_of(*folders)
        assert [tag for tag, _ in page.elements].count("script") == 2
        assert not [name for _, attrs in page.elements for name in attrs if name.startswith("on")]
        assert "alert(1)" in page.text
        assert json.loads(page.script)


def test_control_characters_are_visible(tmp_path: Path) -> None:
    html = render_page(report_on(hostile_run(tmp_path / "run", "a\x1b[2J\u202eb\x00\ud800c")))
    assert not set("\x1b\x00\u202e") & set(html)
    assert "\\u202eb\\x00" in html
    html.encode("utf-8", "backslashreplace")


def test_no_access_token_is_shown(tmp_path: Path) -> None:
    """Also not those of files that an older version or another program wrote."""
    folder = hostile_run(tmp_path / "run", f"token {SECRET} https://me:{SECRET}@host/x")
    run = json.loads((folder / "run.json").read_text())
    run["specs"]["train"]["hub_token"] = run["deepspeed"]["comet"] = {"api_key": "hunter2"}
    run["command"] = ["dsrun", "train", "--hub_token", "hunter2", f"--x={SECRET}"]
    (folder / "run.json").write_text(json.dumps(run))
    html = render_page(report_on(folder))
    assert SECRET not in html
    assert "hunter2" not in html
    assert "***" in html


def test_page_of_a_long_run_is_small(tmp_path: Path) -> None:
    events = [event("start", world_size=2), event("training", 1, step=0)]
    for step in range(10, 30_000, 10):
        events += [event("checkpoint_begin", step, step=step), event("checkpoint_end", step + 1, step=step, seconds=1)]
    metrics = [{**record, "loss": record["loss"] + record["step"] % 13} for record in steps(50_000)]
    report = report_on(write_run(tmp_path, events=events, metrics=metrics))
    assert len(render_page(report)) < 600_000
    assert all(len(curve.points) <= 1010 for panel in report.panels for curve in panel.curves)


def test_json_has_what_the_page_draws(tmp_path: Path) -> None:
    metrics = steps(4)
    metrics[2]["loss"] = math.nan
    folder = finished_run(tmp_path / "run")
    write_run(folder, metrics=[*metrics, {"step": 4, "eval_loss": 3.0}], events=[event("start")])
    report = report_on(folder, finished_run(tmp_path / "other"))
    found = json.loads(json.dumps(report.as_dict(), allow_nan=False, default=str))
    drawn = json.loads(page_of(folder, tmp_path / "other").script)
    assert [panel["name"] for panel in found["panels"] if panel not in found["panels"][: len(drawn)]] == ["eval_bleu"]
    for panel, chart in zip(found["panels"], drawn, strict=False):
        for curve, points in zip(panel["curves"], chart["curves"], strict=True):
            assert [step for step, _ in curve["points"]] == points["steps"]
            for (_, value), shown in zip(curve["points"], points["values"], strict=True):
                assert shown == (value if value is None else pytest.approx(value, rel=1e-4))
    assert found["panels"][0]["curves"][0]["points"][2] == [3, None]
    assert found["runs"][0]["evaluations"] == [{"step": 4, "eval_loss": 3.0}]
    assert {"name", "path", "status", "goodput", "verdict", "settings", "events", "checkpoints"} <= set(
        found["runs"][0]
    )


def test_several_runs_and_what_differs(tmp_path: Path) -> None:
    other = {**RUN, "specs": {"train": {**RUN["specs"]["train"], "learning_rate": 2e-4}}, "host": "node2"}
    folders = [finished_run(tmp_path / "a"), finished_run(tmp_path / "b", run=other)]
    folders.append(write_run(tmp_path / "c", run=None, events=[event("start")]))
    report = report_on(*folders)
    assert [(each.name, each.kind, each.values) for each in report.differences] == [
        ("learning_rate", "setting", (1e-4, 2e-4, None)), ("host", "environment", ("node1", "node2", None)),
    ]  # fmt: skip
    page = page_of(*folders)
    assert "3 runs" in page.text
    assert "learning_rate 0.0001 0.0002 —" in page.text
    assert {"run-0", "run-1", "run-2"} <= set(page.ids())


@pytest.mark.parametrize(("count", "evaluations"), [(0, 0), (1, 0), (1, 1), (2, 2), (3, 2), (30, 1)])
@pytest.mark.parametrize("runs", [1, 2])
def test_no_chart_has_fewer_than_three_points(tmp_path: Path, count: int, evaluations: int, runs: int) -> None:
    """What is not drawn stands in a table, and a run without any figure says so."""
    measured = [{"time": at(count), "step": step, "eval_loss": 2.0, "eval_bleu": 12.5} for step in range(evaluations)]
    folders = [tmp_path / name for name in "ab"[:runs]]
    for folder in folders:
        write_run(folder, events=[event("start")], metrics=[*steps(count), *measured])
    page = page_of(*folders)
    charts = json.loads(page.script)
    assert all(max(len(curve["steps"]) for curve in chart["curves"]) >= 3 for chart in charts)
    assert bool(charts) == (count >= 3)
    assert ("No step has been logged" in page.text) == (not count)
    assert page.text.count("Throughput, a 1 1,001 tokens/s") == (runs == 2 and count in (1, 2))
    assert page.text.count("Throughput 1 1,001 tokens/s") == (runs == 1 and count in (1, 2))
    assert ("12.5" in page.text) == bool(evaluations)


def test_metrics_that_are_mostly_nan_fill_no_page(tmp_path: Path) -> None:
    broken = [{**record, "loss": math.nan} for record in steps(500)]
    broken[0]["loss"] = 2.0
    page = page_of(write_run(tmp_path, events=[event("start")], metrics=broken))
    assert page.text.count("Loss, training") == 30


def test_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="contains no run"):
        read_run(tmp_path, "x")


VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10**20) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
KEYS = ("step", "loss", "eval_loss", "eval_x", "lr", "time", "tokens_per_s", "kind", "max_steps", "metrics", "seconds")
ODD = st.dictionaries(
    st.sampled_from((*KEYS, "exit_code", "bytes", "rank", "world_size", "attempt")), VALUES, max_size=6
)
KIND = st.sampled_from(["start", "training", "failure", "evaluate", "checkpoint_end", "end", "signal", "nan"])
RUN_KEYS = st.dictionaries(st.sampled_from([*RUN, "speed", "nonsense"]), VALUES, max_size=6)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(ODD, max_size=5),
    st.lists(st.builds(lambda each, kind: {**each, "kind": kind}, ODD, KIND), max_size=5),
    RUN_KEYS,
)
def test_odd_values_never_break_a_page(
    tmp_path: Path, metrics: list[dict[str, Any]], events: list[dict[str, Any]], run: dict[str, Any]
) -> None:
    """Files of another version, of another program, or damaged."""
    (tmp_path / "run.json").unlink(missing_ok=True)
    folder = write_run(tmp_path, events=[*events, event("start")], metrics=metrics, run={**RUN, **run})
    page = Page(render_page(report_on(folder)))
    assert (page.unbalanced, page.open) == ([], [])


def test_goodput_of_a_page_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its figure, its table and the strip are of one sum."""
    sums = []
    summed = status.goodput
    monkeypatch.setattr(status, "goodput", lambda events: sums.append(1) or summed(events))
    page = page_of(finished_run(tmp_path))
    assert "Goodput" in page.text
    assert len(sums) == 1
