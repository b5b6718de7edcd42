"""`python -m tests.faults.hangs`: how often the evidence of a hang names the rank that it began with.

Eight gloo ranks train, one of them hangs: asleep, at a lock, in its loader, in another collective operation, or
stopped. The product's watchdog finds the hang, and the product's evidence has to name that rank, though it is told that
the next one is to blame: how the watchdog guesses, by who was silent first, does not help it.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from dsrun.launch.supervisor.evidence import collect, explain_hang
from dsrun.launch.supervisor.reaper import state_and_parent
from dsrun.launch.supervisor.watchdog import PhaseLimits, RankHang, Watchdog
from dsrun.runs.heartbeat import read_beats
from tests.faults.hanging_rank import KINDS
from tests.forkserver.ranks import Ranks

COUNT = 40
RANKS = 8
TIMEOUT_S = 3.0
"""As short as busy cores allow: the ranks' steps take a tenth of a second."""
GOAL = 0.98
EVIDENCE_GOAL_S = 15.0


@dataclass(frozen=True)
class Result:
    kind: str
    rank: int
    hang: RankHang
    evidence_s: float

    @property
    def is_right(self) -> bool:
        return self.hang.rank == self.rank


def inject(kind: str, rank: int, variant: int, folder: Path, *, ranks: int = RANKS) -> Result:
    """Have `rank` of `ranks` hang, and explain it as a supervisor does."""
    beats, evidence = folder / "beats", folder / "evidence"
    group = Ranks(folder / "logs", "tests.faults.hanging_rank", [kind, rank, variant, beats], count=ranks)
    try:
        pids = {number: process.pid for number, process in enumerate(group.processes)}
        hang = _detect(beats, pids)
        detected = time.monotonic()
        collect(evidence, pids, read_beats(beats), {}, began=0.0)
        hang = explain_hang(replace(hang, rank=(rank + 1) % ranks, stopped=False), evidence, pids)
        return Result(kind, rank, hang, time.monotonic() - detected)
    finally:
        for process in group.processes:
            process.kill()
            process.wait()


def _detect(folder: Path, pids: dict[int, int]) -> RankHang:
    watchdog = Watchdog(PhaseLimits(TIMEOUT_S))
    while True:
        beats = read_beats(folder) if folder.is_dir() else {}
        states = {rank: state_and_parent(pid)[0] for rank, pid in pids.items()}
        assert all(state not in ("", "Z") for state in states.values()), states
        found = watchdog.poll(beats, states, time.monotonic())
        if found and len(beats) == len(pids):
            return found
        time.sleep(0.1)


def main(count: int) -> int:
    """Print each case and the share of right ones; 1 where a goal is missed."""
    rng = random.Random(1)
    results = []
    for number in range(count):
        kind, rank = KINDS[number % len(KINDS)], rng.randrange(RANKS)
        with tempfile.TemporaryDirectory() as folder:
            result = inject(kind, rank, number // len(KINDS), Path(folder))
        results.append(result)
        mark = "right" if result.is_right else "WRONG"
        print(f"{mark}  {kind} of rank {rank}, in {result.evidence_s:.1f} s: {result.hang.message}", flush=True)
    wrong = Counter(result.kind for result in results if not result.is_right)
    share = 1 - wrong.total() / count
    slowest = max(result.evidence_s for result in results)
    print(f"{share:.1%} of {count} hangs of {RANKS} ranks explained, goal {GOAL:.0%}; wrong: {dict(wrong) or 'none'}")
    print(f"the evidence took {slowest:.1f} s at most, goal {EVIDENCE_GOAL_S:.0f} s")
    return 0 if share >= GOAL and slowest <= EVIDENCE_GOAL_S else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else COUNT))
