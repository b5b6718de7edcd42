"""NaN and infinite losses: found in their step on all ranks, never saved, and what --on-nan makes of them."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import load_file

from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import is_complete
from dsrun.runs.records import read_records, revive
from tests.integration.conftest import SHORT, many_runs
from tests.integration.many_runs import MAY_FAIL
from tests.integration.poison import INFINITE_LOSS, poisoned_data, poisoned_model

pytestmark = pytest.mark.train

RANKS = 2
STEPS = 6


@pytest.fixture(scope="module")
def runs(tmp_path_factory, pairs):
    """Name -> run folder of every run of this file, made by one group of workers."""
    home = tmp_path_factory.mktemp("nan")
    data = poisoned_data(home / "train.jsonl", pairs["train"], row=20)
    models = {
        "nan": poisoned_model(home / "nan-model"),
        "inf": poisoned_model(home / "inf-model", INFINITE_LOSS),
    }

    def flags(name, model, stage, policy, *more):
        return [
            MAY_FAIL, "--model", models[model], "--trust-remote-code", "--zero", stage, "--on-nan", policy,
            "--train-file", data, "--validation-split-percentage", "0", *SHORT, "--save-every", "1", "--keep", "20",
            "--max-steps", str(STEPS), "--output", str(home / name), *more,
        ]  # fmt: skip

    plan = {
        "stop-ddp": flags("stop-ddp", "nan", "0", "stop"),
        "stop-zero3": flags("stop-zero3", "nan", "3", "stop"),
        "stop-inf": flags("stop-inf", "inf", "2", "stop"),
        "skip-ddp": flags("skip-ddp", "nan", "0", "skip", "--gradient_accumulation_steps", "2"),
        "skip-zero2": flags("skip-zero2", "nan", "2", "skip"),
        "skip-zero3": flags("skip-zero3", "inf", "3", "skip"),
        "rollback": flags("rollback", "nan", "2", "rollback"),
        "burst": flags("burst", "nan", "0", "skip", "--learning-rate", "1e38", "--max_grad_norm", "0"),
    }
    again = plan["rollback"]
    many_runs([*plan.values(), again], ranks=RANKS, scratch=home)
    return {name: RunFolder(home / name) for name in plan}


def error(folder, rank=0):
    return json.loads((folder.path / f"error-{rank}.json").read_text())


def losses(folder):
    rows = map(revive, read_records(folder.metrics))
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


def bad_step(folder):
    (found, *others) = sorted(folder.path.glob("nan/*-rank-0.pt"))
    assert not others
    return int(found.name.split("-")[1])


@pytest.mark.parametrize("name", ["stop-ddp", "stop-zero3", "stop-inf"])
def test_nan_loss_stops_run_in_its_step(runs, name):
    """The run stops in the step with the NaN and saves no checkpoint from that step on."""
    folder = runs[name]
    step = bad_step(folder)
    assert 1 < step <= STEPS
    said = [error(folder, rank) for rank in range(RANKS)]
    assert said[0] == said[1]
    assert said[0]["cause"] == "nan_loss"
    assert said[0]["rollback"] is False
    assert said[0]["message"].startswith(f"step {step}: the loss is {'inf' if name == 'stop-inf' else 'nan'} on rank ")
    # Nothing was saved after it, and everything before it is sound.
    assert [found for found, _ in folder.checkpoints()] == list(range(step - 1, 0, -1))
    assert is_complete(folder.checkpoint(step - 1))
    assert all(
        weight.isfinite().all() for weight in load_file(folder.checkpoint(step - 1) / "model.safetensors").values()
    )
    assert not folder.model.exists()


def test_nan_dump_holds_offending_batch(runs):
    """The saved batch is the one with the poisoned sample."""
    folder = runs["stop-ddp"]
    step = bad_step(folder)
    kept = [torch.load(folder.path / "nan" / f"step-{step}-rank-{rank}.pt") for rank in range(RANKS)]
    poisoned = [rank for rank in range(RANKS) if any((b["input_ids"] == 2).any() for b in kept[rank]["batches"])]
    assert len(poisoned) == 1
    assert f"on rank {poisoned[0]};" in error(folder)["message"]
    assert 20 in [sample for ids in kept[poisoned[0]]["samples"] for sample in ids]
    assert not torch.tensor(kept[poisoned[0]]["losses"]).isfinite().all()


@pytest.mark.parametrize("name", ["skip-zero2", "skip-zero3", "rollback"])
def test_nan_step_skipped_same_losses_under_ddp_zero_rollback(runs, name):
    """One rank or another, DDP or ZeRO, left out at once or after going back: the same losses from then on."""
    whole, other = losses(runs["skip-ddp"]), losses(runs[name])
    step = bad_step(runs[name])
    assert set(whole) == set(other) == set(range(1, STEPS + 1))
    # Nothing was learnt in that step, and its loss is not made up.
    assert math.isnan(whole.pop(step))
    assert math.isnan(other.pop(step))
    assert other == pytest.approx(whole, rel=1e-4)
    assert all(weight.isfinite().all() for weight in load_file(runs[name].model / "model.safetensors").values())


def test_nan_skip_keeps_learning_rate_schedule(runs):
    """The learning rate schedule goes on through a step that is left out."""
    rates = {
        name: [row["lr"] for row in read_records(runs[name].metrics) if "lr" in row and row["lr"] is not None]
        for name in ("skip-ddp", "skip-zero2", "skip-zero3")
    }
    expected = [0.01 * (STEPS - step) / STEPS for step in range(STEPS)]
    for name, found in rates.items():
        assert found == pytest.approx(expected), name


def test_nan_skip_is_recorded_in_events(runs):
    """A step that is left out is recorded among the run's events."""
    events = [row for row in read_records(runs["skip-ddp"].events) if row["kind"] == "nan"]
    assert [row["step"] for row in events] == [bad_step(runs["skip-ddp"])]


def test_nan_rollback_restores_once_and_skips_step(runs):
    """Rollback goes back to the last checkpoint once and then passes the step over."""
    folder = runs["rollback"]
    step = bad_step(folder)
    assert error(folder)["rollback"] is True
    assert json.loads((folder.path / "skip-steps.json").read_text())["steps"] == [step]
    assert [row["step"] for row in read_records(folder.events) if row["kind"] == "resume"] == [step - 1]
    assert folder.finished.exists()


def test_nan_weights_end_run_without_saving_them(runs):
    """A learning rate of 1e38 ruins the weights in the first step."""
    folder = runs["burst"]
    assert error(folder)["cause"] == "nan_loss"
    assert not folder.finished.exists()
    for _, checkpoint in folder.checkpoints():
        assert all(weight.isfinite().all() for weight in load_file(checkpoint / "model.safetensors").values())
