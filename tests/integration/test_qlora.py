"""QLoRA on real engines and bitsandbytes' CPU kernels: trained, resumed, and merged into the weights as they were."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from dsrun.runs.records import read_records
from dsrun.train.export.export_model import ExportRequest, export
from tests.integration.conftest import SHORT, many_runs

pytestmark = pytest.mark.train

SHAPE = ["--max-steps", "4", "--save-steps", "2", "--warmup-steps", "1", "--lora", "4", "--micro-batch-size", "4"]
FOUR, EIGHT = ["--quantization", "4bit"], ["--quantization", "8bit"]

# name: (model, flags)
WHOLE = {
    "z0": ("llama", ["--zero", "0", *FOUR]),
    "z2": ("llama", ["--zero", "2", *FOUR]),
    "z3": ("llama", ["--zero", "3", *FOUR]),
    "z3-bf16": ("llama", ["--zero", "3", *FOUR, "--bf16", "true"]),
    "8bit": ("llama", ["--zero", "1", *EIGHT]),
    "t5": ("t5", ["--zero", "2", *FOUR]),
    "not": ("llama", ["--zero", "2"]),
}
# name: (from, flags)
RESUMED = {"z2-again": ("z2", WHOLE["z2"][1]), "z3-again": ("z3", WHOLE["z3"][1]), "z2-to-z3": ("z2", WHOLE["z3"][1])}


@pytest.fixture(scope="module")
def runs(tiny, pairs, tmp_path_factory):
    root = tmp_path_factory.mktemp("qlora")

    def argv(name, model, flags, *more):
        data = ["--train-file", pairs["train"], "--validation-split-percentage", "0"]
        return ["--model", tiny[model], *data, *SHORT, *SHAPE, *flags, *more, "--output", str(root / name)]

    whole = [argv(name, model, flags) for name, (model, flags) in WHOLE.items()]
    resumed = [
        argv(name, "llama", flags, "--resume", str(root / start / "checkpoint-2"))
        for name, (start, flags) in RESUMED.items()
    ]
    many_runs([*whole, *resumed], ranks=2, scratch=root)
    return root


def losses(folder):
    return {row["step"]: row["loss"] for row in read_records(folder / "metrics.jsonl") if "loss" in row}


@pytest.mark.parametrize("name", ["z0", "z2", "z3"])
def test_quantized_base_gives_same_course_under_every_stage(runs, name):
    """The stages train alike, and not as on the weights themselves."""
    assert losses(runs / name) == pytest.approx(losses(runs / "z2"), rel=1e-4)
    assert losses(runs / name)[1] != losses(runs / "not")[1]


@pytest.mark.parametrize("name", RESUMED)
def test_qlora_resumes_where_it_was(runs, name):
    expected = {step: loss for step, loss in losses(runs / RESUMED[name][0]).items() if step > 2}
    assert losses(runs / name) == (expected if "again" in name else pytest.approx(expected, rel=1e-5))


@pytest.mark.parametrize("name", ["z0", "z2", "z3", "z3-bf16", "8bit", "t5"])
def test_qlora_merges_into_unquantized_weights(runs, name, tiny, tmp_path):
    """model/ is the model of --model plus the adapter, as `dsrun export --merge-lora` makes it of the checkpoint."""
    base = load_file(f"{tiny[WHOLE[name][0]]}/model.safetensors")
    merged = load_file(runs / name / "model" / "model.safetensors")
    dtype = torch.bfloat16 if "bf16" in name else torch.float32
    assert {value.dtype for value in merged.values()} == {dtype}
    assert merged.keys() == base.keys()
    adapted = {key for key, value in merged.items() if not torch.equal(value, base[key].to(dtype))}
    linear = {
        key for key, value in base.items() if value.ndim == 2 and not {"embed_tokens", "lm_head"} & {*key.split(".")}
    }
    assert adapted
    assert adapted <= linear
    export(
        ExportRequest(runs / name / "checkpoint-4", tmp_path / "out", None, True, 10**9, False), notify=lambda _: None
    )
    exported = load_file(tmp_path / "out" / "model.safetensors")
    rtol, atol = (1e-2, 1e-3) if "bf16" in name else (1e-5, 1e-6)
    for key, value in merged.items():
        torch.testing.assert_close(value.float(), exported[key].float(), rtol=rtol, atol=atol)
    assert "quantization_config" not in json.loads((runs / name / "model" / "config.json").read_text())
    auto = AutoModelForSeq2SeqLM if name == "t5" else AutoModelForCausalLM
    assert not getattr(auto.from_pretrained(runs / name / "model"), "is_quantized", False)


def test_qlora_saves_adapters_alone(runs, tiny):
    for folder in (runs / "z3" / "checkpoint-4", runs / "z3" / "adapter"):
        saved = load_file(folder / "adapter_model.safetensors")
        assert all(".lora_" in name for name in saved)
        assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == tiny["llama"]


def test_run_counts_weights_and_not_bytes(runs):
    """4-bit weights are two to a byte, under whatever dtype: the counts are those of the model."""
    names = ("z2", "z3", "8bit", "not")
    assert len({json.loads((runs / name / "run.json").read_text())["parameters"] for name in names}) == 1
