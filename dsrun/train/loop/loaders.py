"""The loader of training batches, which begins anywhere without reading, and the record of the samples of each step."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from transformers import TrainerCallback, set_seed
from transformers.trainer_callback import ExportableState

from dsrun.errors import DsrunError
from dsrun.runs.records import LineAppender, append_start, append_step, ledger_file, next_attempt
from dsrun.system.process.process_end import die_with_parent
from dsrun.train.base.distributed import rank0_first
from dsrun.train.data.batches import BatchLoader, GlobalBatchSampler, MicroBatchRows, StreamOfBatches, TrainingRows
from dsrun.train.data.collate import PaddingCollator
from dsrun.train.data.mixture import token_lengths
from dsrun.train.packing.decide import BatchingPlan
from dsrun.train.packing.sampler import PackedCollator, PackedRows, WindowSampler
from dsrun.zero.memory.flops import TokenCounts, work_of

# A loader worker silent for this long is stuck, on a dead file system for example.
LOADER_TIMEOUT_SECONDS = 600
# How often torch looks whether its processes live. SIGCHLD tells it at once, but not where it comes just before the
# wait for a batch begins.
LOOK_SECONDS = 5
# How long the kernel may take on a busy machine from closing the files of a process to its end.
DEATH_SECONDS = 5


class MicroBatch(dict[str, Any]):
    """What the collator made, and beside it the ids of the samples, their epoch, and a stream's place after them (see
    `MicroBatchRows`); where the labels of each sample are: row, first position, and the one behind the last; the tokens
    of the samples, the cells of the tensors that could hold some, and the sums that FLOPs follow from. The Trainer
    hands the model a plain copy without these."""

    ids: tuple[int, ...] = ()
    epoch: int | None = None
    after: dict[str, Any] | None = None
    spans: tuple[tuple[int, int, int], ...] = ()
    tokens: int = 0
    cells: int = 0
    work: TokenCounts = (0, 0, 0, 0, 0)


@dataclass(frozen=True)
class _Collate:
    """`joins` puts each sample into a row of its own first, which the packed collator then joins."""

    collate: Any
    both_sides: bool
    joins: bool

    def __call__(self, taken: MicroBatchRows) -> MicroBatch:
        rows: list[Any] = [[sample] for sample in taken.rows] if self.joins else taken.rows
        batch = MicroBatch(self.collate(rows))
        batch.ids, batch.epoch, batch.after = tuple(taken.ids), taken.epoch, taken.after
        samples = rows
        if isinstance(self.collate, PackedCollator):
            samples = [sample for row in rows for sample in row]
            spans = self.collate.spans(rows)
            # Rows of filler, which have no ids, come last.
            batch.spans = tuple(spans[: len(batch.ids)])
        else:
            width = batch["labels"].shape[1]
            batch.spans = tuple((row, 0, width) for row in range(len(batch.ids)))
        batch.work = work_of(pair for sample in samples[: len(batch.ids)] for pair in self._lengths(sample))
        batch.tokens = sum(batch.work[:2])
        batch.cells = batch["input_ids"].numel() + (batch["labels"].numel() if self.both_sides else 0)
        return batch

    def _lengths(self, sample: dict[str, Any]) -> list[tuple[int, int]]:
        """(source, target) tokens; a causal model reads each sequence by itself."""
        inputs = [len(values) for name, values in sample.items() if name.endswith("_ids")]
        return [(sum(inputs), len(sample["labels"]))] if self.both_sides else [(0, each) for each in inputs]


class TrainingLoader(BatchLoader):
    def __iter__(self) -> Iterator[MicroBatch]:
        batches = super().__iter__()
        while (batch := self._next_of(batches)) is not None:
            if batch.epoch is None:
                # The sampler's is that of this pass, which a loader process does not know.
                batch.epoch = self.batch_sampler.epoch
            yield batch

    def _next_of(self, batches: Iterator[Any]) -> Any:
        """The next batch, None at the end. Raises RuntimeError where a loader process has died or is stuck."""
        deadline = time.monotonic() + LOADER_TIMEOUT_SECONDS
        while True:
            try:
                return self._next_at_once(batches)
            except RuntimeError as error:
                # In torch's words (DataLoader._try_get_data), which has lost nothing then and can be asked again.
                if str(error) != f"DataLoader timed out after {self.timeout} seconds":
                    raise
                if time.monotonic() >= deadline:
                    words = f"DataLoader timed out after {LOADER_TIMEOUT_SECONDS} seconds"
                    raise RuntimeError(words) from error

    def _next_at_once(self, batches: Iterator[Any]) -> Any:
        try:
            return next(batches, None)
        except DsrunError as error:
            # From a loader process it comes with the traceback for its message, which ends with the error.
            last = str(error).strip().rpartition("\n")[2]
            raise type(error)(last.removeprefix(f"{type(error).__module__}.{type(error).__name__}: ")) from error
        except (EOFError, OSError):
            if self.num_workers:
                # The connections of a killed process break an instant before SIGCHLD comes, whose handler of torch
                # raises the cause: here, and not while this error is handled. Where it came before, torch looks itself.
                time.sleep(DEATH_SECONDS)
                torch._C._error_if_any_worker_fails()
            raise

    def start_at(self, micro_batch: int) -> Self:
        """Begin the next pass there. Nothing before it is read, save by a stream that does not know its place."""
        if not isinstance(self.dataset, StreamOfBatches):
            self.batch_sampler.first = micro_batch
        elif self.dataset.place is None:
            self.dataset.skipped = micro_batch
        return self


def training_loader(args: Any, rows: Any, batching: BatchingPlan, collate: PaddingCollator) -> TrainingLoader:
    """Micro batches of this rank's share of `rows`, a table or a stream; `args` are the Trainer's.

    A stream goes on through epochs without an end; the Trainer's max_steps ends it."""
    split, grouping = batching.split, batching.grouping
    workers = args.dataloader_num_workers
    seed = args.seed if args.data_seed is None else args.data_seed
    options: dict[str, Any] = {
        "collate_fn": _Collate(
            PackedCollator(collate, batching.method) if batching.method else collate,
            both_sides=collate.seq2seq,
            joins=bool(batching.method) and grouping.kind == "plain",
        ),
        "pin_memory": args.dataloader_pin_memory and args.device.type == "cuda",
        # The loader draws a seed from here, not from the generator that dropout uses: resuming then finds the same
        # dropout masks whatever the loader did before.
        "generator": torch.Generator().manual_seed(seed),
        "worker_init_fn": init_loader_worker,
    }
    is_stream = not hasattr(rows, "__len__")
    if is_stream:
        # Each further worker would read the whole stream again.
        workers = min(workers, 1)
    persistent = args.dataloader_persistent_workers and workers > 0 and not is_stream
    # At the start of a pass persistent workers have to answer within it, and nothing can be asked again then.
    options |= {
        "num_workers": workers,
        "timeout": (LOADER_TIMEOUT_SECONDS if persistent else LOOK_SECONDS) if workers else 0,
    }
    if is_stream:
        return TrainingLoader(StreamOfBatches(rows, split), batch_size=None, **options)
    shares, drop_last = getattr(rows, "shares", None), args.dataloader_drop_last
    sampler: GlobalBatchSampler | WindowSampler
    if batching.lengths is not None:
        sampler = WindowSampler(batching.lengths, split, grouping, seed=seed, drop_last=drop_last, shares=shares)
    else:
        sampler = GlobalBatchSampler(
            len(rows),
            split,
            seed=seed,
            drop_last=drop_last,
            shuffle=args.train_sampling_strategy != "sequential",
            lengths=token_lengths(rows) if args.train_sampling_strategy == "group_by_length" else None,
            shares=shares,
        )
    return TrainingLoader(
        PackedRows(rows) if batching.method else TrainingRows(rows),
        batch_sampler=sampler,
        persistent_workers=persistent,
        # ValueError of DataLoader where it is given without workers.
        prefetch_factor=args.dataloader_prefetch_factor if workers else None,
        **options,
    )


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy there. On a GPU the process does not wait until it has run all that was queued before, as it reads pinned
    memory by itself; the block is not given out again before that (torch's CachingHostAllocator)."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def init_loader_worker(worker_id: int) -> None:
    """Set up loader process `worker_id`; for the DataLoader's `worker_init_fn`."""
    # Schedulers signal every process of a job. The request is for the rank, which still needs its batches then and ends
    # its loaders itself.
    for each in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(each, signal.SIG_IGN)
    # Not os.getppid(): the rank may have died before this process came to its first line.
    rank = multiprocessing.parent_process()
    die_with_parent(os.getppid() if rank is None or rank.pid is None else rank.pid, signal.SIGKILL)
    # For NumPy and `random`; torch has seeded itself already.
    set_seed(torch.initial_seed() % 2**32)


class DataPlace(TrainerCallback, ExportableState):
    """Keeps a stream's place after the last step in the checkpoint (trainer_state.json), and begins there again. It
    comes with the batches that were trained on, so what loader processes have read ahead does not count, and is the
    same on all ranks. A table needs none: its place follows from the step and the seed."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._place: dict[str, Any] | None = None

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"place": self._place}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # A checkpoint that knew nothing of places would make the Trainer fail at the next save.
        stored = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        self._place = stored["attributes"]["place"]
        rows = kwargs["train_dataloader"].dataset
        if isinstance(rows, StreamOfBatches):
            rows.place = self._place

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._place = self.trainer.taken[-1].after


class SampleLedger(TrainerCallback):
    """Writes the ids of the samples that each finished step took to samples-rank-R.jsonl; see `dsrun.runs.records`."""

    def __init__(self, trainer: Any, folder: Path) -> None:
        self.trainer = trainer
        self.folder = folder

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        split = self.trainer.split
        # A rank that did not always take part has an incomplete ledger; rank 0's knows.
        self.attempt = rank0_first(lambda: next_attempt(self.folder))
        self._ledger = LineAppender(ledger_file(self.folder, split.rank))
        append_start(self._ledger, self.attempt, step=state.global_step, ranks=split.world_size)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        taken = self.trainer.taken
        ids = [each for batch in taken for each in batch.ids]
        append_step(self._ledger, self.attempt, step=state.global_step, epoch=taken[0].epoch, ids=ids)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._ledger.close()
