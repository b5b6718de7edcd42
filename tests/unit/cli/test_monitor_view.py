"""The monitor's view: what it shows at which size, and its lines for pipes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from rich.console import Console

from dsrun.cli.monitor.run import ChangeLines
from dsrun.cli.monitor.section import MonitorSnapshot, TerminalSize, as_json, of_history, of_job, waiting_for
from dsrun.cli.monitor.view import render_view
from dsrun.machine.gpu_samples import GpuSample
from dsrun.monitoring.run_status import BestMetric, RunStatus
from dsrun.runs.goodput import Goodput
from dsrun.runs.node_status import NodeStatus, RankProgress
from dsrun.runs.reader import RunHistory
from dsrun.slurm.jobs.queue import SlurmJob, read_rows

NOW = 1795600800.0
TIME = "2026-11-25T10:00:00.000Z"
GIB = 1 << 30


def snapshot(*, nodes: int = 1, per_node: int = 8, stuck: bool = False, **status: Any) -> MonitorSnapshot:
    """A run of 1,000 of 5,000 steps."""
    steps = tuple(
        {"step": 10 * n, "loss": 5 / n, "lr": 1e-4, "grad_norm": 1.0, "tokens_per_s": 1000.0} for n in range(1, 101)
    )
    events = tuple({"kind": "checkpoint_end", "time": TIME, "step": 100 * n} for n in range(1, 10))
    known = RunStatus(
        path=Path("runs/llama"), state="training", model="meta-llama/Llama-3.1-8B", step=1000, max_steps=5000,
        epoch=0.5, loss=0.05, lr=1e-4, grad_norm=1.0, tokens_per_s=1000.0, mfu=0.41, padding=0.013, step_s=2.0,
        eta_s=8000.0, since_s=2100.0, silent_s=1.0, checkpoint_step=900, checkpoint_age_s=180.0, time=TIME_USE,
        restarts=1, best=BestMetric(metric="eval_loss", value=0.5, step=900), world_size=nodes * per_node,
    )  # fmt: skip
    history = RunHistory(
        path=Path("runs/llama"), steps=steps, events=events,
        nodes=tuple(node(number, per_node, stuck=stuck) for number in range(nodes)),
    )  # fmt: skip
    return of_history(history, replace(known, **status), NOW)


TIME_USE = Goodput(productive=931, restart=69, lost=0, saving=0, evaluating=0, idle=0)


def node(number: int, count: int, *, stuck: bool) -> NodeStatus:
    gpus = tuple(
        GpuSample(
            index=index, name="NVIDIA H100 80GB HBM3", utilization=1.0, memory_used=61 * GIB, memory_total=80 * GIB,
            power_w=190.0 if stuck and index else 650.0, power_limit_w=700.0, temperature_c=62, clock_mhz=1755,
        )
        for index in range(count)
    )  # fmt: skip
    ranks = tuple(
        RankProgress(
            rank=number * count + index, pid=1, phase="training", step=1000, silent_s=95.0 if stuck else 0.4,
            step_s=2.0, data_s=0.1, compute_s=1.8 if (number, index) == (0, 3) else 1.2, wait_s=0.5,
        )
        for index in range(count)
    )  # fmt: skip
    return NodeStatus(
        time=TIME, host=f"gpu{number + 1:02}", node=number, attempt=0, world_size=count, ranks=ranks, gpus=gpus,
        cpu=0.2, memory_used=200 * GIB, memory_total=1024 * GIB,
    )  # fmt: skip


def drawn(
    shown: MonitorSnapshot, width: int = 120, height: int | None = None, *, ascii_only: bool = False
) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(render_view(shown, TerminalSize(width=width, height=height, ascii_only=ascii_only)))
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.mark.parametrize("seconds", [1e12, 1e18, 1e300])
def test_end_beyond_the_calendar_is_unknown(seconds: float) -> None:
    """As of a number of steps that somebody mistyped: neither a traceback nor hundreds of digits."""
    lines = drawn(snapshot(eta_s=seconds))
    assert [line.split("ETA ")[1] for line in lines if "ETA" in line] == ["unknown"]


@pytest.mark.parametrize("width", [80, 160])
def test_every_figure_is_shown(width: int) -> None:
    text = "\n".join(drawn(snapshot(), width))
    for part in (
        *(
            "training",
            "runs/llama",
            "Llama-3.1-8B",
            "8 ranks",
            "step 1,000 of 5,000",
            "20.0%",
            "ETA 2.2 h",
            "epoch 0.50",
        ),
        *("0.05", "0.0001", "MFU          41.0%", "1.3%", "2 s", "93.1%, 1 restart", "step 900, 3 min ago"),
        *("loss 0.5 at step 900", "61.0/80 GiB", "650/700 W", "62 °C", "200.0/1024 GiB", "CPU 20%", "0.4 s ago"),
        *("checkpoint of step 900 saved", "▁", "◀ slowest"),
    ):
        assert part in text, part
    assert ("┤" in text) == (width == 160)


@pytest.mark.parametrize("stuck", [False, True])
@pytest.mark.parametrize("size", [(80, 23), (60, 13), (100, 30), (120, 39), (200, 59)], ids=str)
@pytest.mark.parametrize("nodes", [0, 1, 8])
def test_the_view_fits_the_terminal(size: tuple[int, int], nodes: int, stuck: bool) -> None:
    width, height = size
    lines = drawn(snapshot(nodes=nodes, stuck=stuck), width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert "step 1,000 of 5,000" in "\n".join(lines)


def test_a_low_terminal_still_shows_gpus_ranks_and_events() -> None:
    lines = drawn(snapshot(stuck=True), 80, 23)
    for part in ("! probably a stuck collective", "GPUs", "busy at low power", "ranks", "95 s ago", "events"):
        assert any(part in line for line in lines), part
    assert "ETA" not in "\n".join(lines)  # at no speed


def test_of_many_ranks_the_conspicuous_are_shown() -> None:
    lines = drawn(snapshot(nodes=8))
    assert "GPUs  64 × H100 80GB HBM3, 100% busy (100% to 100%), 61.0/80 GiB at most, 41.6 kW, 62 °C at most" in lines
    assert "ranks  64, 64 training, at step 1,000; the slowest and the most silent:" in lines
    (slow,) = [line for line in lines if "slowest" in line and "◀" in line]
    assert slow.split()[:2] == ["3", "gpu01"]
    assert sum("H100" not in line and "/80 GiB" in line for line in lines) == 3


def test_ascii_terminals_get_ascii() -> None:
    shown = snapshot()
    lines = drawn(shown, 160, ascii_only=True)
    assert any("###" in line for line in lines)
    drawings = "▁█░┤◀⠉"
    assert not any(mark in line for line in lines for mark in drawings)


def test_no_color_leaves_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    console = Console(width=80, force_terminal=True)
    with console.capture() as captured:
        console.print(render_view(snapshot(), TerminalSize(width=80)))
    assert "\x1b[3" not in captured.get()


def test_foreign_text_cannot_move_the_cursor() -> None:
    events = ({"kind": "failure", "time": TIME, "cause": "x", "message": "a\x1b[2Jb\nc"},)
    shown = snapshot(model="evil\x1b[2J")
    text = "\n".join(drawn(replace(shown, history=replace(shown.history, events=events))))
    assert "\x1b" not in text
    assert "failed: x: a\\x1b[2Jb\\nc" in text


def test_event_that_is_cut_says_so() -> None:
    """Also in front of a blank, where the table would cut without a sign."""
    message = "rank 0 ended with exit code 1: dataset not found"
    shown = snapshot(nodes=0)
    for length in range(10, 80):
        event = {"kind": "failure", "time": TIME, "cause": "x" * length, "message": message}
        lines = drawn(replace(shown, history=replace(shown.history, events=(event,))), 80)
        line = next(line for line in lines if "failed: x" in line)
        assert line.rstrip().endswith(("found", "…")), line


def test_a_failed_run_tells_why() -> None:
    lines = drawn(snapshot(state="failed", cause="cuda_oom", message="rank 1: no memory", eta_s=None))
    assert lines[0].startswith(" failed   runs/llama")
    assert lines[1] == "cuda_oom: rank 1: no memory  (dsrun diagnose runs/llama)"
    assert not any(line.startswith(("GPUs", "ranks")) for line in lines)


def test_nodes_of_a_former_start_are_left_out() -> None:
    """A restart by the supervisor is no new start."""
    shown = snapshot()
    for start, count in (({"time": "2026-11-25T09:00:00.000Z"}, 1), ({"time": "2026-11-25T10:00:09.000Z"}, 0)):
        again = replace(shown.history, events=({"kind": "start", **start}, *shown.history.events))
        assert len(of_history(again, shown.status, NOW).nodes) == count
        restarted = replace(again, events=({**again.events[0], "attempt": 1}, *shown.history.events))
        assert len(of_history(restarted, shown.status, NOW).nodes) == 1


def job(**changes: str) -> SlurmJob:
    row = {
        "id": "70", "number": "70", "state": "PENDING", "reason": "Resources", "partition": "gpu", "nodes": "",
        "node_count": "2", "elapsed": "0:00", "time_limit": "5:00:00", "submitted": "2026-11-25T09:00:00",
        "started": "2026-11-25T18:30:00", "ended": "", "work_dir": "/home/ada", "name": "t5",
    }  # fmt: skip
    return read_rows([tuple({**row, **changes}.values())])[0]


def test_a_job_in_the_queue() -> None:
    shown = waiting_for(job(), NOW)
    lines = drawn(shown, 80)
    assert lines[1:] == [
        "job 70 t5  PENDING",
        "Resources: waits for nodes to come free",
        "2 nodes of gpu, submitted at 2026-11-25 09:00:00",
        "expected to start at 2026-11-25 18:30:00",
    ]
    assert as_json(shown)["job"]["expected_start"] == "2026-11-25T18:30:00"
    assert not shown.is_over
    assert waiting_for(job(state="CANCELLED"), NOW).is_over


def test_a_run_of_a_job_ends_with_the_job() -> None:
    """A requeued job goes on after its run has stopped."""
    stopped = snapshot(state="stopped")
    assert stopped.is_over
    assert not of_job(stopped, job()).is_over
    assert of_job(stopped, job(state="COMPLETED")).is_over


@pytest.mark.parametrize(
    ("kind", "ended", "state"),
    [
        ("run", "NODE_FAIL", "killed"),
        ("log", "COMPLETED", "finished"),
        ("log", "FAILED", "failed"),
        ("log", "RUNNING", "training"),
    ],
)
def test_what_has_not_ended_ends_with_its_job(kind: Literal["run", "log"], ended: str, state: str) -> None:
    assert of_job(replace(snapshot(), kind=kind), job(state=ended)).status.state == state


def test_plain_lines_tell_changes_only() -> None:
    changes = ChangeLines()
    shown = snapshot()
    lines = changes.lines(shown)
    state = "training  step 1,000/5,000 (20.0%)  loss 0.05  lr 0.0001  grad norm 1  tokens/s 1,000  ETA 2.2 h"
    assert lines[-1].endswith(f"  {state}")
    assert "slower than the others" in lines[0]
    assert changes.lines(shown) == []
    event = {"kind": "evaluate", "time": TIME, "step": 1000, "metrics": {"eval_loss": 0.4}}
    later = replace(shown, history=replace(shown.history, events=(*shown.history.events, event)))
    assert [line.partition("  ")[2] for line in changes.lines(later)] == ["evaluated at step 1,000: loss 0.4"]
    ended = replace(later, status=replace(later.status, state="failed", cause="nan_loss", eta_s=None))
    assert changes.lines(ended)[-1].endswith("nan_loss")


def test_json_has_no_nan() -> None:
    content = as_json(snapshot())
    assert (content["kind"], content["status"]["step"], content["status"]["path"]) == ("run", 1000, "runs/llama")
    assert content["status"]["is_over"] is False
    assert content["nodes"][0]["gpus"][0]["power_w"] == 650.0
    assert [finding["code"] for finding in content["findings"]] == ["slow_rank"]
    assert content["job"] is None
