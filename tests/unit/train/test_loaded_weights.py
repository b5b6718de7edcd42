"""Files that do not give all weights of a model, or hold others: refused with names and count, or drawn when asked."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    GPTJConfig,
    GPTJForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MixtralConfig,
    MixtralForCausalLM,
)

from dsrun.errors import UsageError
from dsrun.recipe.precision import TrainingPrecision
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.recipe.resolve import resolve
from dsrun.train.model import loaded_weights
from dsrun.train.model.build_model import build
from dsrun.train.model.load import decide_task, load_config
from dsrun.train.model.quantization import quantization_config

SHAPE = {
    "vocab_size": 16, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 1,
    "num_key_value_heads": 1,
}  # fmt: skip
LLAMA = LlamaConfig(**SHAPE)
GATE = "model.layers.1.mlp.gate_proj.weight"
BF16: TrainingPrecision = "bf16"


def saved(folder: Path, model, remove=(), add=None, **options) -> TrainSpec:
    """A model's folder, with these tensors changed in its one file of weights."""
    model.save_pretrained(folder, **options)
    if remove or add:
        weights = load_file(folder / "model.safetensors")
        kept = {name: value for name, value in weights.items() if name not in remove}
        kept |= {name: value.clone() for name, value in (add or {}).items()}
        save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return TrainSpec(model=str(folder))


def built(spec: TrainSpec, quantization=None, seed=0):
    """The model, and what was said of it."""
    config, notes = load_config(spec), []
    model = build(spec, config, decide_task(config, "auto", spec.model), quantization, seed=seed, notify=notes.append)
    return model, notes


def refusal(spec: TrainSpec, quantization=None) -> UsageError:
    with pytest.raises(UsageError) as caught:
        built(spec, quantization)
    return caught.value


def test_missing_weight_refused_with_name_and_count(tmp_path):
    error = refusal(saved(tmp_path, LlamaForCausalLM(LLAMA), remove=[GATE]))
    assert f"lack 1 weight of 21: {GATE}" in error.message
    assert "--allow-missing-weights" in error.fix


def test_missing_weight_of_a_sharded_checkpoint_refused(tmp_path):
    spec = saved(tmp_path, LlamaForCausalLM(LLAMA), max_shard_size="10KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    shard = tmp_path / index["weight_map"].pop(GATE)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    save_file({k: v for k, v in load_file(shard).items() if k != GATE}, shard, metadata={"format": "pt"})
    assert f"lack 1 weight of 21: {GATE}" in refusal(spec).message


def test_weight_of_another_shape_refused(tmp_path):
    spec = saved(tmp_path, LlamaForCausalLM(LLAMA), add={GATE: torch.zeros(8, 32)})
    assert f"1 weight of another shape: {GATE} (8, 32) and not (64, 32)" in refusal(spec).message


@pytest.mark.parametrize("name", ["model.layers.1.self_attn.q_proj.bias", "model.layers.2.mlp.up_proj.weight"])
def test_tensor_that_would_change_what_is_computed_refused(tmp_path, name):
    """A bias that the config leaves out, and a layer behind its last."""
    assert name in refusal(saved(tmp_path, LlamaForCausalLM(LLAMA), add={name: torch.zeros(32)})).message


def test_many_names_are_counted_and_some_shown(tmp_path):
    model = LlamaForCausalLM(LLAMA)
    lost = [name for name in model.state_dict() if "layers.1" in name]
    message = refusal(saved(tmp_path, model, remove=lost)).message
    assert f"lack {len(lost)} weights" in message
    assert message.endswith("and 4 more")


def test_missing_expert_refused(tmp_path):
    """Its layer's experts are joined as they are loaded, which then fails."""
    model = MixtralForCausalLM(MixtralConfig(**SHAPE, num_local_experts=2))
    model.save_pretrained(tmp_path)
    name = next(
        each for each in sorted(load_file(tmp_path / "model.safetensors")) if "layers.1" in each and "w1" in each
    )
    assert "model.layers.1.mlp.experts.gate_up_proj" in refusal(saved(tmp_path, model, remove=[name])).message


@pytest.mark.parametrize("bits", ["4bit", "8bit"])
def test_missing_weight_under_quantization_refused(tmp_path, bits):
    spec = replace(saved(tmp_path, LlamaForCausalLM(LLAMA), remove=[GATE]), quantization=bits, lora=2)
    error = refusal(spec, quantization_config(spec, BF16))
    assert GATE in error.message
    assert "--allow-missing-weights" not in error.fix, "the merge would draw others"


def test_allowed_weights_are_drawn_by_the_seed_alone(tmp_path):
    whole = LlamaForCausalLM(LLAMA)
    spec = replace(saved(tmp_path, whole, remove=[GATE]), allow_missing_weights=True)
    first, notes = built(spec, seed=1)
    torch.rand(7)
    again, other = built(spec, seed=1)[0], built(spec, seed=2)[0]
    drawn = {name for name, value in whole.state_dict().items() if not torch.equal(value, first.state_dict()[name])}
    assert drawn == {GATE}
    assert GATE in notes[0]
    assert torch.equal(first.state_dict()[GATE], again.state_dict()[GATE])
    assert not torch.equal(first.state_dict()[GATE], other.state_dict()[GATE])
    scratch = build(replace(spec, from_scratch=True), LLAMA, "causal-lm", seed=1)
    assert torch.equal(first.state_dict()[GATE], scratch.state_dict()[GATE])


def test_allowed_weight_of_another_shape_is_drawn(tmp_path):
    spec = saved(tmp_path, LlamaForCausalLM(LLAMA), add={GATE: torch.full((8, 32), torch.nan)})
    model, notes = built(replace(spec, allow_missing_weights=True))
    assert model.state_dict()[GATE].std() == pytest.approx(LLAMA.initializer_range, rel=0.2)
    assert "another shape" in notes[0]


def test_head_of_the_files_own_architecture_may_not_be_missing(tmp_path):
    error = refusal(saved(tmp_path, LlamaForCausalLM(LLAMA), remove=["lm_head.weight"]))
    assert "lm_head.weight" in error.message


def test_head_asked_for_on_files_without_one_is_drawn(tmp_path):
    spec = saved(tmp_path, LlamaModel(LLAMA))
    assert "lm_head.weight" in built(spec)[1][0]
    body = saved(tmp_path, LlamaModel(LLAMA), remove=["layers.1.mlp.gate_proj.weight"])
    assert GATE in refusal(body).message


def test_parts_that_a_text_model_does_not_have_are_noted(tmp_path):
    """A vision tower, layers that predict tokens after the next, and another head."""
    config = LlamaConfig(**SHAPE, num_nextn_predict_layers=1)
    names = [
        "vision_tower.blocks.0.attn.weight",
        "model.visual.bias",
        "model.layers.2.mlp.up_proj.weight",
        "score.weight",
    ]
    _, notes = built(saved(tmp_path, LlamaForCausalLM(config), add=dict.fromkeys(names, torch.zeros(2))))
    assert re.search(r"no .*vision_tower.*: 4 tensors", notes[0])


PAIRS = {
    "vocab_size": 16, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 8,
    "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0,
}  # fmt: skip
GPTJ = GPTJConfig(vocab_size=16, n_embd=16, n_layer=1, n_head=2, rotary_dim=4, n_positions=8)


@pytest.mark.parametrize(
    ("model", "config", "add"),
    [
        (LlamaForCausalLM, LlamaConfig(**SHAPE, tie_word_embeddings=True), []),
        (LlamaForCausalLM, LLAMA, ["model.layers.0.self_attn.rotary_emb.inv_freq"]),
        (GPTJForCausalLM, GPTJ, ["transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias"]),
        (MarianMTModel, MarianConfig(**PAIRS), []),
        (M2M100ForConditionalGeneration, M2M100Config(**PAIRS), ["model.encoder.embed_positions.weights"]),
    ],
    ids=["tied", "rotary", "masks", "sines", "saved sines"],
)
def test_what_a_model_computes_itself_may_be_there_or_not(tmp_path, model, config, add):
    built(saved(tmp_path, model(config), add=dict.fromkeys(add, torch.zeros(2))))


def test_files_of_another_node_refused_on_all(tmp_path, monkeypatch):
    """Only rank 1's files lack a weight."""
    monkeypatch.setattr(loaded_weights, "all_gather_object", lambda mine: [mine, "its files lack 1 weight"])
    assert "on rank 1: its files lack" in refusal(saved(tmp_path, LlamaForCausalLM(LLAMA))).message


def test_not_with_quantization_and_without_effect_on_weights_made_anew(tmp_path):
    given = ["--model", "demo-llama", "--allow-missing-weights"]
    with pytest.raises(UsageError, match="--quantization"):
        resolve([*given, "--quantization", "4bit", "--lora", "2"], tmp_path)
    assert any("--allow-missing-weights" in each for each in resolve([*given, "--from-scratch"], tmp_path).notices)
