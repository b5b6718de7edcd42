"""--save-every and --micro-batch-size auto: what they take, and what they contradict."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsrun.errors import UsageError
from dsrun.recipe.resolve import resolve


def ask(*flags, cwd=Path()):
    return resolve(["--model", "m", *flags], cwd)


def test_micro_batch_size_auto_or_number():
    """auto is a switch of its own, and the micro batch stays a number."""
    spec = ask("--micro-batch-size", "auto").spec
    assert (spec.micro_batch_size, spec.auto_micro_batch) == (None, True)
    spec = ask("--micro-batch-size", "4").spec
    assert (spec.micro_batch_size, spec.auto_micro_batch) == (4, False)


@pytest.mark.parametrize(
    "text", ["train: {model: m, micro_batch_size: auto}", "train: {model: m, micro-batch-size: auto}"]
)
def test_micro_batch_size_auto_in_run_yaml(text, tmp_path):
    """auto in run.yaml gives way to a number on the command line."""
    (tmp_path / "run.yaml").write_text(text)
    assert resolve(["--config", "run.yaml"], tmp_path).spec.auto_micro_batch is True
    stronger = resolve(["--config", "run.yaml", "--micro-batch-size", "4"], tmp_path)
    assert (stronger.spec.micro_batch_size, stronger.spec.auto_micro_batch) == (4, False)


def test_micro_batch_size_auto_in_args_json(tmp_path):
    (tmp_path / "args.json").write_text('{"model": "m", "micro_batch_size": "auto"}')
    assert resolve(["args.json"], tmp_path).spec.auto_micro_batch is True


def test_micro_batch_size_auto_contradicts_number():
    with pytest.raises(UsageError, match="contradict"):
        ask("--auto-micro-batch", "--per_device_train_batch_size", "4")


@pytest.mark.parametrize("value", ["0", "-5", "often", "1.5"])
def test_save_every_takes_steps_or_auto(value):
    with pytest.raises(UsageError, match="--save-every"):
        ask(f"--save-every={value}")
    assert ask("--save-every", "auto").spec.save_every == "auto"


@pytest.mark.parametrize("other", [("--save_strategy", "epoch"), ("--save_steps", "10")])
def test_save_every_contradicts_save_strategy(other):
    """One flag says when to save."""
    with pytest.raises(UsageError, match="both say when to save"):
        ask("--save-every", "5", *other)


def test_micro_batch_size_auto_contradicts_no_remedy():
    """auto needs the memory fallback."""
    with pytest.raises(UsageError, match="remedy"):
        ask("--micro-batch-size", "auto", "--no-remedy")


@pytest.mark.parametrize("flag", ["enable_jit_checkpoint", "restore_callback_states_from_checkpoint"])
def test_flags_that_disturb_resume_rejected(flag):
    with pytest.raises(UsageError, match=flag):
        ask(f"--{flag}")
    assert ask(f"--{flag}", "false").hf[flag] is False
