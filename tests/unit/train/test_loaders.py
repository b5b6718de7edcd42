"""Training batches know their samples, and the loader begins far in without reading what is before."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import threading
import time
from itertools import islice
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from datasets import Dataset as HubDataset
from torch.utils.data import Dataset
from transformers import Trainer

from dsrun.train.data.batches import BatchSplit, MicroBatchRows
from dsrun.train.data.collate import PaddingCollator
from dsrun.train.data.token_files import TokenBin
from dsrun.train.loop.loaders import MicroBatch, TrainingLoader, _Collate, training_loader
from dsrun.train.packing.decide import BatchingPlan
from dsrun.train.packing.sampler import BatchGrouping
from tests.forkserver.client import HEAVY
from tests.processes import left_of

COLLATE = PaddingCollator(pad_id=0, seq2seq=False)


def plain(*split):
    """Batches of an unchanged order, divided by `split`."""
    divided = BatchSplit(*split)
    return BatchingPlan(BatchGrouping("plain", divided.global_batch), divided)


class Counted(Dataset):
    """Rows that hold their number, and notes which were read."""

    def __init__(self, count, pause=0.0):
        self.count = count
        self.read = []
        self.pause = pause

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(self.pause)
        self.read.append(index)
        return {"input_ids": [index], "labels": [index]}


def arguments(workers=0, **changes):
    return SimpleNamespace(
        **{
            "dataloader_num_workers": workers,
            "dataloader_pin_memory": False,
            "device": torch.device("cpu"),
            "data_seed": None,
            "seed": 7,
            "dataloader_drop_last": False,
            "train_sampling_strategy": "random",
            "dataloader_persistent_workers": workers > 0,
            "dataloader_prefetch_factor": None,
            **changes,
        }
    )


def labels(batch):
    return [int(label) for label in batch["labels"].flatten() if label >= 0]


@pytest.mark.parametrize("workers", [0, 2])
def test_micro_batches_know_sample_ids_and_epoch(workers):
    loader = training_loader(arguments(workers), Counted(10), plain(2, 1, 2), COLLATE)
    for epoch in (0, 3):
        loader.set_epoch(epoch)
        batches = list(loader)
        assert [list(batch.ids) for batch in batches] == [labels(batch) for batch in batches]
        assert [len(batch.ids) for batch in batches] == [2, 2, 0], "filler has no id"
        assert {batch.epoch for batch in batches} == {epoch}
    assert set(batches[0]) == {"input_ids", "attention_mask", "labels"}


@pytest.mark.parametrize(
    ("both_sides", "sample", "work"),
    [
        (False, {"input_ids": [5, 6, 7]}, (0, 3, 0, 9, 0)),
        (True, {"input_ids": [5, 6, 7]}, (3, 2, 9, 4, 6)),
        # Each answer is a sequence of its own.
        (False, {"chosen_ids": [5, 6, 7], "rejected_ids": [5]}, (0, 4, 0, 10, 0)),
    ],
)
def test_micro_batch_counts_tokens_and_pairs_of_tokens(both_sides, sample, work):
    rows = [{**sample, "labels": [1, 2]}, {**sample, "labels": [0, 0]}]
    tensors = {name: torch.ones(2, 4) for name in ("input_ids", "labels")}
    batch = _Collate(lambda _: tensors, both_sides=both_sides, joins=False)(MicroBatchRows(rows, [0]))
    assert batch.work == work, "without filler, which has no id"
    assert batch.tokens == work[0] + work[1]


def test_sample_order_from_data_seed_or_seed():
    """The order follows from the seed of the data, or else from the seed."""

    def order(**seeds):
        loader = training_loader(arguments(**seeds), Counted(50), plain(2, 0, 1), COLLATE)
        return [sample for batch in loader.batch_sampler for sample in batch]

    assert order(seed=7, data_seed=0) == order(seed=0) != order(seed=7)
    assert order(seed=7, data_seed=3) == order(seed=8, data_seed=3) == order(seed=3)


def test_micro_batch_ids_survive_pinning():
    """Ids and place do not go into the model, and both survive pinning."""
    batch = MicroBatch({"labels": 1})
    batch.ids, batch.after = (4,), {"epoch": 0}
    # What transformers' _prepare_input does, and torch's pin_memory.
    assert type(batch)(dict(batch.items())).ids == ()
    assert copy.copy(batch).ids == (4,)
    assert dict(**batch) == {"labels": 1}


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_resume_at_step_50000_reads_nothing_before(workers):
    rows = Counted(450_000)
    whole = training_loader(arguments(workers), rows, plain(2, 0, 2, 2), COLLATE)
    order = list(islice(whole.batch_sampler, 100_000, 100_003))
    loader = whole.start_at(100_000)
    assert [list(batch.ids) for batch in islice(loader, 3)] == order
    if not workers:
        assert len(rows.read) == 6


def test_trainer_skips_batches_by_start_at():
    """Its own way is accelerate's function; a Transformers that calls it by another name must not go unnoticed."""
    import dsrun.train.loop.trainer  # noqa: F401

    assert Trainer._run_epoch.__globals__["skip_first_batches"] is TrainingLoader.start_at


def grouped(rows, seed=7):
    options = arguments(train_sampling_strategy="group_by_length", seed=seed)
    return training_loader(options, rows, plain(2, 0, 1), COLLATE).batch_sampler


def test_group_by_length_takes_lengths_of_rows():
    """Lengths are those of the rows, also of a selection."""
    rows = HubDataset.from_dict({"input_ids": [[1] * n for n in (3, 1, 2, 5)]})
    assert grouped(rows).lengths.tolist() == [3, 1, 2, 5]
    assert grouped(rows.select([3, 0])).lengths.tolist() == [5, 3]


def test_group_by_length_of_token_file_blocks(tmp_path):
    np.arange(21, dtype="<u2").tofile(tmp_path / "t.bin")
    assert grouped(TokenBin(tmp_path / "t.bin", "uint16", 8)).lengths.tolist() == [8, 8, 5]


def test_epoch_after_resumed_one_is_whole():
    loader = training_loader(arguments(2), Counted(10), plain(2, 0, 1), COLLATE).start_at(4)
    assert [len(list(loader)) for _ in range(2)] == [1, 5]


def test_killed_loader_worker_ends_training_at_once():
    """Not after LOADER_TIMEOUT_SECONDS: torch hears of its children's deaths by SIGCHLD."""
    loader = training_loader(arguments(2), Counted(10_000, pause=0.01), plain(2, 0, 1), COLLATE)
    batches = iter(loader)
    next(batches)
    began = time.monotonic()

    def kill_and_go_on():
        # One only, and of this loader: a second death could be told of after this test, wherever pytest is then.
        loader._iterator._workers[0].kill()
        list(batches)

    # Torch's handler of SIGCHLD raises wherever this process is, which need not have come to the loader.
    with pytest.raises(RuntimeError, match=r"DataLoader worker .* (killed by signal|exited unexpectedly)"):
        kill_and_go_on()
    assert time.monotonic() - began < 60
    loader._iterator._shutdown_workers()


def test_loader_worker_whose_death_was_not_told_is_noticed():
    """SIGCHLD that comes just before the wait for a batch interrupts nothing."""
    loader = training_loader(
        arguments(2, dataloader_persistent_workers=False), Counted(10_000, pause=0.01), plain(2, 0, 1), COLLATE
    )
    before = psutil.Process().children()
    batches = iter(loader)
    next(batches)
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        next(each for each in psutil.Process().children() if each not in before).kill()
        began = time.monotonic()
        with pytest.raises(RuntimeError, match=r"DataLoader worker .* (exited unexpectedly|killed by signal)"):
            list(batches)
        assert time.monotonic() - began < 60
    finally:
        signal.signal(signal.SIGCHLD, handler)


def test_slow_batch_is_waited_for_until_the_limit(monkeypatch):
    """Longer than torch waits at a time, and not for ever."""
    monkeypatch.setattr("dsrun.train.loop.loaders.LOOK_SECONDS", 0.2)
    options = arguments(1, dataloader_persistent_workers=False)
    assert len(list(training_loader(options, Counted(4, pause=0.3), plain(2, 0, 1), COLLATE))) == 2
    monkeypatch.setattr("dsrun.train.loop.loaders.LOADER_TIMEOUT_SECONDS", 0.4)
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.4 seconds"):
        list(training_loader(options, Counted(4, pause=1.5), plain(2, 0, 1), COLLATE))


def test_killed_loader_worker_behind_broken_connection(monkeypatch):
    """A worker is reported as killed also where its connection breaks first: on a busy machine in one of five cases."""
    loader = training_loader(arguments(2), Counted(10_000, pause=0.01), plain(2, 0, 1), COLLATE)
    batches = iter(loader)
    next(batches)

    def broken():
        threading.Timer(0.5, loader._iterator._workers[0].kill).start()
        raise ConnectionResetError

    monkeypatch.setattr("dsrun.train.loop.loaders.DEATH_SECONDS", 60)
    monkeypatch.setattr(loader._iterator, "_next_data", broken)
    with pytest.raises(RuntimeError, match=r"DataLoader worker .* killed by signal"):
        next(batches)
    loader._iterator._shutdown_workers()


def test_killed_loader_worker_behind_broken_connection_whose_death_was_not_told(monkeypatch):
    options = arguments(2, dataloader_persistent_workers=False)
    before = psutil.Process().children()
    loader = training_loader(options, Counted(10_000, pause=0.01), plain(2, 0, 1), COLLATE)
    batches = iter(loader)
    next(batches)

    def broken(self):
        next(each for each in psutil.Process().children() if each not in before).kill()
        raise ConnectionResetError

    monkeypatch.setattr("dsrun.train.loop.loaders.DEATH_SECONDS", 1)
    monkeypatch.setattr("torch.utils.data.dataloader._MultiProcessingDataLoaderIter._next_data", broken)
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        with pytest.raises(RuntimeError, match=r"DataLoader worker .* killed by signal"):
            next(batches)
    finally:
        signal.signal(signal.SIGCHLD, handler)


OWNER = """
import os, sys, time
sys.path[:0] = {path!r}
from tests.unit.train.test_loaders import COLLATE, Counted, arguments, plain
from dsrun.train.loop.loaders import training_loader
batches = iter(training_loader(arguments(2), Counted(10_000, pause=0.01), plain(2, 0, 1), COLLATE))
next(batches)
print("ready", flush=True)
time.sleep(600)
"""


def test_no_loader_worker_outlives_killed_rank():
    code = OWNER.format(path=sys.path)
    with HEAVY.popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout.readline() == "ready\n"
        loaders = psutil.Process(owner.pid).children(recursive=True)
        os.kill(owner.pid, signal.SIGKILL)
        assert len(loaders) >= 2
        assert not left_of(loaders)
