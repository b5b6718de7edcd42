"""Errors for a model that cannot be built as requested, and the language that generated texts begin in."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import FalconConfig, FalconForCausalLM, LlamaConfig, LlamaForCausalLM

from dsrun.errors import UsageError
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.model.build_model import build
from dsrun.train.model.config_values import with_values
from dsrun.train.model.load import load_config, set_languages


@pytest.fixture
def folder(tmp_path):
    config = LlamaConfig(vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize("from_scratch", [False, True])
def test_unknown_attn_implementation_rejected(folder, from_scratch):
    """An attention kernel that the model does not have is named."""
    spec = TrainSpec(model=folder, from_scratch=from_scratch, attn_implementation="nosuch")
    with pytest.raises(UsageError, match=r"^--attn-implementation nosuch: .*cannot use it.*leave it out"):
        build(spec, load_config(spec), "causal-lm")


@pytest.mark.parametrize("from_scratch", [False, True])
def test_values_of_which_no_model_can_be_made_are_named(folder, from_scratch):
    """The config's class takes them; what fails is not the files."""
    spec = TrainSpec(model=folder, from_scratch=from_scratch, config_override=["hidden_act=nosuch"])
    config = with_values(load_config(spec), spec)
    with pytest.raises(UsageError, match=r"^--config-override hidden_act=nosuch: .*nosuch") as caught:
        build(spec, config, "causal-lm")
    assert "Hub" not in str(caught.value)


def test_known_attn_implementation_used(folder):
    spec = TrainSpec(model=folder, from_scratch=True, attn_implementation="eager")
    assert build(spec, load_config(spec), "causal-lm").config._attn_implementation == "eager"


def test_eager_falcon_adds_alibi_once(tmp_path):
    sizes = {"vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    FalconForCausalLM(FalconConfig(**sizes, alibi=True)).save_pretrained(tmp_path)
    specs = [TrainSpec(model=str(tmp_path), attn_implementation=kernel) for kernel in ("eager", "sdpa")]
    models = [build(spec, load_config(spec), "causal-lm").eval() for spec in specs]
    eager, sdpa = (model(torch.arange(16)[None]).logits for model in models)
    torch.testing.assert_close(eager, sdpa)


@pytest.mark.parametrize(("languages", "begins"), [(("ro_RO", "ro_RO"), 7), (("ro_RO", "de_DE"), None)])
def test_generated_texts_begin_in_the_one_language_of_all_sets(languages, begins):
    """A mixture into several languages leaves it to the model in which of them a text begins."""
    codes = {"ro_RO": 7, "de_DE": 8}
    tokenizer = SimpleNamespace(lang_code_to_id=codes, convert_tokens_to_ids=codes.get, unk_token_id=3)
    model = SimpleNamespace(
        generation_config=SimpleNamespace(forced_bos_token_id=None), config=SimpleNamespace(decoder_start_token_id=2)
    )
    sets = {f"s{k}": {"train_file": ["x"], "target_lang": language} for k, language in enumerate(languages)}
    set_languages(model, tokenizer, TrainSpec(mix={"sets": sets}))
    assert model.generation_config.forced_bos_token_id == begins
