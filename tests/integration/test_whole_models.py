"""Checkpoints of images and text trained as text, and of experts: from `dsrun train` to `dsrun export`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM

from dsrun.models.headers import read_header
from dsrun.train.export import export_model
from dsrun.train.export.export_model import ExportRequest
from dsrun.train.export.final import class_of
from tests.integration.conftest import SHORT, make_tokenizer, many_runs
from tests.unit.train.test_whole_models import TEXT, make_whole, weights

pytestmark = pytest.mark.train

FILE = "model.safetensors"
RUNS = {
    "gemma3-z3": ("gemma3", ["--zero", "3", "--async-save"]),
    "gemma3-text": ("gemma3", ["--zero", "2", "--text-only"]),
    "gemma3-lora": ("gemma3", ["--zero", "3", "--lora", "2", "--dora", "--rope-scaling", "linear:2"]),
    "mistral3-z2": ("mistral3", ["--zero", "2"]),
    "mixtral-z3": ("mixtral", ["--zero", "3", "--async-save"]),
    "mixtral-lora": ("mixtral", ["--zero", "2", "--lora", "2"]),
}


@pytest.fixture(scope="module")
def runs(pairs, tmp_path_factory):
    """Finished runs of two steps on two ranks, beside the models that they began with."""
    root = tmp_path_factory.mktemp("whole")
    for kind in ("gemma3", "mistral3"):
        make_whole(root / kind, kind)
    MixtralForCausalLM(MixtralConfig(**TEXT, num_local_experts=4)).save_pretrained(root / "mixtral")
    for kind in ("gemma3", "mistral3", "mixtral"):
        make_tokenizer().save_pretrained(root / kind)
    shape = ["--train-file", pairs["train"], *SHORT, "--max-steps", "2", "--save-steps", "1"]
    many_runs(
        [
            ["--model", str(root / kind), *shape, *flags, "--output", str(root / name)]
            for name, (kind, flags) in RUNS.items()
        ],
        ranks=2,
        scratch=root,
    )
    return root


def export(source: Path, to: Path, **more):
    options = {"dtype": None, "merge_lora": False, "limit": 10**9, "force": False} | more
    export_model.export(ExportRequest(source=source, to=to, **options), notify=lambda _: None)


@pytest.mark.parametrize("name", [name for name in RUNS if name != "gemma3-text"])
def test_final_model_has_the_names_and_the_class_of_its_base(name, runs):
    base, model = runs / RUNS[name][0], runs / name / "model"
    assert read_header(model / FILE).keys() == read_header(base / FILE).keys()
    assert class_of(model) is class_of(base)
    _, info = class_of(model).from_pretrained(model, output_loading_info=True)
    assert not any(info.values())
    others = [each for each in weights(base) if "vision" in each or "projector" in each]
    assert bool(others) is (RUNS[name][0] != "mixtral")
    assert all(torch.equal(weights(base)[each], weights(model)[each]) for each in others)


def test_text_model_alone_is_asked_for_and_recorded(runs):
    config = json.loads((runs / "gemma3-text" / "model" / "config.json").read_text())
    assert config["architectures"] == ["Gemma3ForCausalLM"]
    assert json.loads((runs / "gemma3-z3" / "run.json").read_text())["part_of"] == "Gemma3ForConditionalGeneration"


@pytest.mark.parametrize("name", ["gemma3-z3", "mistral3-z2", "mixtral-z3"])
def test_exported_checkpoint_equals_the_final_model(name, runs, tmp_path):
    export(runs / name / "checkpoint-2", tmp_path / "out", base=runs / RUNS[name][0])
    final, exported = weights(runs / name / "model"), weights(tmp_path / "out")
    assert exported.keys() == final.keys()
    assert [each for each in final if not torch.equal(exported[each], final[each])] == []
    export(tmp_path / "out", tmp_path / "half", dtype="bf16")
    assert read_header(tmp_path / "half" / FILE).keys() == final.keys()


def test_merged_adapter_is_put_back(runs, tmp_path):
    adapter = runs / "gemma3-lora" / "adapter"
    export(adapter, tmp_path / "adapter")
    export(adapter, tmp_path / "whole", merge_lora=True)
    export(adapter, tmp_path / "text", merge_lora=True, text_only=True)
    model = runs / "gemma3-lora" / "model"
    final, merged = weights(model), weights(tmp_path / "whole")
    assert merged.keys() == final.keys()
    assert all(torch.allclose(merged[each], final[each], atol=1e-6) for each in final)
    assert class_of(tmp_path / "text").__name__ == "Gemma3ForCausalLM"
    # Values that were set in the config are in each.
    configs = [
        json.loads((each / "config.json").read_text()) for each in (model, *(tmp_path / n for n in ("whole", "text")))
    ]
    ropes = [config.get("text_config", config)["rope_parameters"] for config in configs]
    assert ropes[0]["full_attention"]["factor"] == 2.0
    assert ropes[1:] == ropes[:1] * 2


def test_checkpoint_of_dora_is_exported(runs, tmp_path):
    export(runs / "gemma3-lora" / "checkpoint-2", tmp_path / "adapter", dtype="fp32")
    exported, final = weights(tmp_path / "adapter"), weights(runs / "gemma3-lora" / "adapter")
    assert exported.keys() == final.keys()
    assert any("magnitude" in name for name in exported)
