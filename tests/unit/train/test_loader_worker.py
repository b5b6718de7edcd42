"""Data loader processes: not signalled with the rank, and ended with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil

from tests.forkserver.client import HEAVY
from tests.processes import left_of

SCRIPT = """
import time, torch
from torch.utils.data import DataLoader
from dsrun.train.loop import loaders

if __name__ == "__main__":
    loader = DataLoader(list(range(1000)), num_workers=2, worker_init_fn=loaders.init_loader_worker)
    batches = iter(loader)
    print(*(worker.pid for worker in batches._workers), flush=True)
    for batch in batches:
        time.sleep(0.05)
        print(int(batch), flush=True)
"""


def test_loader_worker_ignores_stop_signals():
    """Loaders survive the signals to stop, and die with their rank."""
    with HEAVY.popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True) as rank:
        loaders = [psutil.Process(int(pid)) for pid in rank.stdout.readline().split()]
        for expected in range(4):
            assert int(rank.stdout.readline()) == expected
        for loader in loaders:
            loader.send_signal(signal.SIGTERM)
            loader.send_signal(signal.SIGUSR1)
        # Batches read ahead come without a loader; these do not.
        for expected in range(4, 30):
            assert int(rank.stdout.readline()) == expected
        os.kill(rank.pid, signal.SIGKILL)
    assert not left_of(loaders)


LATE = """
import multiprocessing, os, sys, time
from dsrun.train.loop import loaders

def late(parent):
    print(os.getpid(), flush=True)
    while os.getppid() == parent:
        time.sleep(0.01)
    loaders.init_loader_worker(0)
    time.sleep(600)

multiprocessing.get_context("fork").Process(target=late, args=(os.getpid(),)).start()
time.sleep(600)
"""


def test_loader_worker_started_after_death_of_rank():
    """A loader that begins after the death of its rank ends too."""
    with HEAVY.popen([sys.executable, "-c", LATE], stdout=subprocess.PIPE, text=True) as rank:
        loader = psutil.Process(int(rank.stdout.readline()))
        os.kill(rank.pid, signal.SIGKILL)
    assert not left_of([loader])
