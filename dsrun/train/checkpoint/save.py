"""One checkpoint on its way: this rank's part of writing it, and what all ranks do together to show it."""

import errno
import logging
import os
import re
import time
from collections.abc import Callable, Container, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from dsrun.datafiles import toml_beside
from dsrun.errors import ToolError
from dsrun.runs import commit
from dsrun.runs.checksum import PATIENCE_S, ChecksumFile, ChecksumPool, ManifestFile
from dsrun.runs.folder import RunFolder
from dsrun.runs.heartbeat import SignOfLife
from dsrun.runs.manifest import newest_complete, write_manifest
from dsrun.system.files import DISK_FULL
from dsrun.system.host import hostname
from dsrun.train.base.distributed import all_gather_object, local_ranks, my_rank, rank0_first
from dsrun.train.base.refusals import refusal
from dsrun.train.checkpoint.snapshot import NamedTensors, SnapshotBuffers, StateSnapshot

logger = logging.getLogger(__name__)

# What torch and safetensors raise when a write fails: neither keeps it an OSError.
WRITE_ERRORS = (OSError, RuntimeError, SafetensorError)
_PROBE_BYTES = 1 << 20


# A disk or a file server that fails may work again in a moment; one that is full or read-only stays so.
_PASSING = [getattr(errno, name) for name in toml_beside(__file__, "checkpoint.toml")["write_errors"]["passing"]]


class SaveFailed(ToolError):
    """A checkpoint could not be written. `passing`: another attempt may succeed; the same on all ranks."""

    passing = False


@dataclass(frozen=True, kw_only=True)
class SaveFault:
    """Why this rank could not write its part, whether the disk was to blame, and its errno where one is known."""

    rank: int
    host: str
    why: str
    disk: bool
    errno: int | None


FileSums = Mapping[str, ManifestFile]
DumpFunction = Callable[[Any, ChecksumFile], None]


class CheckpointSave:
    """A checkpoint that all ranks write to a hidden folder. Making one is a collective, as is `finish`.

    With `snapshots`, `store` only copies what is to be written, and a thread writes it. `short_of_memory`: there was no
    room for all copies, on any rank once the save is finished; what was not copied was written at once."""

    def __init__(
        self, run: RunFolder, step: int, *, beat: SignOfLife, snapshots: SnapshotBuffers | None = None
    ) -> None:
        """Raises SaveFailed on all ranks where the folder cannot be made."""
        self.run = run
        self.step = step
        self.began = time.monotonic()
        self.beat = beat
        self.fault: SaveFault | None = None
        self.short_of_memory = False
        try:
            self.folder = rank0_first(lambda: commit.begin(run, step))
        except OSError as error:
            raise self.failed(f"{error.strerror} on {run.path}", error.errno) from error
        self._sealer = ChecksumPool(self.folder, share=local_ranks())
        self._snapshots = snapshots
        # One file after the other: several at once would only make the disk seek.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="write")
        self._writes: list[Future[None]] = []
        self._held: list[StateSnapshot] = []

    def write(self, work: Callable[[], Any], *files: Path) -> None:
        """Do `work`, which writes `files`, and begin to seal them; nothing once a write of this rank has failed. A
        failure is kept for `finish`: raised here, it would leave the other ranks waiting in the next collective."""
        if self.fault:
            return
        try:
            work()
        except WRITE_ERRORS as error:
            self._failed_to_write(error, *files)
        else:
            self._sealer.add(*files)
        self.beat()

    def store(self, dump: DumpFunction, state: Any, file: Path, *, live: Container[int] | None = None) -> None:
        """Have `dump` write `state` as it is now to `file`; at once, or from a copy while training goes on. A failure
        is kept as `write` does. `live`: see `SnapshotBuffers.take`."""
        if self.fault:
            return
        self._sealer.expect(file)
        copy = self._snapshots.take(state, live=live) if self._snapshots else None
        if copy:
            self._writes.append(self._writer.submit(self._dump_copy, dump, copy, file))
        else:
            self.short_of_memory = self._snapshots is not None
            self._dump(dump, state, file)
        self.beat()

    def copy_of(self, weights: NamedTensors) -> dict[str, Any] | None:
        """Copies of the weights that stay until the save ends; None where nothing is copied, or memory is short."""
        copy = self._snapshots.take_apart(weights) if self._snapshots else None
        if copy is None:
            return None
        self._held.append(copy)
        return copy.state

    def _dump(self, dump: DumpFunction, state: Any, file: Path) -> None:
        if self.fault:
            return
        try:
            with ChecksumFile(file) as stream:
                dump(state, stream)
        except WRITE_ERRORS as error:
            self._failed_to_write(error, file)
        else:
            self._sealer.written(file, stream.entry)

    def _dump_copy(self, dump: DumpFunction, copy: StateSnapshot, file: Path) -> None:
        """In the thread that writes."""
        try:
            self._dump(dump, copy.state, file)
        except Exception as error:
            self._failed_to_write(error, file)
        finally:
            if self._snapshots:
                self._snapshots.give_back(copy)

    def _failed_to_write(self, error: BaseException, *files: Path) -> None:
        logger.error("writing to %s failed", self.folder, exc_info=error)
        self.fault = _fault(error, self.folder)
        for file in files:
            # Frees the space that the small files which DeepSpeed writes by itself still need.
            file.unlink(missing_ok=True)

    def seal(self, *files: Path) -> None:
        """Begin to seal `files` that others have written; those that `store` writes are left alone."""
        if not self.fault:
            self._sealer.add(*files)

    @property
    def is_sealed(self) -> bool:
        return all(each.done() for each in self._writes) and (self.fault is not None or self._sealer.is_done)

    def finish(self, facts: Mapping[str, Any]) -> int:
        """Show the checkpoint once every rank's files are on the disk; returns its size in bytes. Raises SaveFailed on
        all ranks where any of them failed, with nothing left of it but the older checkpoints."""
        reports = all_gather_object((self._seal(), self.fault, self.short_of_memory))
        self.short_of_memory = any(short for _, _, short in reports)
        fault = next((fault for _, fault, _ in reports if fault), None)
        if fault:
            if my_rank() == 0:
                commit.discard(self.run, self.step)
            raise self.failed(f"rank {fault.rank} on {fault.host}: {fault.why}", fault.errno, disk=fault.disk)
        sums = {name: entry for part, _, _ in reports for name, entry in part.items()}
        rank0_first(lambda: self._show(sums, facts))
        return sum(entry["size"] for entry in sums.values())

    def _seal(self) -> FileSums:
        try:
            while wait(self._writes, timeout=PATIENCE_S).not_done:
                self.beat()
            return {} if self.fault else self._sealer.result(self.beat)
        except OSError as error:
            self.fault = self.fault or _fault(error, self.folder)
            return {}
        finally:
            self.close()

    def close(self) -> None:
        """Drop what has not begun, and end the threads."""
        self._writer.shutdown(wait=True, cancel_futures=True)
        self._sealer.close()
        while self._held and self._snapshots:
            self._snapshots.give_back(self._held.pop())

    def _show(self, sums: FileSums, facts: Mapping[str, Any]) -> None:
        """Rank 0's part: the manifest last, then the rename."""
        unseen = [name for name in sums if not (self.folder / name).is_file()]
        if unseen:
            commit.discard(self.run, self.step)
            raise refusal("checkpoint.not_shared", run=self.run.path, why=f"another node wrote {unseen[0]} elsewhere")
        try:
            write_manifest(self.folder, {"step": self.step, **facts}, sealed=sums)
            commit.commit(self.run, self.step)
        except OSError as error:
            commit.discard(self.run, self.step)
            raise self.failed(error.strerror or str(error), error.errno) from error

    def failed(self, why: str, number: int | None, *, disk: bool = True) -> SaveFailed:
        """The error for this save. `number` is the errno; torch gives none, and hides a full disk by that."""
        fix, cause = "the log has the traceback", None
        if disk and (number is None or number in DISK_FULL):
            fix, cause = "free some space, lower --keep, or choose another --output", "disk_full"
        elif disk:
            fix, cause = "see dmesg on that node, or choose another --output", "disk_error"
        error = SaveFailed(f"saving checkpoint-{self.step} failed: {why}; {_left(self.run)}", fix=fix, cause=cause)
        error.passing = disk and (number is None or number in _PASSING)
        return error


def _left(run: RunFolder) -> str:
    try:
        newest = newest_complete(run)
    except OSError:  # It must not hide why the save failed.
        return "the run folder cannot be read any more"
    return f"checkpoint-{newest[0]} is whole" if newest else "there is no earlier checkpoint"


def _fault(error: BaseException, folder: Path) -> SaveFault:
    """What a failed write was about. torch reports a full disk as `unexpected pos`, so the disk is asked itself."""
    # Rust's standard library, whose message safetensors passes on, writes the errno into it.
    written = re.search(r"\(os error (\d+)\)", str(error))
    number = error.errno if isinstance(error, OSError) else int(written[1]) if written else None
    disk = True
    if number is None and not isinstance(error, OSError):
        number = _probe(folder)
        disk = number is not None or "inline_container" in str(error) or "PytorchStreamWriter" in str(error)
    first = str(error).splitlines()[0][:200] if str(error) else ""
    why = os.strerror(number) if number else f"{type(error).__name__}: {first}"
    return SaveFault(rank=my_rank(), host=hostname(), why=why, disk=disk, errno=number)


def _probe(folder: Path) -> int | None:
    """The errno of a write to the folder's disk; None when it goes well."""
    file = folder / f".probe-{my_rank()}"
    try:
        with file.open("wb", buffering=0) as stream:
            left = memoryview(bytes(_PROBE_BYTES))
            while left:  # the write after a short one tells why
                left = left[stream.write(left) or 0 :]
            os.fsync(stream.fileno())
    except OSError as error:
        return error.errno
    finally:
        file.unlink(missing_ok=True)
    return None
