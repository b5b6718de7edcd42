"""The probe finds out which models keep packed documents apart."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    SwitchTransformersConfig,
    T5Config,
)

from dsrun.train.packing import encoder_decoder
from dsrun.train.packing.measure import TOLERANCE
from dsrun.train.packing.probe import block_causal_mask, packed_inputs, probe

SMALL = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "n_embd": 32, "n_layer": 2, "n_head": 4, "d_model": 32,
    "n_layers": 2, "n_heads": 4, "n_positions": 128, "ffn_dim": 48, "attention_heads": 4, "num_layers": 2,
    "num_heads": 4, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

BY_POSITIONS = ["llama", "qwen3", "gpt2", "mistral", "gpt_neox", "phi3", "mixtral", "granite", "olmo2"]
BY_MASK = [("falcon", "sdpa"), ("opt", "eager"), ("mpt", "eager"), ("biogpt", "eager"), ("xglm", "eager")]
WINDOWED = ["gpt_oss", "afmoe"]
MIXING = ["bloom", "qwen3_next", "nemotron_h", "jamba", "recurrent_gemma", "rwkv"]


def small(kind, **options):
    """A random model of two layers."""
    config = AutoConfig.for_model(kind)
    known = config.to_dict() | config.attribute_map
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(
        type(config)(**{name: value for name, value in SMALL.items() if name in known}), **options
    )


@pytest.mark.parametrize("kind", [*BY_POSITIONS, "opt", "biogpt", "afmoe"])
def test_models_whose_attention_gets_the_borders_need_no_mask(kind):
    """Some of them leak by position ids, and one would lose its window to a mask."""
    verdict = probe(small(kind, attn_implementation="sdpa"))
    assert verdict.method == "documents"
    assert verdict.difference < TOLERANCE


@pytest.mark.parametrize("kind", [*BY_POSITIONS, "gemma2"])
def test_models_that_read_position_ids_pack(kind):
    verdict = probe(small(kind, attn_implementation="eager"))
    assert verdict.method == "position_ids"
    assert verdict.difference < TOLERANCE


@pytest.mark.parametrize("kind", ["llama4_text", "stablelm"])
def test_models_whose_attention_is_not_told_the_borders_pack_by_position_ids(kind):
    """Llama 4 looks within chunks, which only a mask brings to its layers; StableLM passes no arguments on."""
    assert probe(small(kind, attn_implementation="sdpa")).method == "position_ids"


@pytest.mark.parametrize(("kind", "attention"), BY_MASK)
def test_models_that_leak_by_position_ids_take_a_block_mask(kind, attention):
    verdict = probe(small(kind, attn_implementation=attention))
    assert verdict.method == ("mask" if attention == "sdpa" else "additive_mask")
    assert verdict.difference < TOLERANCE


@pytest.mark.parametrize("kind", MIXING)
def test_models_that_mix_documents_are_not_packed(kind):
    """Convolutions and recurrent layers carry one document into the next; bloom's ALiBi is made from a 2-D mask."""
    verdict = probe(small(kind))
    assert verdict.method is None
    assert "mixes packed documents" in verdict.reason


@pytest.mark.parametrize("kind", WINDOWED)
def test_block_mask_does_not_replace_a_sliding_window(kind):
    """Documents shorter than the window, as the probe's, would be kept apart; longer ones would lose the window."""
    verdict = probe(small(kind, attn_implementation="eager"))
    assert verdict.method is None
    assert "sliding window" in verdict.reason


def test_encoder_decoder_that_cannot_be_installed_is_not_packed():
    config = SwitchTransformersConfig(
        vocab_size=48, d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2, decoder_start_token_id=0
    )
    verdict = probe(AutoModelForSeq2SeqLM.from_config(config), pairs=True)
    assert verdict.method is None
    assert "an expert takes a limited number of tokens" in verdict.reason


def test_probe_leaves_the_model_as_it_was():
    model = small("llama").train()
    before = torch.get_rng_state()
    probe(model)
    assert model.training
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["jamba", "bloom"])
def test_leak_below_the_rounding_of_16_bits_is_found(kind, dtype):
    """Less than a hundredth of a logit: what the bound for rounding would let through."""
    verdict = probe(small(kind).to(dtype))
    assert verdict.method is None
    assert "neighbours change logits by 0." in verdict.reason


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["llama", "stablelm", "mixtral"])
def test_model_of_16_bits_without_a_leak_packs(kind, dtype):
    """Of experts, too, whose kernels are given the tokens of all rows."""
    assert probe(small(kind, attn_implementation="sdpa").to(dtype)).method is not None


class TensorCores(TorchDispatchMode):
    """Products of matrices as GPUs make them under TF32: of factors with 10 bits behind the point, summed in fp32."""

    PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.addmm, torch.ops.aten.baddbmm)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in self.PRODUCTS:
            args = [*args[:-2], *(self.rounded(each) for each in args[-2:])]
        return func(*args, **(kwargs or {}))

    @staticmethod
    def rounded(factor):
        if factor.dtype != torch.float32:
            return factor
        return ((factor.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def small_t5(dtype=torch.float32):
    torch.manual_seed(0)
    config = T5Config(vocab_size=97, d_model=64, d_kv=16, d_ff=128, num_layers=6, num_heads=4, decoder_start_token_id=0)
    return AutoModelForSeq2SeqLM.from_config(config).to(dtype)


def test_fp32_under_tf32_is_judged_by_its_own_bound():
    """On an H100 the demo T5 differed by 0.023% and was not packed."""
    exact = probe(small_t5(), pairs=True)
    with TensorCores():
        rounded = probe(small_t5(), pairs=True)
    assert exact.method == rounded.method == "pairs"
    assert exact.difference < TOLERANCE < rounded.difference


@pytest.mark.parametrize("kind", ["jamba", "bloom"])
def test_leak_under_tf32_is_found(kind):
    with TensorCores():
        assert probe(small(kind)).method is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_encoder_decoder_that_sees_other_documents_is_not_packed(monkeypatch, dtype):
    same = encoder_decoder.same_document

    def leaking(queries, keys):
        # The decoder's attention to its source looks one token too far.
        return same(queries, keys) if queries is keys else same(queries, keys).roll(1, -1) | same(queries, keys)

    monkeypatch.setattr(encoder_decoder, "same_document", leaking)
    verdict = probe(small_t5(dtype), pairs=True)
    assert verdict.method is None
    assert "mixes packed documents" in verdict.reason


def raising(error):
    model = small("llama", attn_implementation="sdpa")
    model.model.layers[1].register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(error))
    return model


def test_model_that_raises_is_not_called_one_that_mixes_documents():
    verdict = probe(raising(RuntimeError("size of tensor a (0)")))
    assert verdict.method is None
    assert "mixes" not in verdict.reason
    assert "position ids: size of tensor a (0)" in verdict.reason


def test_probe_without_memory_means_no_packing():
    verdict = probe(raising(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")))
    assert verdict.method is None
    assert "ran out of GPU memory (CUDA out of memory. Tried to allocate 2 GiB)" in verdict.reason


def test_logits_that_are_no_numbers_are_not_taken_for_equal():
    model = small("llama", attn_implementation="sdpa")
    model.lm_head.weight.data[0] = float("nan")
    verdict = probe(model)
    assert verdict.method is None
    assert "the logits are not finite" in verdict.reason


ROWS = [[torch.tensor([5, 6, 7]), torch.tensor([8, 9])], [torch.tensor([3, 4])]]


def test_positions_start_again_with_each_document_and_with_padding():
    inputs = packed_inputs(ROWS, "position_ids", pad_id=0)
    assert inputs["input_ids"].tolist() == [[5, 6, 7, 8, 9], [3, 4, 0, 0, 0]]
    assert inputs["position_ids"].tolist() == [[0, 1, 2, 0, 1], [0, 1, 0, 1, 2]]
    # Transformers makes no block mask from position ids where there is an attention mask too.
    assert set(inputs) == {"input_ids", "position_ids"}


@pytest.mark.parametrize("method", ["flat", "documents"])
def test_attention_gets_one_row_and_its_borders(method):
    inputs = packed_inputs(ROWS, method, pad_id=0)
    assert inputs["input_ids"].tolist() == [[5, 6, 7, 8, 9, 3, 4]]
    assert inputs["cu_seq_lens_q"].tolist() == [0, 3, 5, 7]
    assert inputs["cu_seq_lens_q"].dtype == torch.int32
    assert inputs["max_length_k"] == 3


def test_block_mask_shows_earlier_tokens_of_the_same_document():
    mask = block_causal_mask(torch.tensor([[0, 0, 1]]))
    assert mask.tolist() == [[[[True, False, False], [True, True, False], [False, False, True]]]]
