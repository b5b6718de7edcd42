"""Tokenised once: by content, by one process, and never half."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dsrun.errors import MissingError
from dsrun.system.variables import cache_root
from dsrun.train.data import build_splits as building
from dsrun.train.data.cache import key_of, obtain
from tests.forkserver.client import HEAVY
from tests.processes import alive, left_of

ROWS = [{"source": "one", "target": "unu"}, {"source": "two", "target": "doi"}]


def entries(cache):
    return sorted(path.name for path in (cache / "prepared").iterdir() if path.is_dir())


@pytest.fixture
def tokenised(monkeypatch):
    """How often rows were tokenised."""
    calls = []
    original = building.map_rows

    def counted(*args, **options):
        calls.append(args)
        return original(*args, **options)

    monkeypatch.setattr(building, "map_rows", counted)
    return calls


def test_cached_data_not_tokenised_again(seq2seq, prepare, jsonl, monkeypatch):
    file = jsonl(ROWS)
    first = prepare(seq2seq, "seq2seq", train_file=file)

    def refuse(*_args, **_options):
        raise AssertionError("tokenised again")

    monkeypatch.setattr(type(seq2seq), "__call__", refuse)
    second = prepare(seq2seq, "seq2seq", train_file=file)
    assert list(second.train) == list(first.train)
    assert second.counts == first.counts
    assert second.notices == first.notices


def test_cache_key_from_content_not_name_or_time(seq2seq, prepare, jsonl, tokenised):
    prepare(seq2seq, "seq2seq", train_file=jsonl(ROWS))
    file = jsonl(ROWS, "copy.jsonl")
    os.utime(file, (0, 0))
    prepare(seq2seq, "seq2seq", train_file=file)
    assert len(tokenised) == 1
    prepare(seq2seq, "seq2seq", train_file=jsonl([*ROWS, *ROWS], "copy.jsonl"))
    assert len(tokenised) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"source_prefix": "x"},
        {"max_source_length": 3},
        {"max_target_length": 3},
        {"max_train_samples": 1},
        {"text_column": "target", "summary_column": "source"},
    ],
)
def test_cache_miss_on_changed_flags(seq2seq, prepare, jsonl, tokenised, change):
    file = jsonl(ROWS)
    prepare(seq2seq, "seq2seq", train_file=file)
    prepare(seq2seq, "seq2seq", train_file=file, **change)
    assert len(tokenised) == 2


def test_cache_miss_on_changed_tokenizer(seq2seq, prepare, jsonl, tokenised):
    """Another tokenizer tokenises again, and a used one does not."""
    file = jsonl(ROWS)
    prepare(seq2seq, "seq2seq", train_file=file)
    seq2seq(["ab"], truncation=True, max_length=2, padding=True)
    prepare(seq2seq, "seq2seq", train_file=file)
    assert len(tokenised) == 1
    seq2seq.add_tokens(["one"])
    prepare(seq2seq, "seq2seq", train_file=file)
    assert len(tokenised) == 2


def test_overwrite_cache_builds_again(seq2seq, prepare, jsonl, tokenised, cache):
    file = jsonl(ROWS)
    prepare(seq2seq, "seq2seq", train_file=file)
    before = entries(cache)
    # This process is older than the entry, as a rank that comes late would be.
    prepare(seq2seq, "seq2seq", train_file=file, overwrite_cache=True)
    assert len(tokenised) == 1
    data = prepare(seq2seq, "seq2seq", train_file=file, overwrite_cache=True)
    assert len(tokenised) == 2
    assert entries(cache) == before
    assert len(data.train) == 2


def test_nothing_left_beside_cache_entry(seq2seq, prepare, jsonl, cache, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf"))
    prepare(seq2seq, "seq2seq", train_file=jsonl(ROWS))
    (entry,) = entries(cache)
    assert sorted(path.name for path in (cache / "prepared" / entry).iterdir()) == ["manifest.json", "train"]
    assert not (tmp_path / "hf").exists()


def test_failed_build_leaves_no_cache_entry(cache):
    def fail(work):
        (work / "half").write_text("x")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        obtain("k", fail)
    assert entries(cache) == []
    assert obtain("k", lambda _: {"a": 1})[1]["a"] == 1


SLOW_BUILD = """
import os, sys, time
from dsrun.train.data.cache import obtain

def build(work):
    time.sleep(0.5)
    (work / "data").write_text("whole")
    return {"by": os.getpid()}

# Both wait for the word, so that neither is done before the other asks.
sys.stdin.readline()
path, meta = obtain("shared", build, overwrite=True)
print(meta["by"], (path / "data").read_text())
"""


def test_concurrent_processes_build_cache_entry_once(cache):
    """Of processes that ask at once, one builds."""
    command = [sys.executable, "-c", SLOW_BUILD]
    workers = [HEAVY.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    said = {worker.communicate(timeout=60)[0].strip() for worker in workers}
    assert said in [{f"{worker.pid} whole"} for worker in workers]
    assert entries(cache) == ["shared"]


def killed_half_way(work):
    (work / "half").write_text("x")
    os.kill(os.getpid(), signal.SIGKILL)


def test_killed_cache_build_cleared_away(tmp_path, cache):
    """A killed build does not count and is cleared away."""
    child = os.fork()
    if child == 0:
        obtain("k", killed_half_way)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert len(list((cache / "prepared").glob("k.tmp-*"))) == 1
    path, _ = obtain("k", lambda work: (work / "data").write_text("whole") and {})
    assert (path / "data").read_text() == "whole"
    assert entries(cache) == ["k"]
    assert json.loads((path / "manifest.json").read_text())["extra"]["finished"] > 0


def build_slowly(work):
    for number in range(4):
        (work / f"part-{number}").write_text("x" * 100)
        time.sleep(0.002)
    return {"parts": 4}


def test_kill_at_any_moment_leaves_no_torn_cache_entry(cache):
    """Children of a fork each, killed after a random time, as often as not in the midst of replacing an entry."""
    folder = cache / "prepared" / "k"
    chance = random.Random(7)
    found = 0
    began = time.monotonic()
    obtain("k", build_slowly, overwrite=True)  # children of this process then ask a second time, and mean it
    # Some reach the end and some do not, however fast the disk is.
    longest = max(0.15, 2 * (time.monotonic() - began))
    for _ in range(40):
        child = os.fork()
        if child == 0:
            obtain("k", build_slowly, overwrite=True)
            os._exit(0)
        time.sleep(chance.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if (folder / "manifest.json").exists():
            found += 1
            parts = [path for path in folder.iterdir() if path.name.startswith("part-")]
            assert {path.stat().st_size for path in parts} == {100}
            assert len(parts) == json.loads((folder / "manifest.json").read_text())["extra"]["parts"]
    assert found > 6, "an entry is hardly ever there"
    # The last one may have left a beginning beside a whole entry; it goes with the next build.
    shutil.rmtree(folder, ignore_errors=True)
    obtain("k", build_slowly)
    assert entries(cache) == ["k"]


TOKENISE = """
import os, sys, time
from pathlib import Path
from datasets import Dataset
from datasets.features import Features, Sequence, Value
from dsrun.train.data.cache import map_rows

class Slow:
    ledger = None
    def __call__(self, batch, indices):
        time.sleep(0.2)
        return {{"input_ids": [[1]] * len(indices)}}

import dataclasses
Slow = dataclasses.make_dataclass("Slow", [("ledger", object, None)], bases=(Slow,))
table = Dataset.from_dict({{"text": ["x"] * 1_000_000}})
print("ready", flush=True)
features = Features({{"input_ids": Sequence(Value("int32"))}})
map_rows(table, Slow(), features, Path({scratch!r}), num_proc=2, progress=lambda *_: None)
"""


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_no_tokenising_process_outlives_its_owner(tmp_path, signum):
    """The pool's two and the manager that passes their rows on."""
    code = TOKENISE.format(scratch=str(tmp_path))
    with HEAVY.popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout.readline() == "ready\n"
        end = time.monotonic() + 60
        while len(children := psutil.Process(owner.pid).children(recursive=True)) < 3:
            assert time.monotonic() < end, "it never started its processes"
            time.sleep(0.02)
        owner.send_signal(signum)
        assert not left_of(children)


def test_processes_forked_after_tokenising_live_on(tmp_path):
    """A hook at fork cannot be taken back; it only counts while rows are mapped."""
    code = (
        "import os, time\n"
        "from dsrun.train.data.cache import forks_with_pdeathsig\n"
        "with forks_with_pdeathsig(): pass\n"
        "child = os.fork()\n"
        "if child: print(child, flush=True); os._exit(0)\n"
        "os.closerange(0, 3); time.sleep(600)\n"
    )
    done = HEAVY.run([sys.executable, "-c", code], capture_output=True, text=True)
    orphan = psutil.Process(int(done.stdout))
    assert alive(orphan)
    orphan.kill()


def test_cache_root(monkeypatch, tmp_path):
    monkeypatch.delenv("DSRUN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "dsrun"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache" / "dsrun"


def test_unwritable_cache_rejected(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DSRUN_CACHE", str(tmp_path / "file"))
    with pytest.raises(MissingError, match=r"cannot be written.*DSRUN_CACHE"):
        obtain("k", lambda _: {})


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_cache_names_the_cache_and_leaves_nothing(number, tmp_path, monkeypatch):
    """The disk of the data, and not the one of --output, which the log's own words would be taken for."""
    monkeypatch.setenv("DSRUN_CACHE", str(tmp_path / "cache"))

    def build(work):
        (work / "tokens.bin").write_bytes(b"half")
        raise OSError(number, os.strerror(number))

    with pytest.raises(MissingError, match=r"cache has no room for the prepared data: .*DSRUN_CACHE"):
        obtain("k", build)
    assert [path.name for path in (tmp_path / "cache" / "prepared").iterdir()] == ["k.lock"]


def test_other_failure_of_a_build_is_not_renamed():
    def build(_):
        raise OSError(errno.EIO, "bad sector")

    with pytest.raises(OSError, match="bad sector"):
        obtain("k", build)


def test_cache_key_independent_of_order():
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1}) != key_of({"a": 1, "b": 3})
