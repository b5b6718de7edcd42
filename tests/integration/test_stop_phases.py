"""One SIGTERM to `dsrun train` is enough in every phase, and the same command then does what is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.torch import load_file

from dsrun.runs.folder import RunFolder
from dsrun.runs.records import read_records
from tests.faults.hold import Hold
from tests.forkserver.client import HEAVY
from tests.integration.conftest import SHORT, dsrun

pytestmark = pytest.mark.train

STEPS = 4
LIMIT_S = 110.0
"""The ordinary limits, that hold without the signal, end a run later."""
FORWARDED_S = 1.0
"""In which the ranks learn of a signal to the supervisor."""


@dataclass(frozen=True)
class Phase:
    """`rank` (None: whichever comes first) is in the `call`-th call of `point` when the run is told to stop, and stays
    there unless it `goes_on`.
    The run leaves with a checkpoint of step `saved`, with the final `model` or without it."""

    point: str
    saved: int | None
    call: int = 1
    rank: int | None = 1
    flags: tuple[str, ...] = ()
    kind: str = "llama"
    goes_on: bool = True
    model: bool = False


IN_TRAINING = ("--eval-strategy", "steps", "--eval-steps", "2")
UNSAVED = ("--save-strategy", "no")
PHASES = {
    # The rank that takes the lock first tokenises for all.
    "tokenising": Phase("tokenising", None, rank=None, goes_on=False),
    "loading": Phase("loading", None, goes_on=False),
    "training": Phase("forward", 3, call=2),
    "evaluation": Phase("evaluating", 2, flags=IN_TRAINING),
    "evaluation that hangs": Phase("evaluating", None, flags=IN_TRAINING, goes_on=False),
    "generation": Phase("generating", 2, flags=IN_TRAINING, kind="t5"),
    "saving": Phase("saving", 2, rank=0, flags=("--save-every", "2")),
    "last saving": Phase("saving", STEPS, rank=0),
    "final evaluation": Phase("evaluating", STEPS, model=True),
    "final evaluation, unsaved": Phase("evaluating", STEPS, flags=UNSAVED, model=True),
    "final evaluation, unsaved, ZeRO-2": Phase("evaluating", STEPS, flags=(*UNSAVED, "--zero", "2"), model=True),
    "export": Phase("exporting", STEPS, rank=0, goes_on=False),
    "export, unsaved": Phase("exporting", STEPS, flags=UNSAVED, model=True),
}
BY_DEFAULT = ("final evaluation, unsaved", "export")


def by_step(run, key: str) -> dict[int, float]:
    """As last logged: a step that was lost is made again."""
    return {row["step"]: row[key] for row in read_records(run.folder / "metrics.jsonl") if key in row}


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in BY_DEFAULT else pytest.mark.exhaustive) for each in PHASES]
)
def test_one_sigterm_ends_a_run_in_every_phase(name, tiny, pairs, tmp_path):
    """It leaves soon, says what is saved, and ends as a run that was never told to stop."""
    phase = PHASES[name]
    many = tmp_path / "validation.jsonl"
    many.write_text(Path(pairs["validation"]).read_text() * 2)
    flags = [
        *("--model", tiny[phase.kind], "--nproc", "2", "--train-file", pairs["train"], "--validation-file", str(many)),
        *(*SHORT, "--per_device_eval_batch_size", "1", "--max-steps", str(STEPS), *phase.flags),
    ]
    folder = RunFolder(tmp_path / "run")
    hold = Hold(tmp_path, phase.point, call=phase.call, rank=phase.rank)
    argv = [sys.executable, "-m", "dsrun", "train", *flags, "--output", str(folder.path)]
    run = HEAVY.popen(argv, env=os.environ | hold.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    hold.wait()
    run.send_signal(signal.SIGTERM)
    if phase.goes_on:
        time.sleep(FORWARDED_S)
        hold.release()
    _, said = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 75, said
    last = read_records(folder.events)[-1]
    assert (last["kind"], last["signal"]) == ("signal", "SIGTERM")
    saved = [] if phase.saved is None else [phase.saved]
    assert [step for step, _ in folder.checkpoints()] == saved
    assert ("nothing new was saved" in said) == (phase.saved is None)
    assert folder.model.exists() == phase.model
    assert not folder.finished.exists()

    whole = dsrun(*flags, output=tmp_path / "whole").ok()
    again = dsrun(*flags, output=folder.path).ok()
    assert folder.finished.exists()
    assert by_step(again, "loss") == by_step(whole, "loss")
    assert by_step(again, "eval_loss") == by_step(whole, "eval_loss")
    weights = [load_file(each.folder / "model" / "model.safetensors") for each in (whole, again)]
    assert all((weights[0][key] == weights[1][key]).all() for key in weights[0])
