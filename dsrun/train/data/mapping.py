"""A quiet `Dataset.map`: progress and counts come through a ledger file, nothing stays in its cache."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import datasets
from datasets import Dataset, Features

from dsrun.system.process_end import die_with_parent
from dsrun.train.data.rows.limits import Counts
from dsrun.train.data.tokens.tokenise import RowEncoder

BATCH = 1000

SMALL = 5000
"""Rows below which starting processes costs more than they save."""

MOST_PROCESSES = 16

_POLL_SECONDS = 0.3


def map_rows(
    table: Dataset,
    encoder: RowEncoder,
    features: Features,
    scratch: Path,
    *,
    num_proc: int | None,
    progress: Callable[[int, int], None],
) -> tuple[Dataset, Counts]:
    """Encode all rows in `num_proc` processes into files under `scratch`; also what was counted on the way.

    `progress` is called with rows done and rows in all, now and then from another thread.
    """
    scratch.mkdir(exist_ok=True)
    ledger = scratch / "ledger.jsonl"
    ledger.write_bytes(b"")
    processes = processes_for(len(table), num_proc)
    with quiet(), _tokenizer_threads(processes), tethered_forks(), _watched(ledger, len(table), progress):
        encoded = table.map(
            replace(encoder, ledger=ledger),
            batched=True,
            batch_size=BATCH,
            with_indices=True,
            num_proc=processes if processes > 1 else None,
            remove_columns=table.column_names,
            features=features,
            load_from_cache_file=False,
            cache_file_name=str(scratch / "encoded.arrow"),
            # Otherwise the tokenizer would be pickled and hashed only to name a cache file that is not kept.
            new_fingerprint="0" * 16,
        )
    progress(len(table), len(table))
    return encoded, read_ledger(ledger)


def processes_for(rows: int, asked: int | None) -> int:
    """How many processes tokenise: as many as asked, else the cores this process may use, else one for few rows."""
    if asked is not None:
        return max(1, min(asked, rows))
    return 1 if rows < SMALL else min(len(os.sched_getaffinity(0)), MOST_PROCESSES)


def read_ledger(ledger: Path) -> Counts:
    """The sum of what all processes have counted so far."""
    counts = Counts()
    text = ledger.read_text(encoding="utf-8")
    # A line that is being written has no end yet.
    for line in text[: text.rfind("\n") + 1].splitlines():
        counts.add(json.loads(line))
    return counts


@contextmanager
def _watched(ledger: Path, total: int, progress: Callable[[int, int], None]) -> Iterator[None]:
    """Report the rows in the ledger while the body runs."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_POLL_SECONDS):
            progress(read_ledger(ledger).rows, total)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


class _Forking:
    """Who forks, as its child finds it. A child of this thread is meant only while the body of `tethered_forks` runs:
    hooks of os.register_at_fork stay for ever."""

    registered = False
    wanted = False
    parent = 0

    @classmethod
    def before(cls) -> None:
        cls.parent = os.getpid()

    @classmethod
    def in_child(cls) -> None:
        if cls.wanted:
            die_with_parent(cls.parent, signal.SIGKILL)
            # Ctrl-C goes to all of them; the parent ends them, and they have nothing to say.
            signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def tethered_forks() -> Iterator[None]:
    """Whatever is forked in the body dies when this process does, however that ends.

    `Dataset.map` starts a pool and a manager; neither notices when their owner is killed.
    """
    if not _Forking.registered:
        os.register_at_fork(before=_Forking.before, after_in_child=_Forking.in_child)
        _Forking.registered = True
    _Forking.wanted = True
    try:
        yield
    finally:
        _Forking.wanted = False


@contextmanager
def quiet() -> Iterator[None]:
    """Without the progress bars of `datasets`."""
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()


@contextmanager
def _tokenizer_threads(processes: int) -> Iterator[None]:
    """Off in several processes, where Rust's threads would fight for the cores and warn about forking."""
    name = "TOKENIZERS_PARALLELISM"
    environ, before = os.environ, os.environ.get(name)
    if processes > 1:
        environ[name] = "false"
    try:
        yield
    finally:
        # `datasets` leaves a copy in its place (Dataset.map with num_proc): who holds the old one would see no change.
        os.environ = environ  # noqa: B003
        if before is None:
            environ.pop(name, None)
        else:
            environ[name] = before
