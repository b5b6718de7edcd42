"""`--zero auto`: the choice as flags that `dsrun train` takes."""

from __future__ import annotations

import pytest

from dsrun.errors import UsageError
from dsrun.recipe.resolve import resolve, with_defaults
from dsrun.zero.memory.model.count import describe
from dsrun.zero.memory.plan import ChosenPlan, decide, message, settings
from dsrun.zero.memory.plan_request import cluster

ONE_B = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_corrections(monkeypatch, tmp_path):
    monkeypatch.setenv("DSRUN_CACHE", str(tmp_path))


def auto(gpus="a100-80:4", **more):
    return decide(ONE_B, describe(ONE_B), cluster(gpus), **({"precision": "bf16", "length": 2048} | more))


def test_zero_auto_keeps_given_options():
    assert auto(micro_batch=2).micro_batch == 2
    assert auto(checkpointing=True).checkpointing
    assert not auto(checkpointing=False).checkpointing


def test_zero_auto_micro_batch_divides_share_of_rank():
    assert 16 % auto(global_batch=64).micro_batch == 0


def test_zero_auto_never_picks_nvme_unasked():
    assert auto("l4:1").offload != "nvme"


def test_zero_auto_micro_batch_too_large_is_refused():
    with pytest.raises(UsageError, match=r"nothing fits .* with micro batch 512"):
        auto("l4:1", micro_batch=512)


def test_zero_auto_keeps_given_offload():
    assert auto(offload="cpu").offload == "cpu"
    assert auto(offload="none").offload == "none"
    assert auto(offload="nvme").offload == "nvme"


def test_zero_auto_sets_train_options():
    recipe = resolve(["--model", "m"], None)
    chosen = ChosenPlan(stage=3, offload="cpu", micro_batch=4, checkpointing=True)
    settled = with_defaults(recipe, settings(chosen), "--zero auto")
    assert (settled.spec.zero, settled.spec.offload, settled.spec.micro_batch_size) == ("3", "cpu", 4)
    assert settled.hf["gradient_checkpointing"] is True
    assert "ZeRO-3 with states on the host, micro batch 4, recomputing" in message(chosen)
    plain = ChosenPlan(stage=0, offload="none", micro_batch=2, checkpointing=False)
    assert settings(plain) == {"zero": "0", "micro_batch_size": 2}
