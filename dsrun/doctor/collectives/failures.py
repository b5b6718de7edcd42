"""How a group of ranks failed, in words: who caused it, why, and in which phase. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from dsrun.doctor.collectives.observations import GroupResult
from dsrun.messages import Message, joined


def culprits(group: GroupResult) -> Iterator[tuple[int, str, str]]:
    """(rank, code, what) of those that caused the failure: who died; else who hung where the others did not."""
    died = {rank: result for rank, result in group.ranks.items() if result.state == "died"}
    for rank, result in died.items():
        yield rank, "rank_died", Message("died ({how})", how=_how(result.signal, result.error))
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
            yield rank, "rank_hung", Message("hung ({stage})", stage=_stage(group.ranks[rank].at))


def _how(signum: int | None, error: str) -> str:
    if signum is not None:
        try:
            return signal.Signals(signum).name
        except ValueError:
            return Message("signal {number}", number=signum)
    return error or Message("without a signal")


def _stage(at: str) -> str:
    known = {
        "start": Message("before it did anything"),
        "connect": Message("connecting"),
        "end": Message("at the end"),
    }
    return known.get(at) or Message("in {stage}", stage=at)


def reason(group: GroupResult) -> str:
    """Why a group failed, by the first of its ranks that says it."""
    errors = [result.error for result in group.ranks.values() if result.error]
    at = {result.at for result in group.ranks.values()}
    return errors[0] if errors else Message("no end within its time, {stage}", stage=_stage(at.pop()))


def during(group: GroupResult) -> str:
    """Which phase it was in, as the end of a sentence."""
    if group.phase.kind == "alone":
        return Message("alone") if len(group.ranks) == 1 else Message("within its node")
    if group.phase.kind == "pairs":
        return Message("in the pair {names}", names=joined(" and ", [unit.name for unit in group.units]))
    return Message("with all together")
