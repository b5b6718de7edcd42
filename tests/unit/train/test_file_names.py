"""What is saved of a model has the names and shapes that the files had which it was loaded from."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, MixtralConfig, MixtralForCausalLM

from dsrun.models.headers import read_header
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.checkpoint.weight_files import ExportWeight, as_in_files
from dsrun.train.export.verify import empty_model
from dsrun.train.model.build_model import build
from dsrun.train.model.load import auto_class, decide_task, load_config
from tests.unit.zero.memory.tiny_models import MODELS, saved

pytestmark = pytest.mark.train

SINGLE = "model.safetensors"


def loaded(folder):
    spec = TrainSpec(model=str(folder), weights_dtype="auto")
    config = load_config(spec)
    return build(spec, config, decide_task(config, "auto", spec.model))


def by_module(model):
    """Its weights under the names that ZeRO's shards have, each once."""
    return [
        ExportWeight(name, each.dtype, tuple(each.shape), each.detach) for name, each in model.named_parameters()
    ] + [
        ExportWeight(n, b.dtype, tuple(b.shape), b.detach) for n, b in model.named_buffers() if n in model.state_dict()
    ]


@pytest.mark.parametrize("family", [name for name in MODELS if name != "gemma3"])
def test_names_and_shapes_of_a_family_are_kept(family, tmp_path):
    """By a save, by that of a merged model, and where weights are put together from shards."""
    kind, settings = MODELS[family]
    saved(tmp_path / "base", kind, settings)
    base = read_header(tmp_path / "base" / SINGLE)
    model = loaded(tmp_path / "base")
    model.save_pretrained(tmp_path / "again")
    assert read_header(tmp_path / "again" / SINGLE) == base
    fresh = auto_class(model.config).from_config(model.config)
    fresh._weight_conversions = model._weight_conversions
    if family == "t5-gated":
        # Made tied, loaded untied.
        fresh.lm_head.weight = torch.nn.Parameter(fresh.lm_head.weight.detach().clone())
    fresh.save_pretrained(tmp_path / "fresh")
    assert read_header(tmp_path / "fresh" / SINGLE) == base
    written = as_in_files(by_module(model), empty_model(AutoConfig.from_pretrained(tmp_path / "base")))
    originals = load_file(tmp_path / "base" / SINGLE)
    assert {each.name: each.shape for each in written} == {name: shape for name, (_, shape) in base.items()}
    assert [each.name for each in written if not torch.equal(each.read(), originals[each.name])] == []


def test_experts_that_the_files_hold_together_stay_so(tmp_path):
    config = MixtralConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, num_local_experts=3,
    )  # fmt: skip
    model = MixtralForCausalLM(config)
    model._weight_conversions = []
    model.save_pretrained(tmp_path)
    names = set(read_header(tmp_path / SINGLE))
    assert names == set(model.state_dict())
    tuned = loaded(tmp_path)
    tuned.save_pretrained(tmp_path / "again")
    assert set(read_header(tmp_path / "again" / SINGLE)) == names
    assert {each.name for each in as_in_files(by_module(tuned), empty_model(config), names)} == names
    apart = as_in_files(by_module(tuned), empty_model(config))
    assert len(apart) > len(names)
