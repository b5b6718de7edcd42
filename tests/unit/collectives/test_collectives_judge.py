"""What the collective test makes of what it has seen: pure functions on made-up observations."""

from __future__ import annotations

from dataclasses import asdict
from itertools import combinations

import pytest

from dsrun.collectives.judge import judge, slower, slower_in_pairs
from dsrun.collectives.observations import (
    CollectiveMember,
    CollectiveObservations,
    GroupResult,
    NodeFacts,
    RankResult,
    differences,
    differing,
)
from dsrun.collectives.place import MemberPlace, place_of
from dsrun.collectives.report import as_json, common_facts, member_rows, together
from dsrun.collectives.schedule import (
    ALL_PAIRS_UP_TO,
    CollectivePhase,
    bus_bandwidth,
    bus_factor,
    cover,
    rank_factor,
    rounds,
    summed_factor,
    units_of,
)
from dsrun.errors import UsageError
from dsrun.findings.finding import text_of
from dsrun.findings.finding import text_table as table_of
from dsrun.launch.context import SrunLauncher


def test_bus_factors_are_those_of_nccl_tests() -> None:
    """Their PERFORMANCE.md, for 8 ranks."""
    assert bus_factor("all_reduce", 8) == 2 * 7 / 8
    assert bus_factor("all_gather", 8) == bus_factor("reduce_scatter", 8) == 7 / 8
    assert bus_factor("broadcast", 8) == 1
    # 1 GB in 0.1 and 0.3 s on two ranks: 0.2 s on average.
    assert bus_bandwidth("all_reduce", 2, 10**9, [0.1, 0.3]) == pytest.approx(5)


def test_sums_over_many_ranks_are_exact_in_fp32() -> None:
    assert summed_factor(10_000) * 13 < 2**24
    assert summed_factor(3) == rank_factor(0) + rank_factor(1) + rank_factor(2)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7, 8, ALL_PAIRS_UP_TO])
def test_each_pair_meets_once_and_each_unit_once_a_round(count) -> None:
    found = rounds(count)
    assert sorted(pair for pairs in found for pair in pairs) == sorted(combinations(range(count), 2))
    for pairs in found:
        busy = [unit for pair in pairs for unit in pair]
        assert len(busy) == len(set(busy))


def test_many_units_meet_few_others_in_few_rounds() -> None:
    found = rounds(1000)
    assert len(found) <= 20
    assert {unit for pairs in found for pair in pairs for unit in pair} == set(range(1000))
    assert all(len({unit for pair in pairs for unit in pair}) == 2 * len(pairs) for pairs in found)


def test_cover_blames_the_unit_that_all_failures_share() -> None:
    assert cover([frozenset((0, 2)), frozenset((1, 2)), frozenset((2, 3))]) == [2]
    # Of two, not the first node, which runs the job's script.
    assert cover([frozenset((0, 1))]) == [1]
    assert cover([]) == []


def test_units_are_nodes_or_the_ranks_of_one_machine() -> None:
    units = units_of([(0, "a", 2), (1, "b", 2)])
    assert [(unit.name, unit.ranks) for unit in units] == [("a", (0, 1)), ("b", (2, 3))]
    # srun started a task per rank.
    units = units_of([(0, "a", 1), (1, "a", 1), (2, "b", 1), (3, "b", 1)])
    assert [(unit.name, unit.ranks, unit.members) for unit in units] == [("a", (0, 1), (0, 1)), ("b", (2, 3), (2, 3))]
    assert [unit.name for unit in units_of([(0, "a", 3)])] == ["rank 0", "rank 1", "rank 2"]


FACTS = NodeFacts(host="", python="3.11.7", torch="2.13.0", deepspeed="0.19.8", dsrun="0.1.0", gpus=("A100", "A100"))


def nodes(count: int, **others: NodeFacts) -> CollectiveObservations:
    """So many nodes with one rank each; `others` by host have their own facts."""
    seen = CollectiveObservations(count=count, names=[f"n{index}" for index in range(count)], address="n0:29500")
    for index in range(count):
        host = f"n{index}"
        facts = NodeFacts(**{**asdict(others.get(host, FACTS)), "host": host})
        seen.members[index] = CollectiveMember(index=index, facts=facts, ranks=1, device="cuda", address=host)
    seen.units = units_of((index, f"n{index}", 1) for index in range(count))
    return seen


def done(seconds: float) -> RankResult:
    own = {"seconds": seconds, "best": seconds, "size": 4e6}
    return RankResult(state="ok", at="end", measured={"all_reduce": own})


def pair(seen: CollectiveObservations, a: int, b: int, *results: RankResult) -> None:
    units = (seen.units[a], seen.units[b])
    phase = CollectivePhase("pairs", len(seen.groups), (units,))
    seen.groups.append(GroupResult(phase, units, {a: results[0], b: results[-1]}))


def codes(seen: CollectiveObservations) -> dict[str, str]:
    return {each.code: each.message for each in judge(seen).findings}


def test_healthy_nodes_have_no_findings() -> None:
    seen = nodes(3)
    for a, b in combinations(range(3), 2):
        pair(seen, a, b, done(0.01))
    verdict = judge(seen)
    assert verdict.findings == ()
    assert not verdict.failed
    assert [row[-1] for row in member_rows(seen, verdict)] == ["result", "ok", "ok", "ok"]


def test_node_that_others_cannot_reach_is_the_one_to_exclude() -> None:
    seen = nodes(4)
    seen.unreachable = [(0, 2, "n2:29500", "no answer within 5 s"), (0, 2, "n2:29501", "no answer within 5 s")]
    seen.unreachable += [(3, 2, "n2:29500", "no answer within 5 s"), (2, 1, "n1:29500", "No route to host")]
    verdict = judge(seen)
    assert [each.code for each in verdict.findings] == ["tcp_unreachable"] * 3
    values = [each.message.values for each in verdict.findings]
    found = [(each["peer"], each["ports"], each["why"]) for each in values if each["name"] == "node 0 (n0)"]
    assert found == [("node 2 (n2)", "n2:29500 and n2:29501", "no answer within 5 s")]
    assert verdict.exclude == ("n2",)


def test_missing_node_is_in_the_table_and_excluded() -> None:
    seen = nodes(3)
    del seen.members[2], seen.units[2]
    seen.missing = [2]
    verdict = judge(seen)
    assert verdict.exclude == ("n2",)
    row = member_rows(seen, verdict)[-1]
    assert (row[0], row[-1]) == ("n2", "node_missing")


def test_pair_that_hangs_while_connecting_is_named() -> None:
    seen = nodes(3)
    pair(seen, 0, 1, done(0.01))
    for other in (0, 1):
        pair(seen, other, 2, RankResult(state="hung", at="connect"))
    verdict = judge(seen)
    first = verdict.findings[0]
    assert (first.code, first.message.values["who"]) == ("cannot_connect", "n0 and n2")
    assert first.message.values["during"] == text_of("collective_failed.in_pair", names="n0 and n2")
    assert verdict.exclude == ("n2",)


def test_rank_that_stays_behind_is_named_and_the_waiting_ones_are_not() -> None:
    seen = nodes(3)
    stuck = RankResult(state="hung", at="broadcast")
    waiting = RankResult(state="hung", at="all_reduce")
    units = tuple(seen.units)
    seen.groups.append(GroupResult(CollectivePhase("all", 0, (units,)), units, {0: waiting, 1: stuck, 2: waiting}))
    verdict = judge(seen)
    (finding,) = verdict.findings
    assert (finding.code, finding.message.values["rank"]) == ("rank_hung", "rank 1 on n1")
    assert finding.message.values["what"].values["stage"].values == {"stage": "broadcast"}
    assert finding.message.values["during"] == text_of("collective_failed.all_together")
    assert verdict.exclude == ("n1",)


def test_wrong_values_name_their_source() -> None:
    seen = nodes(3)
    wrong = RankResult(state="ok", wrong={"all_gather": {"count": 5, "of": 300, "from": [1]}})
    units = tuple(seen.units)
    ok = RankResult(state="ok")
    seen.groups.append(GroupResult(CollectivePhase("all", 0, (units,)), units, {0: wrong, 1: ok, 2: ok}))
    verdict = judge(seen)
    finding = verdict.findings[0]
    expected = {"operation": "all_gather", "rank": "rank 0 on n0", "count": 5, "total": 300, "sources": "1"}
    assert (finding.code, finding.message.values) == ("wrong_values", finding.message.values | expected)
    assert verdict.exclude == ("n1",)


def test_slow_node_and_slow_pair_are_told_apart() -> None:
    times = dict.fromkeys(combinations("abcd", 2), 1.0)
    assert slower_in_pairs({pair: 1.2 if "c" in pair else 1.0 for pair in times}) == {"c": pytest.approx(1.2)}
    # One slow connection is neither node's fault.
    assert slower_in_pairs({**times, ("a", "b"): 3.0}) == {}
    assert slower({**times, ("a", "b"): 3.0}, 1.5) == {("a", "b"): pytest.approx(3.0)}


def test_ten_percent_make_a_rank_slow() -> None:
    assert slower({0: 1.0, 1: 1.09, 2: 1.0}) == {}
    assert slower({0: 1.0, 1: 1.2, 2: 1.0}) == {1: pytest.approx(1.2)}
    assert slower({0: 1.0}) == {}


def test_minority_of_versions_is_to_be_excluded() -> None:
    other = NodeFacts(**{**asdict(FACTS), "torch": "2.12.0", "driver": "550.54"})
    seen = nodes(3, n1=other)
    verdict = judge(seen)
    (torch,) = [each for each in verdict.findings if each.level == "error"]
    assert (torch.code, torch.where, torch.message.values["title"]) == ("nodes_differ", "n1", "torch")
    parts = torch.message.values["parts"].values
    assert [each.values for each in parts] == [
        {"value": "2.13.0", "nodes": "n[0,2]"}, {"value": "2.12.0", "nodes": "n1"},
    ]  # fmt: skip
    assert verdict.exclude == ("n1",)
    # Drivers may differ, which is worth a look.
    assert [each.level for each in verdict.findings] == ["error", "warning"]
    head, *rows = member_rows(seen, verdict)
    assert head[5:-1] == ["torch", "driver"]
    assert rows[1][5:7] == ["2.12.0", "550.54"]
    assert "torch" not in common_facts([member.facts for member in seen.members.values()])


def test_two_nodes_that_differ_accuse_neither() -> None:
    facts = {"a": FACTS, "b": NodeFacts(**{**asdict(FACTS), "torch": "2.12.0"})}
    assert differing(list(facts.values())) == ["torch"]
    ((_, hosts),) = differences(facts, {"a": 0.0, "b": 0.0})
    assert hosts == []


def test_clock_skew_is_a_warning() -> None:
    ((finding, _),) = differences({"a": FACTS, "b": FACTS}, {"a": 0.0, "b": -75.04})
    assert (finding.level, finding.code) == ("warning", "clock_skew")
    assert finding.message.template == table_of("clock_skew.behind")["message"]
    assert finding.message.values == {"node": "b", "seconds": pytest.approx(75.04)}


def test_report_has_bandwidths_of_all_ranks() -> None:
    seen = nodes(2)
    units = tuple(seen.units)
    seen.groups.append(GroupResult(CollectivePhase("all", 0, (units,)), units, {0: done(0.001), 1: done(0.001)}))
    assert together(seen) == "all 2 ranks, busbw in GB/s: all_reduce 4"
    found = as_json(seen, judge(seen))
    assert found["groups"][0]["busbw"] == {"all_reduce": 4.0}
    assert found["exclude"] == ()


STEP = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "n[1-2]",
}  # fmt: skip


def found_place(environ: dict[str, str], **given: object) -> MemberPlace | SrunLauncher:
    nothing = {"ranks": None, "nodes": None, "node_rank": None, "master_addr": None, "master_port": None}
    return place_of(**{**nothing, **given}, environ=environ)


def test_task_per_node_takes_part_as_a_node() -> None:
    place = found_place({**STEP, "SLURM_STEP_NUM_TASKS": "2", "SLURM_NODEID": "1", "SLURM_PROCID": "1"})
    assert isinstance(place, MemberPlace)
    assert (place.index, place.count, place.host, place.names) == (1, 2, "n1", ("n1", "n2"))
    assert (place.ranks, place.local_rank) == (None, None)


def test_task_per_rank_takes_part_with_one_rank() -> None:
    tasks = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_NODEID": "1", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"}
    place = found_place({**STEP, **tasks})
    assert isinstance(place, MemberPlace)
    assert (place.index, place.count, place.ranks, place.local_rank) == (3, 4, 1, 1)


def test_allocation_outside_of_steps_needs_srun_except_for_ranks_here() -> None:
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURMD_NODENAME": "n1"}
    assert found_place(environ) == SrunLauncher(2)
    assert isinstance(found_place(environ, ranks=2), MemberPlace)


def test_job_without_srun_is_tested_here_or_by_mpirun() -> None:
    job = {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "n1 8 n2 8"}
    place = found_place(job)
    assert isinstance(place, MemberPlace)
    assert place.count == 1
    with pytest.raises(UsageError, match=r"--nodes 2 in LSF job 7.*mpirun"):
        found_place(job, nodes=2)
    place = found_place({**job, "PMI_RANK": "1", "PMI_SIZE": "2"})
    assert isinstance(place, MemberPlace)
    assert (place.index, place.count, place.host) == (1, 2, "n1")


def test_nodes_by_hand_need_the_first_ones_name() -> None:
    place = found_place({}, nodes=3, node_rank=2, master_addr="n1")
    assert isinstance(place, MemberPlace)
    assert (place.index, place.count, place.host, place.port, place.by_hand) == (2, 3, "n1", 29500, True)
    with pytest.raises(UsageError, match="not where the first one is"):
        found_place({}, nodes=3, node_rank=2)
