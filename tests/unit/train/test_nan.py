"""fp16: a gradient that overflows is the loss scale's business, a loss that is not finite is not."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from dsrun.train.loop.nan import NanGuard, NanLossError


@pytest.fixture
def trainer():
    """What of a Trainer the guard looks at, in fp16 without DeepSpeed."""
    return SimpleNamespace(
        is_deepspeed_enabled=False,
        accelerator=SimpleNamespace(scaler=torch.amp.GradScaler("cpu", init_scale=2.0**16)),
        args=SimpleNamespace(fp16=True),
        model=torch.nn.Linear(2, 1),
        _tr_loss=torch.tensor(math.nan),
    )


def judged(trainer, tmp_path, loss, policy="stop"):
    guard = NanGuard(policy, tmp_path, rank=0)
    guard.begin(7, [{"input_ids": torch.arange(3)}], torch.tensor(1.5))
    guard.check_loss(torch.tensor(loss))
    return guard.check_norm(trainer, torch.tensor(math.inf))


def test_fp16_overflow_of_scaled_gradients_is_no_failure(trainer, tmp_path):
    assert judged(trainer, tmp_path, 2.5) == math.inf
    assert not (tmp_path / "nan").exists()


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_fp16_nonfinite_loss_stops_run(trainer, tmp_path, loss):
    """Every smaller scale would meet it again: the step would be left out without a word."""
    with pytest.raises(NanLossError, match=rf"step 7: the loss is {loss} on rank 0; its batch is in"):
        judged(trainer, tmp_path, loss)
    assert torch.load(tmp_path / "nan" / "step-7-rank-0.pt")["losses"][0] == pytest.approx(loss, nan_ok=True)


def test_fp16_step_with_nonfinite_loss_skipped(trainer, tmp_path):
    """The step is left out where that was asked for."""
    trainer.model(torch.ones(1, 2)).sum().backward()
    judged(trainer, tmp_path, math.nan, "skip")
    assert all(parameter.grad is None for parameter in trainer.model.parameters())
    assert trainer._tr_loss == 1.5
