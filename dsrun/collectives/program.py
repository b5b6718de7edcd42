"""What each rank of the test runs: `python -m dsrun.collectives.program`; nothing imports it.

One JSON object a line: on stdin what to test next (the phase, and this rank's place in its group), on stdout first what
torch is here, then how each phase went. A phase runs in a fork, which is killed when its time is over: NCCL may hang or
take its process down with it, and the next phase begins in a fresh process all the same. torch is imported once."""

import contextlib
import json
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from dsrun.collectives.schedule import PERIOD, rank_factor, summed_factor
from dsrun.errors import one_line
from dsrun.system.process.process_end import die_with_parent

_CPU_ELEMENTS, _CPU_REPEATS = 1 << 20, 5  # 4 MiB of fp32
_GPU_ELEMENTS, _GPU_REPEATS = 1 << 26, 20  # 256 MiB: beyond what latency decides, within what any GPU has
_CPU_MATRIX, _GPU_MATRIX = 768, 8192
_COMPUTE_BLOCKS, _COMPUTE_CALLS = 5, 4

RankTask = dict[str, Any]


def main() -> None:
    """Answer until stdin ends."""
    answers = os.dup(1)
    os.dup2(2, 1)  # libraries print
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.version.cuda and dist.is_nccl_available() else None
    _write(answers, {"ready": {"torch": torch.__version__, "cuda": torch.version.cuda, "nccl": nccl}})
    unread = b""
    while data := os.read(0, 65536):
        *lines, unread = (unread + data).split(b"\n")
        for line in lines:
            task = json.loads(line)
            if "store" in task:
                _fork(partial(_serve_store, task))
            elif "phase" in task:
                _write(answers, {"phase": task["phase"], "rank": task["rank"], **_run_phase(task)})


def _write(fd: int, message: RankTask) -> None:
    os.write(fd, json.dumps(message).encode() + b"\n")


def _fork(work: Callable[[], None]) -> int:
    """The process id of a child that does `work` and ends, with this process at the latest."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        die_with_parent(parent, signal.SIGKILL)
        work()
    finally:
        os._exit(0)


def _serve_store(task: RankTask) -> None:
    """The store through which the groups of all phases meet, at the port that a training would use."""
    store = dist.TCPStore(task["host"], task["port"], is_master=True, wait_for_workers=False)
    while store is not None:
        time.sleep(3600)


def _run_phase(task: RankTask) -> RankTask:
    """How the phase went in a child: state ("ok", "failed", "died", "hung"), where it was, and what it measured."""
    read, write = os.pipe()
    pid = _fork(lambda: _in_child(task, write))
    os.close(write)
    result: RankTask = {"state": "hung", "at": "start"}
    deadline = time.monotonic() + task["timeout_s"]
    text = b""
    ended = False
    while not ended and (left := deadline - time.monotonic()) > 0:
        # A word on stdin: the others have failed, and what they can no longer answer need not be waited for.
        ready, _, _ = select.select([read, 0], [], [], left)
        if read not in ready and ready:
            result["cancelled"] = True
            break
        if read in ready:
            data = os.read(read, 65536)
            ended = not data
            *lines, text = (text + data).split(b"\n")
            for line in lines:
                result |= json.loads(line)
    os.close(read)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if ended and result["state"] == "hung":
        signum = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        result |= {"state": "died", "signal": signum}
    return result


def _in_child(task: RankTask, report: int) -> None:
    try:
        _write(report, {"at": "connect"})
        measured = _Group(task, lambda at: _write(report, {"at": at})).measure()
        _write(report, {"state": "ok", **measured})
    except Exception as error:  # whatever torch and NCCL raise is the answer
        _write(report, {"state": "failed", "error": one_line(error)})


class _Group:
    """This rank's place in the group of one phase, on its device."""

    def __init__(self, task: RankTask, mark: Callable[[str], None]) -> None:
        self._task = task
        self._mark = mark
        self._rank, self._size = int(task["group_rank"]), int(task["group_size"])
        self._gpu: bool = task["device"] is not None
        self._device = torch.device("cuda", task["device"]) if self._gpu else torch.device("cpu")
        self._matrix = _GPU_MATRIX if self._gpu else _CPU_MATRIX
        # Of the large buffer, which all ranks' parts fill.
        self._elements = (_GPU_ELEMENTS if self._gpu else _CPU_ELEMENTS) // self._size * self._size
        if self._gpu:
            torch.cuda.set_device(self._device)
        if self._size > 1:
            self._join()

    def _join(self) -> None:
        task, timeout = self._task, timedelta(seconds=self._task["timeout_s"])
        store = dist.TCPStore(task["host"], task["port"], is_master=False, timeout=timeout)
        dist.init_process_group(
            "nccl" if self._gpu else "gloo",
            store=dist.PrefixStore(task["group"], store),
            rank=self._rank,
            world_size=self._size,
            timeout=timeout,
            **({"device_id": self._device} if self._gpu else {}),
        )

    def measure(self) -> RankTask:
        """`compute_s`, and by operation `seconds`, `best` and `size`; `wrong` by operation, where values are."""
        found: RankTask = {"measured": {}, "wrong": {}}
        if self._task["compute"]:
            self._mark("compute")
            found |= {"compute_s": self._compute(), "flop": 2 * self._matrix**3}
        for operation in self._task["operations"] if self._size > 1 else ():
            self._mark(operation)
            call, check = getattr(self, f"_{operation}")()
            call()
            self._synchronise()
            if wrong := check():
                found["wrong"][operation] = wrong
            found["measured"][operation] = self._timed(call)
        if self._size > 1:
            self._mark("end")
            dist.barrier()
        return found

    def _compute(self) -> float:
        """Seconds of one multiplication of square matrices, the best of several blocks."""
        kind = torch.float32
        if self._gpu:
            kind = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
        left = torch.ones(self._matrix, self._matrix, dtype=kind, device=self._device)
        torch.mm(left, left)
        best = float("inf")
        for _ in range(_COMPUTE_BLOCKS):
            self._synchronise()
            began = time.perf_counter()
            for _ in range(_COMPUTE_CALLS):
                torch.mm(left, left)
            self._synchronise()
            best = min(best, (time.perf_counter() - began) / _COMPUTE_CALLS)
        return best

    def _timed(self, call: Callable[[], object]) -> RankTask:
        times = []
        for _ in range(_GPU_REPEATS if self._gpu else _CPU_REPEATS):
            dist.barrier()
            self._synchronise()
            began = time.perf_counter()
            call()
            self._synchronise()
            times.append(time.perf_counter() - began)
        return {"seconds": sum(times) / len(times), "best": min(times), "size": self._elements * 4}

    def _synchronise(self) -> None:
        if self._gpu:
            torch.cuda.synchronize(self._device)

    def _pattern(self, begin: int, count: int) -> torch.Tensor:
        values = torch.arange(begin, begin + count, device=self._device) % PERIOD + 1
        return values.to(torch.float32)

    def _broadcast(self) -> tuple[Callable[[], object], Callable[[], RankTask | None]]:
        # Not 0, whose values a program that does nothing would have as well.
        root = self._size - 1
        buffer = self._pattern(0, self._elements) * rank_factor(self._rank)
        wanted = self._pattern(0, self._elements) * rank_factor(root)
        return (lambda: dist.broadcast(buffer, root)), lambda: _wrong(buffer, wanted)

    def _all_reduce(self) -> tuple[Callable[[], object], Callable[[], RankTask | None]]:
        buffer = self._pattern(0, self._elements) * rank_factor(self._rank)
        wanted = self._pattern(0, self._elements) * summed_factor(self._size)
        # The first call is checked; later ones add up sums, whose values no longer matter.
        return (lambda: dist.all_reduce(buffer)), lambda: _wrong(buffer, wanted)

    def _all_gather(self) -> tuple[Callable[[], object], Callable[[], RankTask | None]]:
        count = self._elements // self._size
        gather = _either("all_gather_single", "all_gather_into_tensor")
        own = self._pattern(self._rank * count, count) * rank_factor(self._rank)
        buffer = torch.zeros(self._elements, device=self._device)
        factors = torch.tensor([float(rank_factor(rank)) for rank in range(self._size)], device=self._device)
        wanted = self._pattern(0, self._elements) * factors.repeat_interleave(count)
        return (lambda: gather(buffer, own)), lambda: _wrong(buffer, wanted, part=count)

    def _reduce_scatter(self) -> tuple[Callable[[], object], Callable[[], RankTask | None]]:
        count = self._elements // self._size
        scatter = _either("reduce_scatter_single", "reduce_scatter_tensor")
        whole = self._pattern(0, self._elements) * rank_factor(self._rank)
        buffer = torch.zeros(count, device=self._device)
        wanted = self._pattern(self._rank * count, count) * summed_factor(self._size)
        return (lambda: scatter(buffer, whole)), lambda: _wrong(buffer, wanted)


def _either(new: str, old: str) -> Callable[..., object]:
    """torch.distributed's function by its name since 2.13, or by the one before."""
    return getattr(dist, new, None) or getattr(dist, old)  # type: ignore[no-any-return]


def _wrong(found: torch.Tensor, wanted: torch.Tensor, *, part: int | None = None) -> RankTask | None:
    """How many values differ, and with `part` elements from each rank, from which ranks; None where all are right."""
    differs = found != wanted
    count = int(differs.sum())
    if not count:
        return None
    ranks = sorted({int(index) // part for index in differs.nonzero().flatten().tolist()}) if part else []
    return {"count": count, "of": wanted.numel(), "from": ranks}


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # the doctor has ended
        main()
    sys.exit(0)
