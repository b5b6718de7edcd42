"""How a group of ranks failed, in words: who caused it, why, and in which phase. Pure."""

import signal
from collections.abc import Iterator

from dsrun.collectives.observations import GroupResult
from dsrun.findings.texts import text_of
from dsrun.messages import joined


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
