"""Prepared data on disk, found by what it was made from.

An entry is a folder `prepared/<key>/` with a manifest, as checkpoints have one. It is made under another name and
renamed when whole, so a process killed in between leaves nothing that counts. Its files are read for their checksums
whenever it is opened, and it is made again where they differ. A file lock lets exactly one of many processes (the ranks
of a node start at the same moment, before any collective exists) do the work while the others wait."""

import hashlib
import json
import os
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import datasets
import psutil
import pyarrow as pa
from datasets import Dataset, Features

from dsrun.errors import DsrunError
from dsrun.runs.heartbeat import SignOfLife
from dsrun.runs.manifest import read_manifest, verify, write_manifest
from dsrun.system.files import DISK_FULL, parse_json, replace_folder
from dsrun.system.process.process_end import die_with_parent
from dsrun.system.variables import cache_root
from dsrun.train.base.distributed import acquire_lock
from dsrun.train.base.refusals import refusal
from dsrun.train.data.counts import RowCounts
from dsrun.train.data.encoding.tokenise import RowEncoder
from dsrun.train.data.encoding.tokenizer import plain_backend

VERSION = 8
"""Part of every key: raise it when the same input gives other rows, or other values in the manifest."""

CacheMeta = dict[str, Any]

# The keys whose entries this process has rebuilt; see `_fresh_since`.
_rebuilt: set[str] = set()
# Those whose damage this process has reported.
_reported: set[str] = set()

BATCH = 1000
SMALL = 5000
"""Rows below which starting processes costs more than they save."""
MOST_PROCESSES = 16
_POLL_SECONDS = 0.3


def key_of(parts: Mapping[str, Any]) -> str:
    """A name for what is made from these parts; plain JSON values, in any order of keys."""
    text = json.dumps({"version": VERSION, **parts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def obtain(
    key: str,
    build: Callable[[Path], CacheMeta],
    *,
    overwrite: bool = False,
    waiting: Callable[[], None] = lambda: None,
    notify: Callable[[str], None] = lambda _: None,
    beat: SignOfLife = lambda: None,
) -> tuple[Path, CacheMeta]:
    """The entry's folder and what `build` returned, from the cache or built now.

    `build` gets an empty folder to fill and returns plain JSON values. With `overwrite` an older entry is built again,
    but once: ranks that come later take what the first has made. So it is with a damaged one, and `notify` gets a line
    about that. `waiting` is called now and then while another process works, `beat` while the files are read. Raises
    MissingError where an entry is to be made and cannot be."""
    root = cache_root() / "prepared"
    folder = root / key
    since = _fresh_since(key) if overwrite else 0.0
    seen = read_manifest(folder)
    found, damage = _read(folder, since, beat)
    _report(folder, damage or _mended(found), notify)
    if found is not None:
        return folder, found
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = acquire_lock(root / f"{key}.lock", waiting)
    except OSError as error:
        raise _unwritable(root, error, damage) from error
    with lock:
        # One that was made since then need not be read, one rank after another.
        found, damage = _read(folder, since, beat, contents=read_manifest(folder) == seen)
        meta = _build(folder, build, damage) if found is None else found
    _report(folder, _mended(meta), notify)
    return folder, meta


def _mended(meta: CacheMeta | None) -> str:
    """What was damaged in an entry that a process of this job has made again: another one than that which prints."""
    if not meta or meta["finished"] < psutil.Process().create_time():
        return ""
    return str(meta.get("mended", ""))


def _report(folder: Path, damage: str, notify: Callable[[str], None]) -> None:
    if damage and folder.name not in _reported:
        _reported.add(folder.name)
        notify(f"the prepared data in {folder} is damaged ({damage}): it is prepared again")


def _unwritable(root: Path, error: OSError, damage: str) -> DsrunError:
    key = "cache.damaged_and_unwritable" if damage else "cache.unwritable"
    return refusal(key, root=root, why=error.strerror or error, damage=damage)


def _build(folder: Path, build: Callable[[Path], CacheMeta], damage: str) -> CacheMeta:
    """Make the entry; the lock is held, so every other unfinished folder of this key belongs to a dead process."""
    for left_over in folder.parent.glob(f"{folder.name}.tmp-*"):
        shutil.rmtree(left_over, ignore_errors=True)
    work = folder.with_name(f"{folder.name}.tmp-{uuid.uuid4().hex[:8]}")
    try:
        work.mkdir()
    except OSError as error:
        raise _unwritable(folder.parent, error, damage) from error
    try:
        meta = build(work)
        meta |= {"finished": time.time(), "mended": damage}
        # It brings all files to the disk before the name says that they are whole: a power cut leaves both or none.
        write_manifest(work, meta)
        # Processes that mapped the old files keep them until they end.
        replace_folder(work, folder, aside=folder.with_name(f"{folder.name}.tmp-old"))
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise refusal("cache.no_room", root=folder.parents[1], why=os.strerror(error.errno)) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return meta


def _read(folder: Path, since: float, beat: SignOfLife, *, contents: bool = True) -> tuple[CacheMeta | None, str]:
    """What the entry says of itself, None where there is none that counts; and what is damaged in it, which takes
    `contents` to be read."""
    manifest = read_manifest(folder)
    if manifest is None:
        # One that is being replaced on a file system that cannot swap names is missing for an instant.
        return None, "no sound manifest" if folder.exists() else ""
    meta = manifest["extra"]
    if meta.get("finished", 0.0) < since:
        return None, ""
    damage = verify(folder, beat=beat) if contents else []
    if contents and read_manifest(folder) != manifest:  # another process has replaced it meanwhile
        return _read(folder, since, beat)
    return (None, str(damage[0])) if damage else (meta, "")


def _fresh_since(key: str) -> float:
    """From when an entry counts as rebuilt: this process's start, as all ranks of a job start before any builds. A
    process that asks a second time means a new rebuild."""
    if key in _rebuilt:
        return time.time()
    _rebuilt.add(key)
    return psutil.Process().create_time()


def map_rows(
    table: Dataset,
    encoder: RowEncoder,
    features: Features,
    scratch: Path,
    *,
    num_proc: int | None,
    progress: Callable[[int, int], None],
) -> tuple[Dataset, RowCounts]:
    """Encode all rows into files under `scratch`, in `num_proc` processes or, running text, in the threads of a Rust
    tokenizer; also what was counted on the way. `progress` is called with rows done and rows in all, now and then from
    another thread."""
    scratch.mkdir(exist_ok=True)
    ledger = scratch / "ledger.jsonl"
    ledger.write_bytes(b"")
    encoder = replace(encoder, ledger=ledger)
    target = scratch / "encoded.arrow"
    with _watched(ledger, len(table), progress):
        if num_proc is None and encoder.kind == "text" and plain_backend(encoder.tokenizer) is not None:
            encoded = _map_in_threads(table, encoder, features, target)
        else:
            encoded = _map_in_processes(table, encoder, features, target, num_proc)
    progress(len(table), len(table))
    return encoded, read_ledger(ledger)


def _map_in_processes(
    table: Dataset, encoder: RowEncoder, features: Features, target: Path, num_proc: int | None
) -> Dataset:
    if num_proc is None:
        num_proc = 1 if len(table) < SMALL else min(len(os.sched_getaffinity(0)), MOST_PROCESSES)
    processes = min(num_proc, len(table))
    threads = tokenizer_threads(on=False) if processes > 1 else nullcontext()
    with quiet(), threads, forks_with_pdeathsig():
        return table.map(
            encoder,
            batched=True,
            batch_size=BATCH,
            with_indices=True,
            num_proc=processes if processes > 1 else None,
            remove_columns=table.column_names,
            features=features,
            load_from_cache_file=False,
            cache_file_name=str(target),
            # Otherwise the tokenizer would be pickled and hashed only to name a cache file that is not kept.
            new_fingerprint="0" * 16,
        )


def _map_in_threads(table: Dataset, encoder: RowEncoder, features: Features, target: Path) -> Dataset:
    """The same a batch at a time in this process, which holds no more than that. The tokenizer, which takes nearly all
    of the time, works in threads."""
    schema, rows = features.arrow_schema, len(table)
    with tokenizer_threads(on=True), pa.OSFile(str(target), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        for begin in range(0, rows, BATCH):
            chosen = range(begin, min(begin + BATCH, rows))
            encoded = encoder(table[chosen.start : chosen.stop], chosen)
            writer.write_batch(pa.RecordBatch.from_pydict(encoded, schema))
    return Dataset.from_file(str(target))


def read_ledger(ledger: Path) -> RowCounts:
    counts = RowCounts()
    text = ledger.read_text(encoding="utf-8")
    # A line that is being written has no end yet.
    for line in text[: text.rfind("\n") + 1].splitlines():
        counts.add(parse_json(line))
    return counts


@contextmanager
def _watched(ledger: Path, total: int, progress: Callable[[int, int], None]) -> Iterator[None]:
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


# The process whose forks die with it, while there is one: hooks of os.register_at_fork stay for ever.
_tethering: list[int] = []


def _tether_child() -> None:
    if _tethering:
        die_with_parent(_tethering[0], signal.SIGKILL)
        _tethering[:] = [os.getpid()]
        # Ctrl-C goes to all of them; the parent ends them, and they are to print nothing.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


_register_once = cache(os.register_at_fork)


@contextmanager
def forks_with_pdeathsig() -> Iterator[None]:
    """Whatever is forked in the body dies when this process does: the pool and the manager that `Dataset.map` starts do
    not notice when their owner is killed."""
    _register_once(after_in_child=_tether_child)
    _tethering[:] = [os.getpid()]
    try:
        yield
    finally:
        _tethering.clear()


@contextmanager
def quiet() -> Iterator[None]:
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()


@contextmanager
def tokenizer_threads(*, on: bool) -> Iterator[None]:
    """Off where several processes tokenise: Rust's threads would fight for the cores and warn about forking."""
    name = "TOKENIZERS_PARALLELISM"
    environ, before = os.environ, os.environ.get(name)
    environ[name] = str(on).lower()
    try:
        yield
    finally:
        # `datasets` leaves a copy in its place (Dataset.map with num_proc): who holds the old one would see no change.
        os.environ = environ  # noqa: B003
        if before is None:
            environ.pop(name, None)
        else:
            environ[name] = before
