"""Configs cut small: as published, and the defaults of every family that transformers has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from dsrun.errors import UsageError
from dsrun.models.families import family_of, other_models
from dsrun.train.certify.look.forward import LENGTH
from dsrun.train.certify.small import build, small_config
from dsrun.train.certify.subject import write_rows
from dsrun.train.model.text_part import text_config

PUBLISHED = json.loads((Path(__file__).parents[3] / "data" / "published_configs.json").read_text())
FAMILIES = sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES} - other_models())
# What the library's own defaults cannot build at full size either.
INCOMPLETE = {
    "bamba", "cohere_compass_text", "dbrx", "deepseek_v2", "dots1", "gemma4_assistant", "gemma4_unified_assistant",
    "granitemoehybrid", "hunyuan_v1_dense", "hunyuan_v1_moe", "lfm2_moe", "ministral", "nemotron", "qwen4_exp",
    "qwen4_exp_text", "reformer",
}  # fmt: skip
# Those of other parts than text, bytes in patches, a language to be chosen, and packages that are not there.
NOT_CUT = {
    "blt", "dots3_note", "dots3_note_text", "emu3", "encoder-decoder", "gemma3n", "git", "musicgen", "musicgen_melody",
    "xlstm", "xmod",
}  # fmt: skip
EVERY = 4
"""Of the published ones a run of all tests that are not exhaustive takes one in so many."""


def published(name, folder):
    (folder / "config.json").write_text(json.dumps(PUBLISHED[name]))
    return AutoConfig.from_pretrained(folder)


def learn(config, folder):
    """Builds the model of a small config, and returns it after a backward pass."""
    torch.manual_seed(0)
    model = build(config, folder)
    ids = torch.randint(3, 100, (2, 24))
    done = model(input_ids=ids, labels=ids)
    done.loss.backward()
    assert torch.isfinite(done.loss)
    assert 0.01 < done.logits.std() < 3
    assert all(torch.isfinite(each.grad).all() for each in model.parameters() if each.grad is not None)
    return model


def is_small(config):
    settings = text_config(config)
    assert settings.vocab_size <= 128
    assert settings.hidden_size <= 64
    for name, value in settings.to_dict().items():
        if "dropout" in name and isinstance(value, float):
            assert value == 0.0
        if name.endswith("_token_id") and isinstance(value, int):
            assert value < 128


CASES = [
    pytest.param(name, marks=() if number % EVERY == 0 else pytest.mark.exhaustive)
    for number, name in enumerate(PUBLISHED)
]


@pytest.mark.parametrize("name", CASES)
def test_published_config_is_cut(name, tmp_path):
    config = published(name, tmp_path)
    cut = small_config(config)
    is_small(cut)
    model = learn(cut, tmp_path / "small")
    assert sum(each.numel() for each in model.parameters()) < 3_000_000
    assert type(config) is type(AutoConfig.from_pretrained(tmp_path / "small"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", [kind for kind in FAMILIES if kind not in INCOMPLETE | NOT_CUT])
def test_default_config_of_every_family_is_cut(kind, tmp_path):
    """A family that a new transformers brings is here by itself."""
    config = CONFIG_MAPPING[kind]()
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0
    if family_of(kind).reads_both_ways:
        config.is_decoder = True
    learn(small_config(config), tmp_path)


KINDS = {
    "qwen3-next-80b-a3b": {"layer_types": ["linear_attention"] * 2 + ["full_attention"] * 2},
    "gemma-3-1b": {"layer_types": ["sliding_attention"] * 2 + ["full_attention"] * 2},
    "gemma-3n-e2b-text": {"num_hidden_layers": 12, "num_kv_shared_layers": 4},
    "deepseek-v3": {"num_hidden_layers": 4, "first_k_dense_replace": 2, "n_group": 2, "topk_group": 1},
    "glm-4.5-air": {"num_hidden_layers": 3, "first_k_dense_replace": 1},
    "llama-4-maverick-text": {"moe_layers": [1, 3, 4, 5], "num_hidden_layers": 6},
    "jamba-v0.1": {"layers_block_type": ["mamba", "mamba", "attention", "mamba", "mamba", "mamba", "attention"]},
    "bamba-9b": {"num_hidden_layers": 4},
    "gpt-neo-1.3b": {"attention_layers": ["global", "local", "global", "local"]},
    "switch-base-8": {"num_layers": 4, "encoder_sparse_step": 2, "num_sparse_decoder_layers": 2},
    "gemma-2-9b": {"num_hidden_layers": 4, "final_logit_softcapping": 30.0},
    "gemma-2b": {"num_key_value_heads": 1, "num_attention_heads": 4},
    "llama-2-7b": {"num_key_value_heads": 4, "tie_word_embeddings": False, "num_hidden_layers": 2},
    "llama-3.2-1b": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "phi-3.5-mini": {"max_position_embeddings": 256 * 32, "original_max_position_embeddings": 256},
    "granite-4.0-1b-dense": {"num_local_experts": 0, "num_hidden_layers": 2},
    "qwen2.5-0.5b": {"num_hidden_layers": 2},
}


@pytest.mark.parametrize("name", KINDS)
def test_two_layers_of_each_kind_are_kept_and_all_else(name, tmp_path):
    cut = small_config(published(name, tmp_path))
    for setting, value in KINDS[name].items():
        assert getattr(cut, setting) == value


ROLES = {
    "bart-large-cnn": {"eos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 1, "forced_eos_token_id": 1},
    "opus-mt-en-de": {"eos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 0},
    "gpt2": {"eos_token_id": 1, "bos_token_id": 1},
    "phi-4-mini": {"eos_token_id": 1, "pad_token_id": 1, "bos_token_id": 1},
    "t5-small": {"eos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 0},
}


@pytest.mark.parametrize("name", ROLES)
def test_special_tokens_keep_their_roles(name, tmp_path):
    cut = small_config(published(name, tmp_path))
    assert {role: getattr(cut, role) for role in ROLES[name]} == ROLES[name]


def test_several_ends_stay_several(tmp_path):
    first, *others = small_config(published("llama-3.1-8b", tmp_path)).eos_token_id
    assert first == 1
    assert len({first, *others}) == 3
    assert all(2 < each < 128 for each in others)


def test_window_of_kept_tokens_holds_a_row_whose_tokens_come_twice(tmp_path):
    """Which of equal tokens is kept is chance."""
    rows = map(json.loads, write_rows(tmp_path, "causal-lm")["train"].read_text().splitlines())
    longest = max(len(row["source"].split()) + len(row["target"].split()) for row in rows)
    assert longest < small_config(CONFIG_MAPPING["doge"]()).keep_window_size < LENGTH


def test_published_t5_keeps_its_own_head(tmp_path):
    model = build(small_config(published("flan-t5-base", tmp_path)), tmp_path / "small")
    assert model.lm_head.weight is not model.shared.weight
    stored = json.loads((tmp_path / "small" / "config.json").read_text())
    assert stored["tie_word_embeddings"] is False


def test_model_of_a_seed_is_the_same_each_time(tmp_path):
    config = small_config(published("qwen3-0.6b", tmp_path))
    one, same, other = (dict(build(config, tmp_path / "small", seed).named_parameters()) for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", ["musicgen", "nemotron"])
def test_model_that_cannot_be_built_says_why(kind, tmp_path):
    with pytest.raises(UsageError, match=kind):
        build(small_config(CONFIG_MAPPING[kind]()), tmp_path)
