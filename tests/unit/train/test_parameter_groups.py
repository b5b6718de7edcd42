"""Learning rates by layer, by name and for LoRA's B matrices: which parameter gets which."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.training_args import OptimizerNames

from dsrun.errors import UsageError
from dsrun.recipe.recipe import OWN_GROUPS
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.model.adapters import add_lora, freeze
from dsrun.train.model.parameter_groups import LearningRates

LAYERS = 3


def llama():
    config = LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=LAYERS, num_attention_heads=1
    )
    return LlamaForCausalLM(config)


def mixtral():
    return MixtralForCausalLM(
        MixtralConfig(
            vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=LAYERS, num_attention_heads=1,
            num_key_value_heads=1, num_local_experts=2,
        )
    )  # fmt: skip


def gpt2():
    return GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=LAYERS, n_head=1))


def t5():
    return T5ForConditionalGeneration(
        T5Config(vocab_size=16, d_model=8, d_kv=8, d_ff=8, num_layers=2, num_decoder_layers=LAYERS, num_heads=1)
    )


def bart():
    return BartForConditionalGeneration(
        BartConfig(
            vocab_size=16, d_model=8, encoder_layers=2, decoder_layers=LAYERS, encoder_attention_heads=1,
            decoder_attention_heads=1, encoder_ffn_dim=8, decoder_ffn_dim=8, max_position_embeddings=8,
        )
    )  # fmt: skip


def rates(model, *, rate=1.0, **spec):
    """The learning rate of each trained parameter."""
    groups = LearningRates.of(TrainSpec(**spec)).groups(model, rate)
    return {name: group.rate for group in groups for name in group.names}


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (llama, {"lm_head": 1, "model.norm": 1, "model.layers.2.mlp": 0.5, "model.layers.0": 0.125, "model.e": 2**-4}),
        (mixtral, {"lm_head": 1, "model.layers.2.mlp.experts": 0.5, "model.layers.0": 0.125, "model.emb": 2**-4}),
        (gpt2, {"transformer.ln_f": 1, "transformer.h.2": 0.5, "transformer.wte": 2**-4, "transformer.wpe": 2**-4}),
        (
            t5,
            {
                "encoder.final": 1, "decoder.final": 1, "encoder.block.1": 0.5, "encoder.block.0": 0.25,
                "decoder.block.2": 0.5, "decoder.block.0.layer.0": 0.125, "shared": 2**-4,
            },
        ),
        (
            bart,
            {
                "model.encoder.layers.1": 0.5, "model.decoder.layers.0": 0.125, "model.encoder.embed_positions": 2**-4,
                "model.encoder.layernorm_embedding": 2**-4, "model.shared": 2**-4,
            },
        ),
    ],
)  # fmt: skip
def test_rates_fall_from_head_to_embeddings(model, expected):
    """Each stack of layers is counted from its own top; the embeddings lie below all layers."""
    found = rates(model(), layer_lr_decay=0.5)
    for prefix, rate in expected.items():
        assert {value for name, value in found.items() if name.startswith(prefix)} == {rate}, prefix


def test_named_rates_replace_all_others():
    """By module or pattern, the last one that matches; what no pattern names keeps the rate of its layer."""
    found = rates(llama(), layer_lr_decay=0.5, lr_for=["model.layers.[12].*=0.7", "model.layers.2=0.3", "lm_head=2"])
    assert found["model.layers.1.mlp.up_proj.weight"] == 0.7
    assert found["model.layers.2.mlp.up_proj.weight"] == 0.3
    assert found["model.layers.0.mlp.up_proj.weight"] == 0.125
    assert found["lm_head.weight"] == 2


def test_groups_begin_with_the_rate_that_is_logged():
    """Then from the highest to the lowest, with weight decay first; every parameter once, in the model's order."""
    model = llama()
    groups = LearningRates.of(TrainSpec(lr_for=["lm_head=2", "model.layers.0=0.1"])).groups(model, 1.0)
    assert [(group.rate, group.decays) for group in groups] == [
        (1.0, True), (1.0, False), (2.0, True), (0.1, True), (0.1, False),
    ]  # fmt: skip
    names = [name for name, _ in model.named_parameters()]
    assert sorted(name for group in groups for name in group.names) == sorted(names)
    assert all(group.names == sorted(group.names, key=names.index) for group in groups)


def test_optimizer_groups_have_rates_and_weight_decay():
    model = llama()
    groups = LearningRates(named=(("model.norm", 0.5),)).optimizer_groups(model, 1e-3, 0.1)
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    assert [(g["lr"], g["weight_decay"]) for g in optimizer.param_groups] == [(1e-3, 0.1), (1e-3, 0.0), (0.5, 0.0)]
    assert groups[2]["params"][0] is model.model.norm.weight


def test_frozen_parameters_are_in_no_group():
    model = llama()
    freeze(model, ["model.embed_tokens"])
    assert "model.embed_tokens.weight" not in rates(model, layer_lr_decay=0.5)
    with pytest.raises(UsageError, match=r"--lr-for model\.embed_tokens: no trained parameter"):
        rates(model, lr_for=["model.embed_tokens=1"])


def test_lora_plus_raises_the_rate_of_b():
    """Under adapters patterns are the names of the model itself, and layers are counted as without."""
    model = add_lora(llama(), TrainSpec(lora=2, lora_targets=["q_proj"]), "causal-lm")
    layer = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.default.weight"
    found = rates(model, lora=2, loraplus_lr_ratio=16, layer_lr_decay=0.5, lr_for=["model.layers.0=0.3"])
    assert [found[layer.format(i, part)] for i in (2, 1, 0) for part in "AB"] == [0.5, 8.0, 0.25, 4.0, 0.3, 0.3]


def test_misspelled_pattern_gets_suggestion():
    with pytest.raises(UsageError, match="did you mean lm_head"):
        rates(llama(), lr_for=["lm_haed=1"])


def test_model_without_layers_rejected():
    class Flat(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])

    with pytest.raises(UsageError, match="--layer-lr-decay: Flat has no list of layers to count"):
        rates(Flat(), layer_lr_decay=0.5)


def test_notice_names_rates_and_stacks():
    assert LearningRates(layer_decay=0.5).describe(t5(), 1e-3) == (
        "learning rates from 6.25e-05 to 0.001, by 0.5 per layer of encoder.block (2)"
        ", by 0.5 per layer of decoder.block (3)"
    )


def test_identity_of_rates_is_the_settings():
    """It is compared on resume; the learning rate itself may change, as ever."""
    assert LearningRates().identity == "one"
    assert LearningRates(0.9, (("a", 1e-5),), 16).identity == "0.9 per layer, 1e-05 for a, LoRA+ 16"


def test_optimizers_that_group_parameters_themselves():
    """The names by which they are refused are those that transformers has handlers with layers or groups for."""
    names = {each.value for each in OptimizerNames if each.value.startswith(OWN_GROUPS)}
    assert {"galore_adamw", "galore_adafactor_layerwise", "apollo_adamw", "lomo", "adalomo"} <= names
    assert not names & {"adamw_torch", "adafactor", "lion_32bit", "sgd"}
