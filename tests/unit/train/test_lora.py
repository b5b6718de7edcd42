"""Which layers of a model get adapters."""

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.model.adapters import add_lora

ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}


@pytest.mark.parametrize(
    ("targets", "adapted"),
    [
        ([], ATTENTION | {"gate_proj", "up_proj", "down_proj"}),
        (["all-linear"], ATTENTION | {"gate_proj", "up_proj", "down_proj"}),
        (["q_proj", "v_proj"], {"q_proj", "v_proj"}),
    ],
)
def test_lora_target_layers(targets, adapted):
    """The layers that were named, or every linear one."""
    config = LlamaConfig(vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    model = add_lora(LlamaForCausalLM(config), TrainSpec(lora=2, lora_targets=targets), "causal-lm")
    names = {name.split(".lora_A")[0].rpartition(".")[2] for name, _ in model.named_parameters() if "lora_A" in name}
    assert names == adapted
