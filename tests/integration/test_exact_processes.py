"""Loader and tokenising processes: a dead one is noticed, and none outlives its rank."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from dsrun.system.net import free_port
from tests.forkserver.client import HEAVY
from tests.integration.conftest import SHORT
from tests.processes import left_of

pytestmark = pytest.mark.train


def worker(arguments, folder, **variables):
    """One rank on its own, as the agent starts it, with its output in a pipe."""
    env = {
        **os.environ, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "DSRUN_FAILURES": str(folder),
        "DSRUN_CACHE": str(folder / "cache"), **variables,
    }  # fmt: skip
    argv = [sys.executable, "-m", "dsrun.train", *map(str, arguments), "--output", str(folder / "run")]
    return HEAVY.popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def children_of(process, enough, *, when=lambda: True):
    """The processes below `process` as soon as there are `enough` of them."""
    end = time.monotonic() + 300
    while time.monotonic() < end and process.poll() is None:
        found = psutil.Process(process.pid).children(recursive=True)
        if len(found) >= enough and when():
            return found
        time.sleep(0.02)
    raise AssertionError(f"it never had {enough} children; exit code {process.poll()}")


def many_rows(folder, count):
    file = folder / "many.jsonl"
    row = json.dumps({"text": "w1 w2 w3 w4 w5 w6 w7 w8 " * 40}) + "\n"
    with file.open("w") as out:
        for _ in range(count):
            out.write(row)
    return str(file)


def endless(tiny, pairs):
    return [
        "--model", tiny["llama"], "--use-cpu", "--zero", "0", "--train-file", pairs["train"], *SHORT,
        "--max-steps", "100000", "--dataloader-num-workers", "2",
    ]  # fmt: skip


def test_killed_dataloader_worker_ends_rank_with_message(tiny, pairs, tmp_path):
    """A dead loader process ends the rank, and the failure record names it."""
    metrics = tmp_path / "run" / "metrics.jsonl"
    with worker(endless(tiny, pairs), tmp_path) as rank:
        loaders = children_of(rank, 2, when=lambda: metrics.exists() and metrics.stat().st_size > 0)
        loaders[0].send_signal(signal.SIGKILL)
        said, _ = rank.communicate(timeout=300)
    assert rank.returncode not in (0, None)
    failure = json.loads((tmp_path / "rank-0.json").read_text())
    assert "DataLoader worker" in failure["message"], f"{failure} {said}"
    assert not left_of(loaders)


def test_dataloader_workers_die_with_killed_rank(tiny, pairs, tmp_path):
    metrics = tmp_path / "run" / "metrics.jsonl"
    with worker(endless(tiny, pairs), tmp_path) as rank:
        loaders = children_of(rank, 2, when=lambda: metrics.exists() and metrics.stat().st_size > 0)
        rank.kill()
        assert not left_of(loaders)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL])
def test_signal_during_tokenization_ends_all_processes(signum, tiny, tmp_path):
    """The pool's two processes and the manager; a rank that is told to stop leaves without a failure."""
    arguments = [
        "--model", tiny["llama"], "--use-cpu", "--train-file", many_rows(tmp_path, 100_000), "--num-proc", "2",
        "--max-steps", "1", "--validation-split-percentage", "0",
    ]  # fmt: skip
    with worker(arguments, tmp_path, DSRUN_SAVE_ON="TERM,USR1") as rank:
        children = children_of(rank, 3)
        time.sleep(0.3)
        rank.send_signal(signum)
        rank.communicate(timeout=300)
        assert not left_of(children)
    if signum != signal.SIGKILL:
        assert rank.returncode == 0
        assert not (tmp_path / "rank-0.json").exists()
    left = [path.name for path in (tmp_path / "cache" / "prepared").iterdir() if path.is_dir()]
    assert all(".tmp-" in name for name in left), "a half made entry passes for whole"
