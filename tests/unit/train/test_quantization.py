"""Quantised base models under LoRA: the settings, what is refused, and what is counted."""

from __future__ import annotations

from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from dsrun.errors import MissingError, UsageError
from dsrun.launch.memory_fallback import MemoryFallback
from dsrun.recipe import trackers as packages
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.recipe.resolve import resolve
from dsrun.train.checkpoint.verify import lora_identity
from dsrun.train.decide_plan import with_fallback
from dsrun.train.loop.nan import _weights_are_finite
from dsrun.train.model.adapters import add_lora
from dsrun.train.model.load import parameter_count
from dsrun.train.model.quantization import (
    check_fp8,
    check_quantization,
    check_quantized,
    convert_to_fp8,
    keep_codes,
    quantization_config,
)

SHAPE = {
    "vocab_size": 16, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1,
    "num_key_value_heads": 1,
}  # fmt: skip
CONFIG = LlamaConfig(**SHAPE)
SPEC = TrainSpec(model="m", lora=4, quantization="4bit")


def loaded(tmp_path, bits, model=None, precision="bf16"):
    (model or LlamaForCausalLM(CONFIG)).save_pretrained(tmp_path)
    settings = quantization_config(TrainSpec(quantization=bits), precision)
    return AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=settings)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)]
)
def test_settings_of_4_bit_weights(precision, dtype):
    settings = quantization_config(SPEC, precision)
    assert (settings.bnb_4bit_quant_type, settings.bnb_4bit_use_double_quant) == ("nf4", True)
    # What ZeRO-3 shards has one dtype, and what DeepSpeed casts must not be cast.
    assert settings.bnb_4bit_compute_dtype == settings.bnb_4bit_quant_storage == dtype


@pytest.mark.parametrize("bits", ["4bit", "8bit"])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_quantized_weights_are_counted_one_by_one(bits, precision, tmp_path):
    model = loaded(tmp_path, bits, precision=precision)
    whole = LlamaForCausalLM(CONFIG)
    assert parameter_count(model) == parameter_count(whole)
    linear = sum(each.weight.numel() for name, each in whole.named_modules() if name.endswith("_proj"))
    expected = f"{linear / parameter_count(whole):.0%} of the weights are held in {bits[0]} bits"
    assert check_quantized(model, TrainSpec(quantization=bits)) == expected


def test_module_that_is_quantized_cannot_be_trained_whole(tmp_path):
    model = loaded(tmp_path, "4bit")
    with pytest.raises(UsageError, match=r"modules-to-save up_proj: model.layers.0.mlp.up_proj is quantised"):
        check_quantized(model, TrainSpec(quantization="4bit", lora_modules_to_save=["up_proj"]))
    check_quantized(model, TrainSpec(quantization="4bit", lora_modules_to_save=["lm_head"]))


def test_experts_that_stay_whole_rejected(tmp_path):
    model = loaded(tmp_path, "4bit", MixtralForCausalLM(MixtralConfig(**SHAPE, num_local_experts=2)))
    with pytest.raises(UsageError, match="the experts of mixtral models are no linear layers"):
        check_quantized(model, SPEC)


def test_codes_are_not_taken_for_weights_that_are_nan(tmp_path):
    """4-bit codes stored as bf16 may be any bit pattern."""
    model = loaded(tmp_path, "4bit")
    model.model.layers[0].mlp.up_proj.weight.data.fill_(torch.nan)
    assert _weights_are_finite(model)
    model.model.norm.weight.data.fill_(torch.nan)
    assert not _weights_are_finite(model)


@pytest.mark.parametrize(
    ("spec", "config", "deepspeed", "message"),
    [
        (
            TrainSpec(model="demo-llama", quantization="4bit", from_scratch=True),
            CONFIG,
            None,
            "demo-llama is initialised",
        ),
        (
            SPEC,
            SimpleNamespace(quantization_config={"quant_method": "awq"}),
            None,
            "weights of m are quantised already",
        ),
        (TrainSpec(quantization="8bit"), CONFIG, {"zero_optimization": {"stage": 3}}, "ZeRO-3 cannot shard integers"),
        (
            SPEC,
            CONFIG,
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}},
            "offloaded parameters would leave their scales",
        ),
    ],
)
def test_what_quantized_weights_do_not_go_with(spec, config, deepspeed, message):
    with pytest.raises(UsageError, match=message):
        check_quantization(spec, config, deepspeed)


def test_quantized_base_allowed():
    offloaded = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}
    for deepspeed in (None, {"zero_optimization": {"stage": 2}}, offloaded):
        check_quantization(SPEC, CONFIG, deepspeed)


def test_memory_fallback_leaves_quantized_weights_on_gpu(tmp_path):
    recipe = resolve(["--model", "m", "--lora", "4", "--quantization", "4bit", "--zero", "3"], tmp_path)
    assert with_fallback(recipe, MemoryFallback(offload="cpu")).spec.offload == "optimizer"


def test_checkpoint_of_quantized_base_is_another():
    assert lora_identity(SPEC) == "rank 4, alpha 8, on every linear layer, 4bit base"


@pytest.mark.parametrize(
    ("capability", "precision", "stage", "message"),
    [
        (None, "bf16", 2, "FP8 needs a GPU of compute capability 8.9 .*, and there is no GPU here"),
        ((8, 0), "bf16", 2, "and this GPU's is 8.0"),
        ((9, 0), "fp32", 2, "this run trains in fp32"),
        ((9, 0), "bf16", 3, "ZeRO-3 would hold the whole model"),
    ],
)
def test_what_fp8_does_not_go_with(capability, precision, stage, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    device = "cuda" if capability else "cpu"
    with pytest.raises(UsageError, match=message):
        check_fp8(TrainSpec(fp8=True), precision, {"zero_optimization": {"stage": stage}}, device)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 9))
    check_fp8(TrainSpec(fp8=True), "bf16", {"zero_optimization": {"stage": 2}}, "cuda")


def test_linear_layers_in_fp8_train_like_those_in_bf16():
    """As emulated on the CPU, also below adapters: other products, and the weights under their old names."""
    torch.manual_seed(0)
    plain = LlamaForCausalLM(CONFIG).bfloat16()
    model = deepcopy(plain)
    # Not the first (q_proj) and not the last (lm_head).
    assert convert_to_fp8(model, emulate=True) == "6 of 8 linear layers multiply in FP8"
    assert model.state_dict().keys() == plain.state_dict().keys()
    ids = torch.arange(15)[None]
    for each in (plain, model):
        each(input_ids=ids, labels=ids).loss.backward()
    gradients = [each.model.layers[0].mlp.up_proj.weight.grad.float() for each in (plain, model)]
    assert not torch.equal(*gradients)
    assert torch.cosine_similarity(*(each.flatten() for each in gradients), dim=0) > 0.98
    adapted = add_lora(model, TrainSpec(lora=4), "causal-lm")
    adapted(input_ids=ids, labels=ids).loss.backward()
    trained = [each for each in adapted.parameters() if each.requires_grad]
    assert len(trained) == 14
    assert all(each.grad is not None for each in trained)


def test_model_without_layers_for_fp8_rejected():
    small = LlamaConfig(**(SHAPE | {"hidden_size": 8, "intermediate_size": 8}))
    with pytest.raises(UsageError, match="no linear layer of this model has sizes that are multiples of 16"):
        convert_to_fp8(LlamaForCausalLM(small), emulate=True)


@pytest.mark.parametrize("flags", [["--lora", "4", "--quantization", "4bit"], ["--fp8", "true"]])
def test_missing_package_of_a_flag_is_named(flags, tmp_path, monkeypatch):
    recipe = resolve(["--model", "m", *flags], tmp_path)
    monkeypatch.setattr(packages, "OF_FLAGS", {flags[-2].removeprefix("--"): "no_such_package"})
    with pytest.raises(MissingError, match=r"needs the package no_such_package.*pip install no_such_package"):
        packages.check_packages(recipe)


def test_evaluation_leaves_codes_as_they_are(tmp_path):
    """As on a processor with AVX512-BF16: there bitsandbytes rearranges the codes for inference, and fails at once on
    layers with fewer inputs than a block has codes."""
    model = loaded(tmp_path, "4bit")
    layers = [module for module in model.modules() if hasattr(module, "support_avx512bf16_for_cpu")]
    for layer in layers:
        layer.support_avx512bf16_for_cpu = True
    keep_codes(model)
    before = stored(model)
    with torch.no_grad():
        model.eval()(torch.arange(8)[None])
    assert len(layers) == 7
    assert stored(model) == before


def stored(model):
    """The bytes of all tensors: codes read as bf16 may be NaN, which equals nothing."""
    return {name: value.contiguous().view(torch.uint8).tolist() for name, value in model.state_dict().items()}
