"""A data loader process: its random numbers, and its place in the family of processes."""

from __future__ import annotations

import multiprocessing
import os
import signal

from dsrun.system.tether import die_with_parent
from dsrun.train.batches import seed_worker


def begin(worker_id: int) -> None:
    """Set up loader process `worker_id`; for the DataLoader's `worker_init_fn`."""
    # Schedulers signal every process of a job. The wish to stop is the rank's, which still needs its batches then; a
    # loader ends when the rank tells it to, or with it.
    for each in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(each, signal.SIG_IGN)
    # Not os.getppid(): the rank may have died before this process came to its first line.
    rank = multiprocessing.parent_process()
    die_with_parent(os.getppid() if rank is None or rank.pid is None else rank.pid, signal.SIGKILL)
    seed_worker(worker_id)
