"""SIGKILL at random moments of saves, and whether the next start goes on as if nothing had been.

    python -m tests.faults.kill_saves --kills 500 --zero 2

After each kill, the next start must go on from at least the last checkpoint that was visible, and every step it does
again must give the weights that it gave before, to the bit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dsrun.system.net import free_port

RANKS = 2
PATIENCE_S = 600.0


@dataclass
class Tally:
    """What came of the kills. `phases`: how many found the save at which point, as the files told afterwards."""

    kills: int = 0
    recoveries: int = 0
    failures: list[str] = field(default_factory=list)
    steps: int = 0
    steps_again: int = 0
    phases: dict[str, int] = field(default_factory=dict)


class Round:
    """One start of the ranks, forked from this process."""

    def __init__(self, run: Path, *, stage: str, background: bool, log: Path) -> None:
        self.run = run
        port = free_port()
        self.pids: list[int] = []
        self.readers: list[int] = []
        self._rests = [b""] * RANKS
        for rank in range(RANKS):
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reader)
                _rank(rank, port, writer, run, stage=stage, background=background, log=log)
            os.close(writer)
            self.pids.append(pid)
            self.readers.append(reader)

    def words(self, seconds: float) -> list[tuple[int, list[str]]]:
        """What the ranks report within `seconds`, or as soon as any does, as (rank, words)."""
        ready, _, _ = select.select(self.readers, [], [], seconds)
        said = []
        for reader in ready:
            rank = self.readers.index(reader)
            *lines, self._rests[rank] = (self._rests[rank] + os.read(reader, 1 << 16)).split(b"\n")
            said += [(rank, line.decode().split()) for line in lines]
        return said

    def kill(self, first: int | None, gap: float) -> None:
        """SIGKILL: `first` and after `gap` seconds the others, or all at once."""
        if first is not None:
            os.kill(self.pids[first], signal.SIGKILL)
            time.sleep(gap)
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self.pids:
            os.waitpid(pid, 0)
        for reader in self.readers:
            os.close(reader)


def _rank(rank: int, port: int, writer: int, run: Path, *, stage: str, background: bool, log: Path) -> None:
    """The forked rank; never returns."""
    from tests.faults import saver

    code = 1
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(out, 1)
        os.dup2(out, 2)
        saver.as_rank(rank, RANKS, port)
        saver.train(
            run, stage=stage, steps=1_000_000, background=background,
            report=lambda words: os.write(writer, words.encode() + b"\n") and None,
        )  # fmt: skip
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


class Kills:
    """Kill after kill in one run folder, and what the starts in between report."""

    def __init__(self, run: Path, *, stage: str, seed: int, background: bool) -> None:
        self.run = run
        self.stage = stage
        self.background = background
        self.dice = random.Random(seed)
        self.tally = Tally()
        self._digests: dict[tuple[int, int], str] = {}
        self._visible = 0
        self._length_s = 0.1
        self._saves = 0

    def carry_out(self, kills: int) -> Tally:
        """`kills` kills with a start before and after each; ends at the first start that does not go on."""
        for number in range(kills + 1):
            log = self.run.with_name(f"{self.run.name}.log")
            ranks = Round(self.run, stage=self.stage, background=self.background, log=log)
            trouble = self._follow(ranks, saves=self.dice.randint(1, 3))
            if trouble:
                self.tally.failures.append(f"after kill {number}: {trouble}")
            elif number:
                self.tally.recoveries += 1
            if number == kills or trouble:
                ranks.kill(None, 0.0)
                break
            time.sleep(self.dice.uniform(0.0, 1.3 * self._length_s))
            ranks.kill(self.dice.choice([None, *range(RANKS)]), self.dice.uniform(0.0, 0.05))
            self._visible = max(self._visible, _newest(self.run))
            self.tally.kills += 1
            found = _phase(self.run, self.background)
            self.tally.phases[found] = self.tally.phases.get(found, 0) + 1
        return self.tally

    def _follow(self, ranks: Round, *, saves: int) -> str:
        """Listen until so many saves have begun; what went wrong, "" for nothing."""
        self._saves, deadline = 0, time.monotonic() + PATIENCE_S
        while self._saves < saves:
            if time.monotonic() > deadline:
                return "nothing was saved in time"
            for rank, words in ranks.words(1.0):
                trouble = self._hear(rank, words)
                if trouble:
                    return trouble
        return ""

    def _hear(self, rank: int, words: list[str]) -> str:
        match words:
            case ["weights", step, digest]:
                self.tally.steps_again += (rank, int(step)) in self._digests
                self.tally.steps = max(self.tally.steps, int(step))
                if self._digests.setdefault((rank, int(step)), digest) != digest:
                    return f"step {step} on rank {rank} gave other weights than before"
            case ["start", step] if rank == 0 and int(step) < self._visible:
                return f"checkpoint-{self._visible} was visible, and it started from {step}"
            case ["visible", step, _, seconds] if rank == 0:
                self._visible = int(step)
                self._length_s = 0.5 * self._length_s + 0.5 * float(seconds)
            case ["begin", *_] if rank == 0:
                self._saves += 1
        return ""


def kill_saves(run: Path, kills: int, *, stage: str = "2", seed: int = 0, background: bool = False) -> Tally:
    """Kill `kills` saves into the folder `run` at random moments. Call it in a process of one thread."""
    from tests.faults import saver

    saver.import_everything()
    run.mkdir(parents=True, exist_ok=True)
    return Kills(run, stage=stage, seed=seed, background=background).carry_out(kills)


def _newest(run: Path) -> int:
    return max((int(path.name.rpartition("-")[2]) for path in run.glob("checkpoint-*")), default=0)


def _phase(run: Path, background: bool) -> str:
    """At which point of a save the ranks died, as far as the files tell."""
    hidden = sorted((run / ".saving").glob("checkpoint-*"))
    if any((run / ".saving").glob("deleted-*")):
        return "deleting an old one"
    if not hidden:
        return "before or after"
    names = {path.name for path in hidden[0].rglob("*")}
    if "manifest.json" in names:
        return "before the rename"
    if "trainer_state.json" in names:
        return "sealing"
    if any(name.endswith("optim_states.pt") or name == "optimizer.pt" for name in names):
        return "writing shards"
    return "writing the model" if names else "just begun"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description="Kill saves at random moments; exit code 1 if any was not recovered from."
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--zero", default="2", choices=("0", "1", "2", "3"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--background", action="store_true", help="as with --async-save")
    parser.add_argument("--run", type=Path, help="run folder; default: a temporary one")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        run = given.run or Path(scratch) / "run"
        began = time.monotonic()
        tally = kill_saves(run, given.kills, stage=given.zero, seed=given.seed, background=given.background)
        print(json.dumps({**asdict(tally), "seconds": round(time.monotonic() - began, 1)}, indent=2))
        log = run.with_name(f"{run.name}.log")
        if tally.failures:
            print("\n".join(log.read_text(errors="replace").splitlines()[-40:]), file=sys.stderr)
    return 0 if tally.recoveries == given.kills else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
