"""How a run ended, told by every reader alike, whoever trains in it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from dsrun.cli.monitor.sources import RunSource
from dsrun.diagnosis.run_diagnosis import of_run
from dsrun.findings.finding import text_of
from dsrun.monitoring.overview import runs_of
from dsrun.monitoring.prometheus.samples import samples
from dsrun.monitoring.run_status import status_of
from dsrun.report.data import read_run
from dsrun.runs.reader import read_history
from dsrun.runs.tail import last_cause, progress
from tests.forkserver.client import HEAVY
from tests.integration.conftest import SHORT

pytestmark = pytest.mark.train

STEPS = 12
BEFORE = """
import os, sys, time
from pathlib import Path
how, again = sys.argv[1], os.environ.get("DSRUN_ATTEMPT", "0") != "0"
saved = Path("saved")
TARGET = 9  # far from what a new layer says, so that no step's loss is printed as 0

def done(step):
    # What each of the programs does after a step, which it has logged.
    if how == "restarts" and step == 7 and not again:
        os._exit(7)
    if how == "fails" and step == 7:
        raise RuntimeError("the data is odd")
    while how == "waits" and step == 7:
        time.sleep(0.1)
    saved.write_text(str(step))
    time.sleep(0.05)
"""
PROGRAMS = {
    "ddp": BEFORE
    + """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(int(saved.read_text()) + 1 if saved.exists() else 1, 13):
    loss = (model(torch.ones(2, 4)) - TARGET).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(f"step {step}/12 loss {loss.item():.4f} lr 0.01", flush=True)
    done(step)
dist.destroy_process_group()
""",
    "accelerate": BEFORE
    + """
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.01))
for step in range(int(saved.read_text()) + 1 if saved.exists() else 1, 13):
    loss = (model(torch.ones(2, 4)) - TARGET).pow(2).mean()
    accelerator.backward(loss)
    optimizer.step()
    accelerator.print({"loss": loss.item(), "step": step, "max_steps": 12}, flush=True)
    done(step)
accelerator.end_training()
""",
    "deepspeed": BEFORE
    + """
import torch, deepspeed, deepspeed.ops
deepspeed.ops.__compatible_ops__ = {"deepspeed_shm_comm": False}  # compiling it takes a minute
deepspeed.init_distributed("gloo")
model = torch.nn.Linear(4, 1)
config = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for step in range(int(saved.read_text()) + 1 if saved.exists() else 1, 13):
    loss = (engine(torch.ones(2, 4)) - TARGET).pow(2).mean()
    engine.backward(loss)
    engine.step()
    print(f"iteration {step}/ 12 | lm loss: {loss.item():.6f} |", flush=True)
    done(step)
""",
}
# How the program goes, what is done to it, and the state and the cause that everybody tells.
ENDS = {
    "well": ("goes on", None, "finished", None),
    "well after a restart": ("restarts", None, "finished", None),
    "failed": ("fails", None, "failed", "own_code"),
    "stopped": ("waits", signal.SIGTERM, "stopped", "interrupted"),
    "killed supervisor": ("waits", signal.SIGKILL, "killed", "run_killed"),
    "still running": ("waits", signal.SIGCONT, "training", "running"),
}
SLOW = ("accelerate", "deepspeed")


def each():
    for program in PROGRAMS:
        for end in ENDS:
            marks = [pytest.mark.exhaustive] if program in SLOW and end != "well after a restart" else []
            yield pytest.param(program, end, id=f"{program}-{end}", marks=marks)


@dataclass
class Told:
    """What a reader says."""

    state: str
    step: int | None
    loss: float | None


def everybody(run: Path) -> dict[str, Told]:
    """Each reader's state, step and loss."""
    history = read_history(run)
    status = status_of(history)
    (row,) = runs_of(run)
    seen = RunSource(run).read().status
    report = read_run(run, "run").status
    exported = {(name, labels.get("state")): value for name, labels, value in samples(history, time.time())}
    states = [state for (name, state), value in exported.items() if name == "dsrun_run_state" and value]
    found = {"status": status, "runs": row.status, "monitor": seen, "report": report}
    told = {name: Told(each.state, each.step, each.loss) for name, each in found.items()}
    step, loss = exported["dsrun_step", None], exported["dsrun_loss", None]
    return told | {"exporter": Told(states[0], int(step), loss)}


def reached(run: Path) -> int:
    found = progress(run / "metrics.jsonl")
    return found.step if found else 0


def diagnosed(run: Path) -> dict[str, object]:
    argv = [sys.executable, "-m", "dsrun", "diagnose", str(run), "--format", "json"]
    done = HEAVY.run(argv, env=dict(os.environ), capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return {"code": done.returncode, **json.loads(done.stdout)}


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """A function that runs a program to its end, or until it waits, and does to its supervisor what is asked for."""
    monkeypatch.chdir(tmp_path)
    processes = []

    def launch(program: str, end: str) -> Path:
        how, what, *_ = ENDS[end]
        (tmp_path / "program.py").write_text(PROGRAMS[program])
        options = ["--nproc", "1", "--output", "run", "--max-restarts", "0" if how == "fails" else "2"]
        argv = [sys.executable, "-m", "dsrun", "launch", *options, "--", "python", "program.py", how]
        output = (tmp_path / "output").open("wb")
        process = HEAVY.popen(argv, env=dict(os.environ), stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        processes.append(process)
        run, last = tmp_path / "run", STEPS if what is None else 7
        deadline = time.monotonic() + 240
        while process.poll() is None and (what is None or reached(run) < last):
            assert time.monotonic() < deadline, (tmp_path / "output").read_text()
            time.sleep(0.1)
        if what is not None:
            assert process.poll() is None, (tmp_path / "output").read_text()
            process.send_signal(what)
            if what != signal.SIGCONT:
                process.wait(timeout=240)
        return run

    yield launch
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=240)


@pytest.mark.parametrize(("program", "end"), list(each()))
def test_end_is_told_by_all_alike(launched, program, end):
    how, _, state, cause = ENDS[end]
    run = launched(program, end)
    step = STEPS if state == "finished" else 7
    told = everybody(run)
    assert {(each.state, each.step) for each in told.values()} == {(state, step)}
    (loss,) = {each.loss for each in told.values()}
    assert loss is not None
    assert loss > 0
    history = read_history(run)
    verdict = of_run(run)
    assert verdict.cause.code == (cause or "none")
    assert diagnosed(run)["code"] == (3 if state in ("failed", "killed") else 0)
    assert last_cause(run / "events.jsonl") == ("unknown" if state == "failed" else None)
    status = status_of(history)
    assert (status.model, status.max_steps, status.restarts) == ("program", STEPS, int(how == "restarts"))
    assert status.goodput is not None
    assert status.goodput > 0 or state != "finished"


def test_dsrun_train_tells_its_end_the_same_way(tmp_path, tiny, pairs):
    """Of its own training, stopped by Ctrl-C: the ranks save nothing and tell nothing, so their supervisor does."""
    run = tmp_path / "run"
    flags = [*SHORT, "--model", tiny["t5"], "--train-file", pairs["train"], "--max-steps", "5000", "--use-cpu"]
    argv = [sys.executable, "-m", "dsrun", "train", *flags, "--nproc", "1", "--output", str(run)]
    with (tmp_path / "said").open("w") as said:
        process = HEAVY.popen(argv, env=dict(os.environ), stdout=subprocess.DEVNULL, stderr=said)
    try:
        deadline = time.monotonic() + 240
        while progress(run / "metrics.jsonl") is None:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert {each.state for each in everybody(run).values()} == {"training"}
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=240) == 130
    finally:
        process.kill()
    assert {each.state for each in everybody(run).values()} == {"stopped"}
    last = (tmp_path / "said").read_text().splitlines()[-1]
    assert re.fullmatch(r"note: interrupted at step \d+, no checkpoint yet: the same command starts anew", last)
    assert (of_run(run).cause.code, of_run(run).fix) == ("interrupted", text_of("verdict.starts_anew"))
