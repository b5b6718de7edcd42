"""A prepared entry is compared with its checksums when it is opened, and made again where it differs."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from dsrun.errors import MissingError
from dsrun.train.data import cache as caching
from dsrun.train.data.cache import obtain
from tests.forkserver.client import HEAVY

ROWS = [{"source": "one", "target": "unu"}, {"source": "two", "target": "doi"}]


def flip(path, place=None):
    """Another lowest bit in the middle of a file, or at a place."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if place is None else place] ^= 1
    path.write_bytes(content)


def flip_in_ids(path):
    """Another token: nothing but the checksum can tell."""
    ids = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    flip(path, int(np.flatnonzero(ids)[-1]) if path.suffix == ".bin" else len(ids) // 2)


DAMAGE = {
    "bit in rows": ("train/data-*.arrow", flip_in_ids),
    "bit in manifest": ("manifest.json", flip),
    "cut rows": ("train/data-*.arrow", lambda path: path.write_bytes(path.read_bytes()[:100])),
    "empty manifest": ("manifest.json", lambda path: path.write_text("{}")),
    "cut manifest": ("manifest.json", lambda path: path.write_text(path.read_text()[:50])),
    "no manifest": ("manifest.json", lambda path: path.unlink()),
    "other info": ("train/dataset_info.json", lambda path: path.write_text("{")),
    "other state": ("train/state.json", lambda path: path.write_text("{}")),
    "no rows": ("train/data-*.arrow", lambda path: path.unlink()),
    "no split": ("train", shutil.rmtree),
}


@pytest.fixture(autouse=True)
def nothing_reported(monkeypatch):
    """As in a process of its own."""
    monkeypatch.setattr(caching, "_reported", set())


def entry(cache):
    (folder,) = (path for path in (cache / "prepared").iterdir() if path.is_dir())
    return folder


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_rows_are_prepared_again(kind, seq2seq, prepare, jsonl, cache):
    pattern, damage = DAMAGE[kind]
    file = jsonl(ROWS)
    first = prepare(seq2seq, "seq2seq", train_file=file)
    rows, fingerprint = list(first.train), first.train_fingerprint
    (path,) = entry(cache).glob(pattern)
    damage(path)
    for _ in range(2):
        again = prepare(seq2seq, "seq2seq", train_file=file)
        assert list(again.train) == rows
        assert again.train_fingerprint == fingerprint
        assert sum("is damaged" in line for line in prepare.told) == 1


def test_bit_in_tokens_is_noticed(causal, prepare, tmp_path, cache):
    file = tmp_path / "text.txt"
    file.write_text("some words\n" * 50)
    asked = {"train_file": file, "block_size": 64, "validation_split_percentage": 0}
    before = [row["input_ids"].tolist() for row in prepare(causal, "causal-lm", **asked).train]
    flip_in_ids(entry(cache) / "tokens.bin")
    after = [row["input_ids"].tolist() for row in prepare(causal, "causal-lm", **asked).train]
    assert after == before
    assert ["tokens.bin" in line for line in prepare.told if "is damaged" in line] == [True]


def test_changed_token_file_is_read_again(causal, prepare, tmp_path):
    """A bit of the user's own token file, with size and time as before: other data, which a resumed run is told of."""
    file = tmp_path / "t.bin"
    np.arange(10, 74, dtype="<u2").tofile(file)
    asked = {"train_file": file, "block_size": 16, "validation_split_percentage": 0}
    before = prepare(causal, "causal-lm", **asked).train_fingerprint
    time = file.stat()
    flip(file, 64)
    os.utime(file, ns=(time.st_atime_ns, time.st_mtime_ns))
    assert prepare(causal, "causal-lm", **asked).train_fingerprint != before


def test_damage_in_unwritable_cache_names_a_mend(cache):
    """The lock cannot be taken, whoever asks: there is a folder in its place."""
    folder, _ = obtain("k", lambda work: (work / "data").write_text("whole") and {})
    flip(folder / "data")
    (cache / "prepared" / "k.lock").unlink(missing_ok=True)
    (cache / "prepared" / "k.lock").mkdir()
    with pytest.raises(MissingError, match=r"cannot be written.*data: contents differ.*`dsrun prepare`"):
        obtain("k", lambda _: {})


def test_sound_entry_of_unwritable_cache_is_used(cache):
    obtain("k", lambda _: {"a": 1})
    (cache / "prepared" / "k.lock").unlink(missing_ok=True)
    (cache / "prepared" / "k.lock").mkdir()
    assert obtain("k", lambda _: {})[1]["a"] == 1


def test_entry_that_is_replaced_while_it_is_read(cache, monkeypatch):
    """What it says of itself is that of the files that were compared."""

    def build(work, by):
        (work / "data").write_text("whole")
        return {"by": by}

    def late(folder, **options):
        monkeypatch.setattr(caching, "verify", verify)
        caching._build(folder, lambda work: build(work, 1), "data: contents differ")
        return verify(folder, **options)

    obtain("k", lambda work: build(work, 0))
    verify = caching.verify
    monkeypatch.setattr(caching, "verify", late)
    said = []
    assert obtain("k", lambda work: build(work, 2), notify=said.append)[1]["by"] == 1
    assert len(said) == 1


RANK = """
import os, sys
from dsrun.train.data.cache import obtain

def build(work):
    (work / "data").write_text("whole")
    return {"by": os.getpid()}

sys.stdin.readline()
lines = []
path, meta = obtain("shared", build, notify=lines.append)
print(meta["by"], (path / "data").read_text(), len(lines))
"""


def test_ranks_rebuild_damaged_entry_once(cache):
    """One builds, all take that, and each has one line, also those that come after it: only rank 0 prints."""
    folder, _ = obtain("shared", lambda work: (work / "data").write_text("whole") and {"by": 0})
    flip(folder / "data")
    command = [sys.executable, "-c", RANK]
    ranks = [HEAVY.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for rank in ranks:
        rank.stdin.write("go\n")
        rank.stdin.flush()
    said = {rank.communicate(timeout=60)[0].strip() for rank in ranks}
    assert said in [{f"{rank.pid} whole 1"} for rank in ranks]
