"""When `dsrun plan --calibrate` takes no step: the plan is not for this machine, or there is nothing to run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dsrun.cli.calibrate import calibrate
from dsrun.errors import UsageError
from dsrun.zero.memory.configs import find
from dsrun.zero.memory.gpus_arg import cluster
from dsrun.zero.memory.plan import plan
from dsrun.zero.memory.question import Question
from dsrun.zero.memory.shapes import describe

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip


@pytest.fixture
def found(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return find(str(tmp_path))


def made(gpus: str, nodes: int = 1, **changes):
    question = Question(model=describe(LLAMA, from_scratch=True), cluster=cluster(gpus, nodes=nodes))
    return plan(replace(question, **changes))


@pytest.fixture
def no_steps(monkeypatch):
    """Training a step would be the failure."""
    monkeypatch.setattr("dsrun.system.answer.ask", lambda *args, **options: pytest.fail("a step was taken"))


@pytest.mark.usefixtures("no_steps")
def test_a_plan_in_which_nothing_fits(found):
    nothing = made("rtx-4090", host_memory=8.0)
    assert nothing.choice is None
    with pytest.raises(UsageError, match="nothing fits, so there is nothing to calibrate"):
        calibrate(nothing, found)


@pytest.mark.usefixtures("no_steps")
@pytest.mark.parametrize(
    ("here", "planned", "words"),
    [
        (0, made("a100-80:8", 2), "which has 0 GPUs, and the plan is for 16"),
        (1, made("a100-80:8", 2), "which has 1 GPUs, and the plan is for 16"),
        (1, made("a100-80:8"), "which has 1 GPUs, and the plan is for 8"),
    ],
)
def test_a_plan_for_another_machine(here, planned, words, found, monkeypatch):
    monkeypatch.setattr("dsrun.system.gpus.visible_gpus", lambda: [object()] * here)
    with pytest.raises(UsageError, match=words) as caught:
        calibrate(planned, found)
    assert caught.value.fix == "plan for the GPUs here"
