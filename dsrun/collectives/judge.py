"""From what the test has seen to findings, and to the hosts that they speak against. Pure."""

import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, TypeVar

from dsrun.collectives.observations import CollectiveObservations, GroupResult, differences
from dsrun.collectives.schedule import cover
from dsrun.findings.finding import Finding, finding_of, has_errors, text_of, text_table, worst_first
from dsrun.messages import Message, joined

Key = TypeVar("Key")

SLOW = 1.1
"""A rank that takes so many times as long as the median of the others is slow."""
SLOW_PAIR = 1.5
"""The same for one connection, which other traffic disturbs more."""

JudgedHosts = tuple[Finding, Sequence[str]]
"""A finding, and the hosts that a job had better avoid."""


@dataclass(frozen=True)
class CollectiveVerdict:
    """All findings, errors first, and the hosts that errors speak against."""

    findings: tuple[Finding, ...]
    exclude: tuple[str, ...]

    @property
    def failed(self) -> bool:
        return has_errors(self.findings)


def judge(seen: CollectiveObservations) -> CollectiveVerdict:
    facts = {member.facts.host: member.facts for member in seen.members.values()}
    judged = [
        *_members(seen),
        *_own_checks(seen),
        *_connections(seen),
        *_ranks(seen),
        *_values(seen),
        *_speed(seen),
        *differences(facts, {member.facts.host: member.ahead_s for member in seen.members.values()}),
    ]
    if {member.device for member in seen.members.values()} == {"cpu"}:
        fixes = text_table("of_cpus")  # without advice about GPUs
        judged = [
            (replace(each, fix=Message(fixes[each.code]) if each.code in fixes else each.fix), hosts)
            for each, hosts in judged
        ]
    exclude = dict.fromkeys(host for finding, hosts in judged if finding.level == "error" for host in hosts if host)
    return CollectiveVerdict(tuple(worst_first(finding for finding, _ in judged)), tuple(exclude))


def _members(seen: CollectiveObservations) -> Iterator[JudgedHosts]:
    found: list[tuple[str, int, dict[str, Any]]] = [
        *(("node_missing", index, {"address": seen.address}) for index in seen.missing),
        *(("node_lost", index, {"how": how}) for index, how in seen.lost.items()),
        *(("ranks_not_started", index, {"why": why}) for index, why in seen.unready.items()),
    ]
    devices = {member.device for member in seen.members.values()}
    for index, member in seen.members.items():
        if not member.facts.torch:
            found.append(("no_torch", index, {}))
        elif len(devices) > 1 and member.device == "cpu":
            found.append(("no_gpu", index, {}))
    for code, index, values in found:
        host = seen.host(index)
        yield finding_of(code, name=seen.name(index), where=host, **values), [host]


def _own_checks(seen: CollectiveObservations) -> Iterator[JudgedHosts]:
    """What the nodes' own checks have found, once for all nodes that found the same. What fails on every one of several
    nodes is the job's or the site's fault, and none of them is to be avoided for it."""
    hosts_of: dict[Finding, list[str]] = {}
    for member in seen.members.values():
        for finding in member.findings:
            hosts_of.setdefault(replace(finding, where=""), []).append(member.facts.host)
    failing: dict[str, set[str]] = {}
    for finding, hosts in hosts_of.items():
        failing.setdefault(finding.code, set()).update(hosts)
    for finding, hosts in hosts_of.items():
        everywhere = len(seen.hosts) > 1 and failing[finding.code] == set(seen.hosts)
        own = list(dict.fromkeys(hosts))
        who = text_of("own_checks.all") if len(own) == len(seen.hosts) > 1 else ", ".join(own)
        # Text that came from another process has lost its template: only one without values is still translated.
        message = text_of("own_checks.found", who=who, message=Message(finding.message))
        yield replace(finding, message=message, where=", ".join(own)), [] if everywhere else own


def _connections(seen: CollectiveObservations) -> Iterator[JudgedHosts]:
    """The pairs that cannot connect over TCP: one finding each, with all the ports."""
    found: dict[tuple[int, int], dict[str, str]] = {}
    for index, peer, endpoint, why in seen.unreachable:
        found.setdefault((index, peer), {})[endpoint] = why
    accused = {seen.host(index) for index in cover(frozenset(pair) for pair in found)}
    for (index, peer), endpoints in found.items():
        hosts = {seen.host(index), seen.host(peer)}
        finding = finding_of(
            "tcp_unreachable.pair",
            name=seen.name(index),
            peer=seen.name(peer),
            ports=joined(" and ", endpoints),
            why=next(iter(endpoints.values())),
            where=f"{seen.host(index)}, {seen.host(peer)}",
        )
        yield finding, sorted(accused & hosts)


def _ranks(seen: CollectiveObservations) -> Iterator[JudgedHosts]:
    """Ranks that died or hung, and groups that failed; what a rank has done once is not repeated for later phases."""
    named: set[tuple[str, int]] = set()
    pairs: list[tuple[GroupResult, str]] = []
    for group in (group for group in seen.groups if not group.ok):
        blamed = list(culprits(group))
        if not blamed and all(result.state == "lost" or result.cancelled for result in group.ranks.values()):
            continue
        if not blamed:
            pairs.append((group, reason(group)))
        for rank, code, what in blamed:
            if (code, rank) not in named:
                named.add((code, rank))
                host = seen.host_of_rank(rank)
                name = seen.rank_name(rank)
                yield finding_of(code, rank=name, what=what, during=during(group), where=host), [host]
    numbers = {unit.name: number for number, unit in enumerate(seen.units)}
    edges = [frozenset(numbers[unit.name] for unit in group.units) for group, _ in pairs if len(group.units) == 2]
    accused = {seen.units[number].name for number in cover(edges)}
    for group, why in pairs:
        names = [unit.name for unit in group.units]
        hosts = sorted({seen.host(unit.members[0]) for unit in group.units if len(names) == 1 or unit.name in accused})
        connecting = all(result.at in ("start", "connect") for result in group.ranks.values())
        finding = finding_of(
            "cannot_connect" if connecting else "collective_failed",
            who=joined(" and ", names) if len(names) < 5 else text_of("collective_failed.many", count=len(names)),
            during=during(group),
            why=why,
            where=", ".join(names),
        )
        yield finding, hosts


def culprits(group: GroupResult) -> Iterator[tuple[int, str, str]]:
    """(rank, code, what) of those that caused the failure: who died; else who hung where the others did not."""
    died = {rank: result for rank, result in group.ranks.items() if result.state == "died"}
    for rank, result in died.items():
        yield rank, "rank_died", text_of("rank_died.what", how=_how(result.signal, result.error))
    if died:
        return
    stuck = {rank: r for rank, r in group.ranks.items() if r.state in ("hung", "failed")}
    stages = {result.stage for result in stuck.values()}
    first = min(stages, default=0)
    hung = [rank for rank, result in stuck.items() if result.stage == first and result.state == "hung"]
    alone = len(group.ranks) == 1 or len(stages) > 1
    # One that is as far as all the others may wait for them as they do for it.
    if alone or (len(hung) < len(group.ranks) and all(group.ranks[rank].at == "start" for rank in hung)):
        for rank in hung:
            yield rank, "rank_hung", text_of("rank_hung.what", stage=_stage(group.ranks[rank].at))


def _how(signum: int | None, error: str) -> str:
    if signum is not None:
        try:
            return signal.Signals(signum).name
        except ValueError:
            return text_of("rank_died.signal", number=signum)
    return error or text_of("rank_died.no_signal")


def _stage(at: str) -> str:
    if at in ("start", "connect", "end"):
        return text_of(f"rank_hung.{at}")
    return text_of("rank_hung.in", stage=at)


def reason(group: GroupResult) -> str:
    """Why a group failed, by the first of its ranks that says it."""
    errors = [result.error for result in group.ranks.values() if result.error]
    at = {result.at for result in group.ranks.values()}
    return errors[0] if errors else text_of("collective_failed.no_end", stage=_stage(at.pop()))


def during(group: GroupResult) -> str:
    """Which phase it was in, as the end of a sentence."""
    if group.phase.kind == "alone":
        return text_of("collective_failed.alone" if len(group.ranks) == 1 else "collective_failed.within")
    if group.phase.kind == "pairs":
        return text_of("collective_failed.in_pair", names=joined(" and ", [unit.name for unit in group.units]))
    return text_of("collective_failed.all_together")


def _values(seen: CollectiveObservations) -> Iterator[JudgedHosts]:
    for group in seen.groups:
        for rank, result in group.ranks.items():
            for operation, wrong in result.wrong.items():
                ranks = list(group.ranks)
                sources = [ranks[number] for number in wrong["from"] if number < len(ranks)]
                hosts = sorted({seen.host_of_rank(each) for each in (sources or [rank])})
                key = "wrong_values.sources" if sources else "wrong_values.unknown"
                finding = finding_of(
                    key,
                    operation=operation,
                    rank=seen.rank_name(rank),
                    count=wrong["count"],
                    total=wrong["of"],
                    sources=", ".join(map(str, sources)),
                    during=during(group),
                    where=", ".join(hosts),
                )
                yield finding, hosts if sources else []


def _speed(seen: CollectiveObservations) -> Iterator[JudgedHosts]:
    compute = {
        rank: result.compute_s
        for group in seen.of("alone")
        for rank, result in group.ranks.items()
        if result.compute_s is not None
    }
    for rank, factor in slower(compute).items():
        name, host = seen.rank_name(rank), seen.host_of_rank(rank)
        yield finding_of("slow_rank.computes", rank=name, factor=_percent(factor), where=host), []
    times = {
        (group.units[0].name, group.units[1].name): seconds
        for group in seen.of("pairs")
        if (seconds := group.best_s("all_reduce")) is not None
    }
    slow = slower_in_pairs(times)
    for name, factor in slow.items():
        yield finding_of("slow_rank.pairs", name=name, factor=_percent(factor), where=name), []
    rest = {pair: seconds for pair, seconds in times.items() if not slow.keys() & set(pair)}
    for pair, factor in slower(rest, SLOW_PAIR).items():
        yield finding_of("slow_pair", pair=joined(" and ", pair), factor=_percent(factor), where=", ".join(pair)), []


def slower(times: Mapping[Key, float], limit: float = SLOW) -> dict[Key, float]:
    """Who takes more than `limit` times the median time of the others, and how many times."""
    found = {}
    for key, own in times.items():
        others = [seconds for other, seconds in times.items() if other != key]
        if others and own > limit * median(others):
            found[key] = own / median(others)
    return found


def slower_in_pairs(times: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """The units whose pairs take longer than those in which they are not, which needs three units or more."""
    found = {}
    for name in dict.fromkeys(name for pair in times for name in pair):
        own = [seconds for pair, seconds in times.items() if name in pair]
        others = [seconds for pair, seconds in times.items() if name not in pair]
        # All its pairs, as a single slow connection would be no property of the unit.
        if others and min(own) > SLOW * median(others):
            found[name] = median(own) / median(others)
    return found


def _percent(factor: float) -> str:
    return f"{(factor - 1) * 100:.0f}%"


def names(findings: Iterable[Finding], where: str) -> list[str]:
    """The codes of the findings on one host or unit, each once, the worst first."""
    return list(dict.fromkeys(each.code for each in findings if where in each.where.split(", ")))
