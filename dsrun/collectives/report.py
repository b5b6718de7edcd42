"""The test as one table, and as JSON. Pure."""

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from dsrun.collectives.judge import CollectiveVerdict, names
from dsrun.collectives.observations import COMPARED, CollectiveObservations, NodeFacts, differing, shown
from dsrun.collectives.schedule import OPERATIONS, CollectiveUnit
from dsrun.machine.node_comparison import TITLES


def member_rows(seen: CollectiveObservations, verdict: CollectiveVerdict) -> list[list[str]]:
    """One row per unit (a node; on one machine a rank), with the facts in which nodes differ as further columns."""
    columns = differing([member.facts for member in seen.members.values()])
    skewed = any(abs(member.ahead_s) > 0.1 for member in seen.members.values())
    head = ["node" if len(seen.hosts) > 1 else "rank", "ranks", "compute", "alone", "pairs"]
    head += [TITLES.get(name, name) for name in columns] + (["clock"] if skewed else []) + ["result"]
    rows = [head]
    for unit in seen.units:
        member = seen.members[unit.members[0]]
        facts = [shown(member.facts, name) for name in columns]
        clock = [f"{member.ahead_s:+.1f} s"] if skewed else []
        ranks = f"{unit.ranks[0]}-{unit.ranks[-1]}" if len(unit.ranks) > 1 else f"{unit.ranks[0]}"
        rows.append([unit.name, ranks, *_speeds(seen, unit), *facts, *clock, _result(seen, verdict, unit)])
    tested = {member for unit in seen.units for member in unit.members}
    for index in range(seen.count):
        if index not in tested:
            found = seen.members.get(index)
            facts = [shown(found.facts, name) if found else "-" for name in columns]
            clock = [f"{found.ahead_s:+.1f} s" if found else "-"] if skewed else []
            codes = names(verdict.findings, seen.host(index)) or ["not tested"]
            rows.append([seen.host(index) or f"node {index}", "-", "-", "-", "-", *facts, *clock, ", ".join(codes)])
    return rows


def _speeds(seen: CollectiveObservations, unit: CollectiveUnit) -> list[str]:
    """Of the unit: TFLOP/s of its slowest rank, busbw of all_reduce within it, and the median of that in pairs."""
    alone = next((group for group in seen.of("alone") if group.units == (unit,)), None)
    results = list(alone.ranks.values()) if alone else []
    compute = [each.flop / each.compute_s / 1e12 for each in results if each.flop and each.compute_s]
    within = alone.bandwidths.get("all_reduce") if alone else None
    pairs = [
        group.bandwidths["all_reduce"]
        for group in seen.of("pairs")
        if unit in group.units and "all_reduce" in group.bandwidths
    ]
    return [
        f"{min(compute):.3g} TFLOP/s" if compute else "-",
        f"{within:.3g} GB/s" if within else "-",
        f"{median(pairs):.3g} GB/s" if pairs else "-",
    ]


def _result(seen: CollectiveObservations, verdict: CollectiveVerdict, unit: CollectiveUnit) -> str:
    host = seen.host(unit.members[0])
    codes = names(verdict.findings, unit.name)
    if unit.name != host and len(seen.hosts) == 1:
        ranks = [each for each in verdict.findings if each.message.startswith(f"{unit.name} ")]
        codes = list(dict.fromkeys([*(each.code for each in ranks), *codes]))
    return ", ".join(codes) or "ok"


def common_facts(nodes: Sequence[NodeFacts]) -> str:
    """What all nodes have in common, in one line."""
    if not nodes:
        return ""
    different = differing(nodes)
    parts = [
        f"{TITLES.get(name, name)} {value}" if name != "gpus" else value
        for name in COMPARED
        if name not in different and (value := shown(nodes[0], name)) != "-"
    ]
    return ", ".join(parts)


def together(seen: CollectiveObservations) -> str:
    """busbw of each collective over all ranks, in one line; "" where they were not run together."""
    for group in seen.of("all"):
        if bandwidths := group.bandwidths:
            parts = [f"{name} {bandwidths[name]:.3g}" for name in OPERATIONS if name in bandwidths]
            return f"all {len(group.ranks)} ranks, busbw in GB/s: {', '.join(parts)}"
    return ""


def as_json(seen: CollectiveObservations, verdict: CollectiveVerdict) -> dict[str, Any]:
    """The whole test as JSON values; bandwidths are busbw in GB/s."""
    return {
        "nodes": [
            {
                "node": index,
                "ranks": member.ranks,
                "device": member.device,
                "clock_ahead_s": round(member.ahead_s, 3),
                **asdict(member.facts),
            }
            for index, member in seen.members.items()
        ],
        "ranks": [
            {"rank": rank, "host": seen.host_of_rank(rank), "compute_s": result.compute_s}
            for group in seen.of("alone")
            for rank, result in group.ranks.items()
        ],
        "groups": [
            {
                "phase": group.phase.kind,
                "units": [unit.name for unit in group.units],
                "ranks": list(group.ranks),
                "ok": group.ok,
                "busbw": {name: round(value, 4) for name, value in group.bandwidths.items()},
            }
            for group in seen.groups
        ],
        "findings": verdict.findings,
        "exclude": verdict.exclude,
    }
