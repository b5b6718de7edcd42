"""What a look at GPUs and ranks shows to be wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsrun.machine.gpu_samples import GpuSample
from dsrun.monitoring.observations import is_waiting_while_busy, observe, slowest, wait_share
from dsrun.monitoring.run_status import RunStatus
from dsrun.runs.node_status import NodeStatus, RankProgress

NOW = 1795600800.0
TIME = "2026-11-25T10:00:00.000Z"
TRAINING = RunStatus(path=Path("run"), state="training", step=100, step_s=1.0)


def gpu(index: int = 0, **more: Any) -> GpuSample:
    values = {"utilization": 1.0, "power_w": 650.0, "power_limit_w": 700.0, "temperature_c": 60}
    return GpuSample(index=index, name="NVIDIA H100 80GB HBM3", **{**values, **more})


def rank(number: int, **more: Any) -> RankProgress:
    values = {"phase": "training", "step": 100, "silent_s": 0.5, "step_s": 1.0, "data_s": 0.1, "compute_s": 0.6}
    return RankProgress(rank=number, pid=number + 1, **{**values, **more})


def node(*ranks: RankProgress, gpus: tuple[GpuSample, ...] = (), number: int = 0, time: str = TIME) -> NodeStatus:
    return NodeStatus(
        time=time, host=f"gpu{number + 1:02}", node=number, attempt=0, world_size=8, ranks=ranks, gpus=gpus
    )


def codes(*nodes: NodeStatus, status: RunStatus = TRAINING, now: float = NOW) -> list[str]:
    return [finding.code for finding in observe(status, nodes, now)]


@pytest.mark.parametrize(
    ("utilization", "power", "limit", "waits"),
    [
        (1.0, 190.0, 700.0, True),
        (0.95, 279.0, 700.0, True),
        (1.0, 281.0, 700.0, False),
        (0.94, 190.0, 700.0, False),
        (None, 190.0, 700.0, False),
        (1.0, None, 700.0, False),
        (1.0, 190.0, None, False),
    ],
)
def test_busy_at_low_power(utilization: float | None, power: float | None, limit: float | None, waits: bool) -> None:
    assert is_waiting_while_busy(gpu(utilization=utilization, power_w=power, power_limit_w=limit)) is waits


def test_a_stuck_collective_is_called_so() -> None:
    """Busy GPUs at low power and no step for long; the one that does not wait is named."""
    gpus = (gpu(0, power_w=190.0), gpu(1, power_w=195.0), gpu(2))
    stuck = node(rank(0, silent_s=30.0), rank(1, silent_s=31.0), rank(2, silent_s=31.0), gpus=gpus)
    finding, *others = observe(TRAINING, [stuck], NOW)
    assert (finding.level, finding.code, others) == ("error", "stuck_collective", [])
    assert finding.message == (
        "probably a stuck collective: no rank has made a step for 31 s, "
        "and GPUs 0, 1 of gpu01 are busy at low power (190 of 700 W)"
    )
    assert "GPU 2 of gpu01" in finding.fix


def test_busy_at_low_power_while_steps_are_made() -> None:
    """Bound by communication or memory: no reason to call anything stuck."""
    assert codes(node(rank(0), rank(1), gpus=(gpu(0, power_w=190.0),))) == ["waiting_gpu"]


def test_a_slow_step_is_not_stuck() -> None:
    status = replace(TRAINING, step_s=60.0)
    silent = [rank(number, silent_s=100.0, step_s=60.0) for number in range(2)]
    assert codes(node(*silent, gpus=(gpu(0, power_w=190.0),)), status=status) == ["waiting_gpu"]


def test_throttled_gpus_have_a_reason_that_is_not_the_power_cap() -> None:
    hot = gpu(3, throttled=("sw_power_cap", "hw_thermal_slowdown"), temperature_c=91)
    (finding,) = observe(TRAINING, [node(gpus=(gpu(0, throttled=("sw_power_cap",)), hot))], NOW)
    assert finding.code == "throttled_gpu"
    assert finding.message == "GPU 3 of gpu01 is slowed down at 91 °C: much too hot"


def test_silent_ranks() -> None:
    (finding,) = observe(TRAINING, [node(rank(0), rank(1, silent_s=90.0, phase="evaluating"))], NOW)
    assert finding.message == "no heartbeat from rank 1 of gpu01 for 90 s, in evaluating"
    assert codes(node(rank(0), rank(1, silent_s=90.0, step_s=30.0))) == []


def test_a_node_without_news() -> None:
    """What its ranks did half a minute ago is no news; a clock that is ahead does not make it silent."""
    old = node(rank(0, silent_s=500.0), number=1, time="2026-11-25T09:59:00.000Z")
    assert codes(node(rank(1)), old) == ["silent_node"]
    assert codes(node(rank(1), time="2026-11-25T10:05:00.000Z")) == []


def test_the_slowest_rank_is_marked() -> None:
    ranks = [rank(number) for number in range(8)]
    assert slowest(ranks) is None
    ranks[5] = replace(ranks[5], compute_s=0.8, wait_s=0.05)
    assert slowest(ranks) is ranks[5]
    assert wait_share(ranks[5]) == 0.05
    (finding,) = observe(TRAINING, [node(*ranks)], NOW)
    assert finding.message == "rank 5 on gpu01 is slower than the others: its work takes 0.9 s a step, 0.7 s elsewhere"


def test_a_rank_that_is_steps_behind_is_the_slowest() -> None:
    ranks = [rank(0), rank(1, step=97), rank(2), rank(3, step=99)]
    assert slowest(ranks) is ranks[1]
    assert slowest([rank(0), rank(1, step=99)]) is None


def test_of_an_ended_run_nothing_is_wrong() -> None:
    status = replace(TRAINING, state="finished")
    assert codes(node(rank(0, silent_s=9000.0), gpus=(gpu(power_w=100.0),)), status=status) == []
