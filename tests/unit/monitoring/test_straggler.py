"""Which rank is called a straggler, from the step times of all ranks."""

from __future__ import annotations

import random
import statistics

import pytest

from dsrun.monitoring.event_text import describe
from dsrun.monitoring.straggler import StragglerDetector
from dsrun.runs.node_status import GpuSample, NodeStatus, RankProgress

GPUS = tuple(GpuSample(index=4 + place, name="NVIDIA H100") for place in range(4))


def progress(
    rank: int, own: list[float], *, step: int = 100, data: float = 0.01, phase="training", stalled=(0, 0.0)
) -> RankProgress:
    """A rank whose last 30 steps took it `own` seconds each, as `dsrun.train.loop.step_times` sums them up."""
    usual = statistics.median(own)
    return RankProgress(
        rank=rank, pid=rank, phase=phase, step=step, silent_s=0.1, step_s=1.0, data_s=data, compute_s=usual - data,
        wait_s=1.0 - usual, own_low_s=sorted(own)[len(own) // 4], stalls=stalled[0], stalled_s=stalled[1],
    )  # fmt: skip


def nodes(ranks: list[RankProgress], *, attempt=0, gpus=GPUS) -> list[NodeStatus]:
    """Nodes of four ranks each."""
    return [
        NodeStatus(
            time="", host=f"node{n}", node=n, attempt=attempt, world_size=len(ranks), gpus=gpus,
            ranks=tuple(ranks[4 * n : 4 * n + 4]),
        )
        for n in range((len(ranks) + 3) // 4)
    ]  # fmt: skip


def steps(rng: random.Random, mean: float, noise: float = 0.05) -> list[float]:
    return [mean * max(0.5, rng.gauss(1, noise)) for _ in range(30)]


@pytest.mark.parametrize("slow", [0, 5])
@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_rank_slower_by_a_fifth_is_named_with_host_and_gpu(slow, noise):
    rng = random.Random(slow)
    ranks = [progress(rank, steps(rng, 0.6 if rank == slow else 0.5, noise)) for rank in range(8)]
    [found] = StragglerDetector().update(nodes(ranks))
    assert (found.rank, found.host, found.kind, found.step) == (slow, f"node{slow // 4}", "slow", 100)
    assert found.gpu == f"GPU {4 + slow % 4} (NVIDIA H100)"
    assert found.slowdown == pytest.approx(1.2, abs=0.04)
    assert f"(node{slow // 4}, GPU" in found.message
    assert "computing" in found.message


def test_figures_come_before_the_end_of_a_line():
    """`monitor --once` cuts an event after 70 characters, behind its time."""
    ranks = [progress(rank, [0.6123 if rank == 103 else 0.5012] * 30, step=12345) for rank in (1, 2, 103)]
    [found] = StragglerDetector().update(nodes(ranks))
    shown = describe({"kind": "straggler", "step": found.step, "message": found.message})[:70]
    assert all(figure in shown for figure in ("12,345", "rank 103", "0.612 s", "1.22", "0.501 s"))


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.2])
def test_noise_names_no_rank(noise):
    """In a thousand looks at eight ranks."""
    rng = random.Random(1)
    detector = StragglerDetector()
    for step in range(1000):
        ranks = [progress(rank, steps(rng, 0.5, noise), step=step) for rank in range(8)]
        assert detector.update(nodes(ranks)) == []


def test_slow_loader_is_named_as_such():
    ranks = [progress(0, [0.5] * 30), progress(1, [0.7] * 30, data=0.2)]
    [found] = StragglerDetector().update(nodes(ranks, gpus=()))
    assert (found.rank, found.gpu) == (1, None)
    assert "the excess is in waiting for data" in found.message


def test_stalls_are_counted_and_become_chronic():
    """Each is told, with the seconds that it took from all; none of them makes a slow rank."""
    detector, found = StragglerDetector(), []
    for stalled in ((0, 0.0), (1, 8.5), (1, 8.5), (2, 14.0), (4, 25.0)):
        found += detector.update(nodes([progress(0, [0.5] * 30), progress(1, [0.5] * 30, stalled=stalled)]))
    assert [(each.rank, each.kind, each.stalls, each.lost_s, each.is_chronic) for each in found] == [
        (1, "stall", 1, 8.5, False),
        (1, "stall", 2, 5.5, False),
        (1, "stall", 4, 11.0, True),
    ]
    assert [each.slowdown for each in found] == [18.0, 12.0, 12.0]
    assert "stalled for 11 s, 4 times so far (25 s)" in found[-1].message


def test_stall_of_all_ranks_is_none():
    """As when the file server does not answer. A later one of a single rank is."""
    detector = StragglerDetector()
    assert detector.update(nodes([progress(rank, [0.5] * 30, stalled=(1, 9.0)) for rank in range(4)])) == []
    ranks = [progress(rank, [0.5] * 30, stalled=(2 if rank == 2 else 1, 12.0)) for rank in range(4)]
    assert [each.rank for each in detector.update(nodes(ranks))] == [2]


@pytest.mark.parametrize(("slower", "named"), [(1.2, 10), (1.3, 10), (1.05, 0)])
def test_rank_slower_by_a_fifth_is_named_in_nine_of_ten_noisy_runs(slower, named):
    """With a noise of a tenth, as on a busy machine."""
    rng = random.Random(7)
    found = 0
    for _ in range(10):
        ranks = [progress(rank, steps(rng, 0.5 * (slower if rank == 3 else 1.0), 0.1)) for rank in range(8)]
        found += [each.rank for each in StragglerDetector().update(nodes(ranks))] == [3]
    assert found >= min(named, 9)
    assert found <= named


def test_few_long_steps_are_no_slow_rank():
    ranks = [progress(0, [0.5] * 30), progress(1, [0.5] * 16 + [0.7] * 14)]
    assert StragglerDetector().update(nodes(ranks)) == []


def test_straggler_named_once_until_it_recovers():
    slow = nodes([progress(0, [0.5] * 30), progress(1, [0.6] * 30)])
    well = nodes([progress(0, [0.5] * 30), progress(1, [0.51] * 30)])
    detector = StragglerDetector()
    assert [len(detector.update(each)) for each in (slow, slow, well, slow, slow)] == [1, 0, 0, 1, 0]


def test_slow_ranks_are_named_once_in_a_long_run():
    """Also where they are left out of a look, since they save, and judged again in the next."""
    rng = random.Random(0)
    detector = StragglerDetector()
    named = []
    for step in range(300):
        slow = [progress(rank, [0.6] * 30, step=step, phase=rng.choice(["training", "saving"])) for rank in (5, 6, 7)]
        ranks = [progress(rank, [0.5] * 30, step=step) for rank in range(5)] + slow
        # None of the stragglers is kept: another may stand where it stood in memory.
        named += [each.rank for each in detector.update(nodes(ranks))]
    assert sorted(named) == [5, 6, 7]


def test_stragglers_of_new_attempt_are_named_again():
    """The status of an earlier attempt, or of a node that has not caught up, does not count."""
    ranks = [progress(rank, [0.6 if rank == 5 else 0.5] * 30) for rank in range(8)]
    detector = StragglerDetector()
    assert len(detector.update(nodes(ranks))) == 1
    first, second = nodes(ranks, attempt=1)[0], nodes(ranks)[1]
    assert detector.update([first, second]) == []
    assert len(detector.update(nodes(ranks, attempt=1))) == 1


@pytest.mark.parametrize(
    "other",
    [
        progress(1, [0.9] * 30, phase="saving"),
        RankProgress(rank=1, pid=1, phase="training", step=9, silent_s=0.0, step_s=1.0, data_s=0.1, compute_s=0.9),
        RankProgress(rank=1, pid=1, phase="running", step=0, silent_s=0.0),
    ],
    ids=["saving", "too few steps", "without heartbeats"],
)
def test_rank_without_times_is_no_straggler(other):
    assert StragglerDetector().update(nodes([progress(0, [0.5] * 30), other])) == []
