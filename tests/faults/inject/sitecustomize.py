"""Faults from within: Python imports this file first when its folder is on PYTHONPATH.

DSRUN_FAULT describes one fault as JSON: `point`, `action`, `rank` (null for whichever comes first), `call` (the
how-manieth call of the point) and `marker`, a file that says it has happened already. The product has no hook for
this: the function at the point is wrapped when its module has been imported, in ranks started cold as in those forked
from a warm process.
"""

import errno
import functools
import importlib.abc
import importlib.machinery
import json
import os
import signal
import sys
import threading
import time

# point -> module, and the function in it that is entered at that point
POINTS = {
    "import": ("dsrun.train.worker", "_run"),
    "rendezvous": ("dsrun.train.run", "init_process_group"),
    "tokenising": ("dsrun.train.data.build_splits", "map_rows"),
    "loading": ("dsrun.train.loop.build_trainer", "build"),
    "resuming": ("transformers.trainer", "deepspeed_load_checkpoint"),
    "forward": ("dsrun.train.loop.trainer", "RunTrainer.compute_loss"),
    "optimizer": ("deepspeed.runtime.engine", "DeepSpeedEngine.step"),
    "saving": ("dsrun.train.loop.trainer", "RunTrainer._save"),
    "shards": ("deepspeed.runtime.engine", "DeepSpeedEngine._save_zero_checkpoint"),
    "scripts": ("deepspeed.runtime.engine", "DeepSpeedEngine._copy_recovery_script"),
    "committing": ("dsrun.runs.records", "write_json_atomic"),
    "evaluating": ("dsrun.train.loss.model_loss", "ModelLoss.sums"),
    "generating": ("dsrun.train.loop.generation", "TextGenerator.take"),
    "exporting": ("dsrun.train.finish", "save_final"),
}


class Fault:
    """The fault of this process's environment."""

    def __init__(self, text):
        said = json.loads(text)
        self.point = said["point"]
        self.action = said["action"]
        self.rank = said["rank"]
        self.call = said.get("call", 1)
        self.marker = said.get("marker")
        # Instead of `call`, where the point is a method of the Trainer: after so many optimizer steps, every time.
        self.step = said.get("step")
        # Every call from the `call`-th on.
        self.each = said.get("each", False)
        self.calls = 0

    def is_due(self, arguments):
        if self.point == "committing" and not is_checkpoint_manifest(str(arguments[0])):
            return False
        if self.rank not in (None, int(os.environ.get("RANK", "-1"))):
            return False
        self.calls += 1
        if self.each:
            return self.calls >= self.call
        if self.calls != self.call and self.step is None:
            return False
        if self.step is not None and getattr(arguments[0], "state", None) is not None:
            return arguments[0].state.global_step == self.step
        if self.marker is None:
            return True
        try:
            # $DSRUN_ATTEMPT in it makes it one of each attempt.
            marker = os.path.expandvars(self.marker)
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True

    def strike(self):
        kind, _, target = self.action.partition(" ")
        if kind == "raise":
            raise RuntimeError("injected: always at the same place")
        if kind == "error":
            raise OSError(getattr(errno, target), os.strerror(getattr(errno, target)), "injected")
        if kind == "ecc":
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
        if kind == "oom":
            raise RuntimeError(
                "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: "
                "you tried to allocate 2199023255552 bytes. Error code 12 (Cannot allocate memory)"
            )
        if kind == "hold":
            # Seldom: on a busy machine fifty looks a second cost as much as the work of a rank that lives.
            while not os.path.exists(target):
                time.sleep(0.2)
            return
        if kind == "sleep":
            # By rank, as "0.2,0.25"; the last one also for those that follow.
            seconds = target.split(",")
            time.sleep(float(seconds[min(int(os.environ["RANK"]), len(seconds) - 1)]))
            return
        if kind == "loader":
            end_loader()
            return
        if kind == "double":
            send(signal.SIGTERM, "supervisor")
            threading.Thread(target=lambda: (time.sleep(0.3), send(signal.SIGTERM, "supervisor"))).start()
            return
        send(getattr(signal, f"SIG{kind}"), target)


def is_checkpoint_manifest(path):
    """Prepared data has manifests too, written by whichever rank takes the lock first."""
    folder, name = os.path.split(path)
    return name == "manifest.json" and "checkpoint-" in os.path.basename(folder)


def send(signum, target):
    """`target`: rank (this process), ranks (all), agent (its parent), supervisor (the outermost process of the run)."""
    own = os.getpid()
    if target == "rank":
        os.kill(own, signum)
    elif target == "ranks":
        for pid in sorted(ranks(), key=lambda each: each == own):
            os.kill(pid, signum)
    elif target == "agent":
        os.kill(os.getppid(), signum)
    elif target == "supervisor":
        os.kill(supervisor(), signum)


def ranks():
    """The ranks of this run: the processes that share this one's cell and have a RANK."""
    cell = f"DSRUN_CELL={os.environ['DSRUN_CELL']}".encode()
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        parts = environment(pid)
        # A forked rank's /proc/PID/environ is its parent's: the heartbeats know them.
        if cell in parts and any(part.startswith(b"RANK=") for part in parts):
            found.append(pid)
    folder = os.environ.get("DSRUN_HEARTBEAT")
    if folder and os.path.isdir(folder):
        for name in os.listdir(folder):
            try:
                with open(os.path.join(folder, name)) as file:
                    found.append(json.load(file)["pid"])
            except (OSError, ValueError, KeyError):
                continue
    return set(found) | {os.getpid()}


def environment(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def supervisor():
    """The outermost ancestor that belongs to this run."""
    cell = f"DSRUN_CELL={os.environ['DSRUN_CELL']}".encode()
    found = pid = os.getpid()
    while pid > 1:
        with open(f"/proc/{pid}/stat") as file:
            pid = int(file.read().rpartition(")")[2].split()[1])
        if pid > 1 and cell in environment(pid):
            found = pid
    return found


def end_loader():
    """SIGKILL to one DataLoader worker of this rank."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        children = file.read().split()
    os.kill(int(children[0]), signal.SIGKILL)


def wrap(function, fault):
    @functools.wraps(function)
    def wrapped(*args, **options):
        due = fault.is_due(args)
        if due and fault.action in ("nan", "inf"):
            result = function(*args, **options)
            return result * float(fault.action)
        if due:
            fault.strike()
        return function(*args, **options)

    return wrapped


def install(module, name, fault):
    """Put the fault around the function, also where others have imported it already."""
    owner, _, name = name.rpartition(".")
    place = getattr(module, owner) if owner else module
    function = getattr(place, name)
    wrapped = wrap(function, fault)
    setattr(place, name, wrapped)
    for other in list(sys.modules.values()):
        if getattr(other, "__dict__", {}).get(name) is function:
            setattr(other, name, wrapped)


class Hook(importlib.abc.MetaPathFinder):
    """Wraps the point's function as soon as its module is there."""

    def __init__(self, module, name, fault):
        self.module = module
        self.name = name
        self.fault = fault

    def find_spec(self, fullname, path, target=None):
        if fullname != self.module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        execute = spec.loader.exec_module

        def executed(module):
            execute(module)
            install(module, self.name, self.fault)

        spec.loader.exec_module = executed
        return spec


if os.environ.get("DSRUN_FAULT"):
    import importlib.util

    _fault = Fault(os.environ["DSRUN_FAULT"])
    _module, _name = POINTS[_fault.point]
    if _module in sys.modules:
        install(sys.modules[_module], _name, _fault)
    else:
        sys.meta_path.insert(0, Hook(_module, _name, _fault))
