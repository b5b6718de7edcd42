"""Every DSRUN_* environment variable, and the cache folder that one of them names."""

import os
from collections.abc import Mapping
from pathlib import Path

CACHE = "DSRUN_CACHE"
"""Where wheels and prepared data are kept, by default ~/.cache/dsrun. Set by users."""
FIND_LINKS = "DSRUN_FIND_LINKS"
"""Where build-wheel looks for the finished wheel, for all calls: URLs and folders. Set by users."""
OUTPUT = "DSRUN_OUTPUT"
"""The run folder, for workers and for programs of `dsrun launch`; set by users, too, instead of --output."""
SECRET = "DSRUN_SECRET"
"""The string by which the supervisors of all nodes authenticate one another. Set by users, or made for ssh."""
TOKENS = "DSRUN_TOKENS"
"""The access tokens of the command line as JSON, by flag: over ssh and srun every user could read them in `ps`."""
SAVE_ON = "DSRUN_SAVE_ON"
"""The signals on which ranks save a checkpoint and exit with 75: "USR1,TERM"."""
STOP_FILE = "DSRUN_STOP_FILE"
"""The file that exists once the run has been asked to save and exit."""
ATTEMPT = "DSRUN_ATTEMPT"
"""The number of the attempt, from 0."""
BEGAN = "DSRUN_BEGAN"
"""When the SLURM job or the supervisor began, in seconds since the epoch."""
QUEUED = "DSRUN_QUEUED"
"""Seconds that the SLURM job waited in the queue before this start."""
RUN_ID = "DSRUN_RUN_ID"
"""Inherited by all processes of one supervisor, nested ones joined by "/": how the reaper finds them."""
RECIPE = "DSRUN_RECIPE"
"""The resolved recipe as JSON, from the supervisor to its ranks."""
SAVED_BATCH = "DSRUN_SAVED_BATCH"
"""The global batch of the checkpoint to resume from, empty for none: node 0 reads the manifest for all ranks."""
HEARTBEAT = "DSRUN_HEARTBEAT"
"""Folder of the heartbeats of this machine's ranks."""
FAILURES = "DSRUN_FAILURES"
"""Folder in which a rank that fails leaves its error; in a SLURM job, one that the supervisors of all nodes share."""
CONSOLE = "DSRUN_CONSOLE"
"""The named pipe through which rank 0 writes to the supervisor's terminal."""
TERMINAL = "DSRUN_TERMINAL"
"""The width of that terminal in columns; not set where there is none."""
RANKS = "DSRUN_RANKS"
"""The named pipe through which pre-forked ranks are handed out."""
GPUS = "DSRUN_GPUS"
"""GPUs that each node of a rendered job or pod has: with fewer it ends. Users set 0 for a program that needs none."""
JOB_UID = "DSRUN_JOB_UID"
"""The UID of the Kubernetes Job, which is the same in all its pods and in those that replace them."""
REQUEUE = "DSRUN_REQUEUE"
"""How many times that Job has begun the run before, from the supervisor to its ranks."""
NOTIFY_TEXT = "DSRUN_NOTIFY_TEXT"
"""One line about a run, for a command of --notify."""
LOG_FORMAT = "DSRUN_LOG_FORMAT"
"""How notes, progress and events appear on stderr: text, or json. Set by --log-format, or by users."""
LANGUAGE = "DSRUN_LANG"
"""The language of findings and causes on the terminal: en or zh. Set by users, where the locale's is not to be used."""
LOCAL = "DSRUN_LOCAL"
"""Folder on the node's own disk, in SLURM job scripts with --stage."""

MISLEADING = ("ACCELERATE_USE_CPU", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_FSDP")
"""Accelerate reads these before anything else; ACCELERATE_USE_CPU makes the Trainer drop DeepSpeed silently."""

OF_THIS_SUPERVISOR = frozenset(
    {ATTEMPT, BEGAN, CONSOLE, FAILURES, GPUS, HEARTBEAT, NOTIFY_TEXT, QUEUED, RANKS, RECIPE, REQUEUE, RUN_ID}
    | {SAVED_BATCH, SAVE_ON, STOP_FILE, TERMINAL}
)
"""Not forwarded to other machines, whose supervisors set their own and which have their own GPUs."""


def cache_root(environ: Mapping[str, str] = os.environ) -> Path:
    """DSRUN_CACHE, else `dsrun` in the user's cache folder (XDG base directory specification). Absolute, a relative one
    being below the current folder: programs that are started in others use it."""
    own = environ.get(CACHE) or Path(environ.get("XDG_CACHE_HOME") or "~/.cache") / "dsrun"
    return Path(own).expanduser().absolute()
