"""The runs that `dsrun certify` compares: trained for real by forked ranks, several runs in one process group.

The process that calls these has done the imports, and has computed nothing: threads of torch would not live in a fork.
"""

import json
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from dsrun.certify.checks import CHECK_FACTS
from dsrun.certify.request import CertifyRequest
from dsrun.datafiles import evaluate, toml_beside
from dsrun.launch.workers.spawn import ForkedProcess, prefork
from dsrun.runs.folder import RunFolder
from dsrun.system.net import free_port
from dsrun.system.variables import CACHE
from dsrun.train.certify.subject import CertifySubject, SmallRun

_TABLE = toml_beside(__file__)
_FLAGS, RUNS = _TABLE["flags"], _TABLE["runs"]
REFERENCE = next(iter(RUNS))
"""The plainest, which the others are compared with."""
RANK = "dsrun.train.certify.rank"
_POLL_S = 0.05
_BUSY = 4
"""Times its limit a run may take that computes."""
_WORK_S = 0.5
_DROPOUT = "--lora-dropout 0.1"
"""So that random states matter to what is resumed; PEFT has none for fused experts."""
_STEP = 2
"""Of the checkpoint that a run goes on with."""


class PlannedRun(NamedTuple):
    """`after` is the run that comes before, as this uses what that leaves; with `resumes` it goes on with a checkpoint
    of it. `says` is what it is, for people."""

    name: str
    ranks: int
    flags: list[str]
    after: str = ""
    resumes: bool = False
    says: str = ""


def planned(subject: CertifySubject, scratch: Path) -> list[PlannedRun]:
    """Those of runs.toml that the request and the model call for, in folders of `scratch`."""
    request = subject.request
    stages = sorted(request.stages)
    others = [stage for stage in stages if stage != 3]
    values: dict[str, Any] = {"least": stages[0], "most": stages[-1], "other": others[-1] if others else 3}
    paths = {"scratch": scratch, "small": subject.small, "words": subject.words, **subject.rows}
    values |= {name: shlex.quote(str(path)) for name, path in paths.items()}
    values["experts"] = f"--lora-target-parameters {' '.join(subject.experts)}" if subject.experts else _DROPOUT
    values["predict"] = "" if subject.task == "dpo" else "--do-predict --predict-with-generate"
    kinds = ("all", "gpu" if request.gpus else "cpu", subject.task, "trusted" if request.trust_remote_code else "")
    shared = " ".join(_FLAGS.get(each, "") for each in kinds)
    chosen = [CHECK_FACTS[code] for code in request.only] or CHECK_FACTS.values()
    needed = {name for facts in chosen for name in facts.get("runs", ())}
    found = []
    for name, row in RUNS.items():
        # With one GPU they compare the stages alone.
        ranks = min(row["ranks"], request.gpus or row["ranks"])
        values["ranks"] = f"{ranks} rank{'s' * (ranks > 1)}"
        if name in needed and evaluate(row.get("only", "True"), vars(request)):
            flags = f"{shared} --output {{scratch}}/{name} {row['flags']}".format(**values)
            after, resumes, says = row.get("after", ""), row.get("resumes", False), row["says"].format(**values)
            found.append(PlannedRun(name, ranks, shlex.split(flags), after, resumes, says))
    return found


def train_all(
    runs: list[PlannedRun], scratch: Path, request: CertifyRequest, *, notify: Callable[[str], None]
) -> dict[str, SmallRun]:
    """Train them, those of as many ranks that follow one another in one process group; after a failure, what is left of
    these gets another. What goes on with a run that failed has failed, and so has all after the plainest of them."""
    outcomes: dict[str, SmallRun] = {}
    waiting = list(runs)
    while waiting:
        for run in waiting:
            before = outcomes.get(run.after or REFERENCE)
            if before and before.error:
                outcomes[run.name] = replace(before, name=run.name)
        waiting = [run for run in waiting if run.name not in outcomes]
        if waiting:
            ranks = waiting[0].ranks
            others = (at for at, run in enumerate(waiting) if run.ranks != ranks or run.after not in {"", *outcomes})
            ready = waiting[: next(others, len(waiting))]
            notify(f"training on {ranks} rank{'s' * (ranks > 1)}: {', '.join(run.name for run in ready)}")
            for run in ready:
                if run.resumes:
                    _begin(scratch / run.name, outcomes[run.after].folder)
            ended = list(_RankGroup(ready, ranks, scratch, request).outcomes())
            outcomes |= {each.name: each for each in ended}
            waiting = waiting[len(ended) :]
    return outcomes


def _begin(folder: Path, source: Path) -> None:
    """Make the folder of a run that goes on with the checkpoint of another."""
    if not folder.exists():
        name = f"checkpoint-{_STEP}"
        shutil.copytree(source / name, folder / name)
        shutil.copy(RunFolder(source).run_json, folder)


def _cpu_seconds(processes: list[ForkedProcess]) -> float:
    with suppress(psutil.Error):  # one that has just ended
        return sum(sum(psutil.Process(each.pid).cpu_times()[:2]) for each in processes)
    return 0.0


class _RankGroup:
    """Ranks forked for some runs, and what becomes of these."""

    def __init__(self, runs: list[PlannedRun], count: int, scratch: Path, request: CertifyRequest) -> None:
        self._runs, self._scratch, self._limit_s = runs, scratch, request.limit_s
        self._file = scratch / f"{runs[0].name}.{count}.json"
        self._file.write_text(json.dumps([[run.name, run.flags] for run in runs]), encoding="utf-8")
        # What they keep is of no use to others, and the user's cache may be read-only.
        shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), CACHE: f"{scratch}/cache"}
        shared |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(count))
        self._processes: list[ForkedProcess] = []
        for rank, forked in enumerate(prefork(RANK, count)):
            log = self._file.with_suffix(f".rank-{rank}.log")
            log.touch()
            env = shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            self._processes.append(forked.exec_rank([str(self._file)], env, [str(log), str(log)]))

    def outcomes(self) -> Iterator[SmallRun]:
        """Of each run that has ended, in order, to the first that has failed."""
        try:
            for run in self._runs:
                yield (ended := SmallRun(run.name, run.says, self._scratch / run.name, self._end_of(run)))
                if ended.error:
                    return
        finally:
            for process in self._processes:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, 9)
                process.wait()

    def _end_of(self, run: PlannedRun) -> str:
        """Why a run failed, "" where it did not."""
        now = began = worked = time.monotonic()
        used = 0.0
        # On a busy machine ranks that wait for each other's turn take many times as long, but they do compute.
        while now - worked < self._limit_s and now - began < _BUSY * self._limit_s:
            if found := self._said(run):
                # Of several ranks that fail, those after the first may only have lost a peer.
                return next(filter(None, found), "")
            codes = [process.poll() for process in self._processes]
            if any(codes) and not self._said(run):
                rank, code = next((rank, code) for rank, code in enumerate(codes) if code)
                how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
                return f"rank {rank} {how}"
            time.sleep(_POLL_S)
            now = time.monotonic()
            if (spent := _cpu_seconds(self._processes)) > used + _WORK_S:
                used, worked = spent, now
        return f"it did not end within {now - began:.0f} s"

    def _said(self, run: PlannedRun) -> list[str]:
        """The errors of the ranks that a run has ended on, "" for none."""
        file = Path(f"{self._file}.done")
        lines = file.read_text(encoding="utf-8").split("\n")[:-1] if file.exists() else []
        return [found["error"] for found in map(json.loads, lines) if found["run"] == run.name]
