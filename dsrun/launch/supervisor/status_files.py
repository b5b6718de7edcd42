"""Writes status/node-N.json while the run goes on, and the stacks that `dsrun stacks` asks for, in a thread that may
block without holding the run up."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from queue import Empty, Full, Queue
from typing import Self

from dsrun.launch.context import TrainingJob
from dsrun.launch.supervisor.evidence import collect_stacks
from dsrun.machine.gpu_samples import GpuSample, gpu_samples
from dsrun.monitoring.straggler import Straggler, StragglerDetector
from dsrun.runs.heartbeat import RankHeartbeat, StepFigures
from dsrun.runs.node_status import (
    FOLDER,
    NodeStatus,
    RankProgress,
    StacksAnswer,
    open_requests,
    read_node_status,
    requests_folder,
    write_answer,
    write_node_status,
)
from dsrun.runs.records import utc_now
from dsrun.system.host import hostname, memory_available, memory_total

EVERY_S = 5.0
"""Seconds between two samples, on a run of few nodes."""
REQUEST_S = 1.0
"""Seconds between two looks for a request of stacks."""
LONGEST_S = 15.0
# Hundreds of nodes share one file server: together they write to it and ask it so often a second, as far as the longest
# intervals allow.
_WRITES_PER_S = 20
_LOOKS_PER_S = 50
_LONGEST_LOOK_S = 5.0
_END_S = 1.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RankSnapshot:
    """What the supervisor saw at one look: the heartbeats and the process ids of the living ranks, by rank; `now` by
    the heartbeats' clock."""

    attempt: int
    beats: Mapping[int, RankHeartbeat]
    pids: Mapping[int, int]
    now: float


class StatusWriter:
    """Takes a sample every few seconds and writes it, as a context manager around the run.

    A sample is dropped while the one before is still being written: the file server or the GPU's driver may hang, the
    disk may be full. `every_s` is by default what the number of nodes allows. On node 0 `on_straggler` is called, in
    the thread, for each rank that holds the others up. `record` is called there about every second."""

    def __init__(
        self,
        job: TrainingJob,
        *,
        on_straggler: Callable[[Straggler], None] = lambda _found: None,
        record: Callable[[], None] = lambda: None,
        every_s: float | None = None,
        gpus: Callable[[Mapping[str, str]], tuple[GpuSample, ...]] = gpu_samples,
    ) -> None:
        self._job = job
        self._on_straggler = on_straggler
        self._record = record
        self._stragglers = StragglerDetector()
        self.every_s = min(LONGEST_S, max(EVERY_S, job.nnodes / _WRITES_PER_S)) if every_s is None else every_s
        self._look_s = min(_LONGEST_LOOK_S, max(REQUEST_S, job.nnodes / _LOOKS_PER_S))
        self._gpus = gpus
        self._last: float | None = None
        self._newest: RankSnapshot | None = None
        self._seen: set[Path] = set()
        self._samples: Queue[RankSnapshot | None] = Queue(maxsize=1)
        self._thread = threading.Thread(target=self._work, name="node status", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Full):
            self._samples.put(None, timeout=_END_S)
            self._thread.join(timeout=_END_S)

    def offer(self, attempt: int, beats: Mapping[int, RankHeartbeat], pids: Mapping[int, int]) -> None:
        """Called at every look of the supervisor; never blocks."""
        now = time.monotonic()
        self._newest = sample = RankSnapshot(attempt=attempt, beats=dict(beats), pids=dict(pids), now=now)
        if pids and (self._last is None or now - self._last >= self.every_s):
            self._last = now
            with suppress(Full):
                self._samples.put_nowait(sample)

    def attend(self, nodes: Collection[int]) -> None:
        """Only `nodes` take part from now on: what the others have left is not true any more."""
        self._job = replace(self._job, nnodes=len(nodes))
        self._remove_others(nodes)

    def _work(self) -> None:
        import psutil

        psutil.cpu_percent()  # measures from here to the next call
        self._prepare()
        while True:
            try:
                sample = self._samples.get(timeout=self._look_s)
                if sample is None:
                    return
                self._try(self._write, sample)
            except Empty:
                pass
            self._try(self._answer, self._newest)
            self._try(lambda _sample: self._record(), self._newest)

    @staticmethod
    def _try(action: Callable[[RankSnapshot], None], sample: RankSnapshot | None) -> None:
        try:
            if sample is not None:
                action(sample)
        except Exception:  # whatever it is: what only informs must not end, or fail, the run
            logger.debug("no status was written", exc_info=True)

    def _write(self, sample: RankSnapshot) -> None:
        import psutil

        gpus = self._gpus(self._job.env) if self._job.topology.device == "cuda" else ()
        write_node_status(self._job.run, node_status(sample, self._job, gpus=gpus, cpu=psutil.cpu_percent() / 100))
        if self._job.node_rank == 0:
            for found in self._stragglers.update(read_node_status(self._job.run)):
                self._on_straggler(found)

    def _answer(self, sample: RankSnapshot) -> None:
        """Write the stacks of this node's ranks for each new request."""
        requests = open_requests(self._job.run)
        for request in requests - self._seen:
            self._seen.add(request)
            collect_stacks(request, sample.pids, sample.beats, self._job.env)
            ranks = tuple(sorted(sample.pids))
            write_answer(request, StacksAnswer(node=self._job.node_rank, host=hostname(), ranks=ranks))
        self._seen &= requests

    def _prepare(self) -> None:
        """Leave out earlier requests, and remove what nodes left that an earlier start had and this one has not."""
        self._seen = open_requests(self._job.run)
        if self._job.node_rank:
            return
        with suppress(OSError):
            requests_folder(self._job.run).mkdir(parents=True, exist_ok=True)
        self._remove_others(range(self._job.nnodes))

    def _remove_others(self, nodes: Collection[int]) -> None:
        if self._job.node_rank:
            return
        for file in (self._job.run / FOLDER).glob("node-*.json"):
            number = file.stem.removeprefix("node-")
            if number.isdigit() and int(number) not in nodes:
                with suppress(OSError):
                    file.unlink()


def node_status(
    sample: RankSnapshot, job: TrainingJob, *, gpus: tuple[GpuSample, ...], cpu: float | None
) -> NodeStatus:
    """The status of this node."""
    total = memory_total()
    ranks = tuple(_progress(rank, sample) for rank in sorted({*sample.pids, *sample.beats}))
    return NodeStatus(
        time=utc_now(), host=hostname(), node=job.node_rank, attempt=sample.attempt, world_size=job.world_size,
        ranks=ranks, gpus=gpus, cpu=cpu, memory_used=total - memory_available(), memory_total=total,
    )  # fmt: skip


def _progress(rank: int, sample: RankSnapshot) -> RankProgress:
    beat = sample.beats.get(rank)
    if beat is None:
        return RankProgress(rank=rank, pid=sample.pids[rank], phase="running", step=0, silent_s=0.0)
    silent_s = round(max(0.0, sample.now - beat.time), 3)
    figures = {each.name: getattr(beat, each.name) for each in fields(StepFigures)}
    return RankProgress(rank=rank, pid=beat.pid, phase=beat.phase, step=beat.step, silent_s=silent_s, **figures)
