"""Every parameter tensor that dsrun derives from a config, against those that transformers really builds."""

from __future__ import annotations

import json

import pytest

from dsrun.errors import MissingError, UsageError
from dsrun.zero.memory.model.count import check_length, describe

# (config class, settings that are odd on purpose); the class's own defaults for the rest
CASES = [
    (
        "T5Config",
        {"d_model": 72, "d_kv": 10, "d_ff": 130, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 5},
    ),
    ("T5Config", {"feed_forward_proj": "gated-gelu", "vocab_size": 333}),
    ("MT5Config", {"num_layers": 2}),
    ("UMT5Config", {"num_layers": 2, "num_decoder_layers": 3}),
    ("BartConfig", {"encoder_layers": 2, "encoder_ffn_dim": 77}),
    ("BartConfig", {"decoder_layers": 1, "tie_word_embeddings": False}),
    ("MBartConfig", {"encoder_layers": 1, "d_model": 64}),
    ("MarianConfig", {"encoder_layers": 1}),
    ("MarianConfig", {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 58777}),
    ("PegasusConfig", {"decoder_layers": 2}),
    ("M2M100Config", {"encoder_layers": 2}),
    (
        "LlamaConfig",
        {"num_hidden_layers": 2, "hidden_size": 96, "num_attention_heads": 6, "intermediate_size": 101},
    ),
    (
        "LlamaConfig",
        {"num_hidden_layers": 1, "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 8},
    ),
    ("LlamaConfig", {"num_hidden_layers": 1, "tie_word_embeddings": True, "head_dim": 48}),
    ("MistralConfig", {"num_hidden_layers": 2}),
    ("Qwen2Config", {"num_hidden_layers": 2, "num_key_value_heads": 4}),
    ("Qwen3Config", {"num_hidden_layers": 2, "tie_word_embeddings": True}),
    ("GemmaConfig", {"num_hidden_layers": 2}),
    ("Gemma2Config", {"num_hidden_layers": 2}),
    ("Gemma3TextConfig", {"num_hidden_layers": 2}),
    ("Olmo2Config", {"num_hidden_layers": 2, "num_key_value_heads": 8}),
    ("Phi3Config", {"num_hidden_layers": 2, "num_key_value_heads": 8}),
    ("MixtralConfig", {"num_hidden_layers": 2, "num_local_experts": 3}),
    ("Qwen3MoeConfig", {"num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3]}),
    ("GPT2Config", {"n_inner": 100, "tie_word_embeddings": False}),
    ("GPT2Config", {"n_layer": 3}),
    ("GPTNeoXConfig", {"num_hidden_layers": 2}),
    ("GPTNeoXConfig", {"num_hidden_layers": 1, "attention_bias": False, "tie_word_embeddings": True}),
    ("GlmConfig", {"num_hidden_layers": 2}),
    ("GlmConfig", {"num_hidden_layers": 1, "attention_bias": False, "num_key_value_heads": 4}),
    ("Glm4Config", {"num_hidden_layers": 2}),
    ("GptOssConfig", {"num_hidden_layers": 2, "num_local_experts": 5}),
    ("DeepseekV3Config", {"num_hidden_layers": 3, "first_k_dense_replace": 1, "n_shared_experts": 2}),
    ("DeepseekV3Config", {"num_hidden_layers": 1, "q_lora_rank": None, "attention_bias": True, "v_head_dim": 96}),
    ("DeepseekV3Config", {"num_hidden_layers": 2, "first_k_dense_replace": 0, "n_routed_experts": 16}),
    ("Glm4MoeConfig", {"num_hidden_layers": 3, "use_qk_norm": True, "attention_bias": True, "n_routed_experts": 5}),
    ("Glm4MoeConfig", {"num_hidden_layers": 2, "n_routed_experts": 4, "n_shared_experts": 2}),
    ("Qwen3NextConfig", {"num_hidden_layers": 5, "num_experts": 4, "mlp_only_layers": [1]}),
    ("Qwen3NextConfig", {"num_hidden_layers": 2, "num_experts": 0, "layer_types": ["full_attention"] * 2}),
    ("Mamba2Config", {"num_hidden_layers": 2, "hidden_size": 256, "num_heads": 8}),
    ("Mamba2Config", {"num_hidden_layers": 1, "use_bias": True, "use_conv_bias": False, "tie_word_embeddings": True}),
    ("NemotronHConfig", {"hidden_size": 512}),
    (
        "NemotronHConfig",
        {"hybrid_override_pattern": "M*-E", "hidden_size": 256, "moe_latent_size": 64, "mlp_bias": True},
    ),
    ("NllbMoeConfig", {"encoder_layers": 4, "decoder_layers": 4, "num_experts": 3, "router_bias": True}),
    ("NllbMoeConfig", {"encoder_layers": 2, "decoder_layers": 2, "num_experts": 2, "decoder_sparse_step": 2}),
    ("WhisperConfig", {"encoder_layers": 2}),
    ("Qwen2VLConfig", {"text_config": {"num_hidden_layers": 2}, "vision_config": {"depth": 2}}),
    (
        "Qwen2VLConfig",
        {"hidden_size": 96, "num_attention_heads": 4, "num_hidden_layers": 1, "vision_config": {"hidden_size": 96}},
    ),
    ("WhisperConfig", {"num_mel_bins": 128, "decoder_layers": 1, "tie_word_embeddings": True}),
    ("Gemma3Config", {"text_config": {"num_hidden_layers": 2}, "vision_config": {"num_hidden_layers": 2}}),
    (
        "Gemma3Config",
        {
            "text_config": {"num_hidden_layers": 1},
            "vision_config": {
                "vision_use_head": False,
                "num_hidden_layers": 1,
                "image_size": 896,
                "patch_size": 14,
                "hidden_size": 1152,
            },
        },
    ),
    ("GPTJConfig", {"n_layer": 2, "n_inner": 99}),
    ("GPTJConfig", {"n_layer": 1, "tie_word_embeddings": True}),
    ("BloomConfig", {"n_layer": 2, "hidden_size": 96}),
    ("BloomConfig", {"n_layer": 1, "tie_word_embeddings": False}),
    ("FalconConfig", {"num_hidden_layers": 2}),
    (
        "FalconConfig",
        {
            "num_hidden_layers": 2,
            "new_decoder_architecture": True,
            "num_kv_heads": 8,
            "bias": True,
            "num_attention_heads": 64,
            "hidden_size": 4096,
        },
    ),
    ("FalconConfig", {"num_hidden_layers": 1, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}),
    ("FalconConfig", {"num_hidden_layers": 1, "parallel_attn": False, "multi_query": False, "ffn_hidden_size": 100}),
    ("OPTConfig", {"num_hidden_layers": 2, "word_embed_proj_dim": 100}),
    ("OPTConfig", {"num_hidden_layers": 1, "enable_bias": False, "do_layer_norm_before": False}),
]


@pytest.mark.parametrize(("kind", "settings"), CASES, ids=lambda each: each if isinstance(each, str) else "")
def test_tensor_shapes_match_transformers(kind, settings):
    import torch
    import transformers

    from dsrun.train.model.zero_auto import tensors

    config = getattr(transformers, kind)(**settings)
    names = (
        "AutoModelForSpeechSeq2Seq",
        "AutoModelForSeq2SeqLM",
        "AutoModelForCausalLM",
        "AutoModelForImageTextToText",
    )
    autos = [getattr(transformers, name) for name in names[0 if config.is_encoder_decoder else 2 :]]
    with torch.device("meta"):
        model = next(each for each in autos if type(config) in each._model_mapping).from_config(config)
    real = [(tuple(shape), kind) for _, shape, kind in tensors(model)]
    described = describe(json.loads(config.to_json_string()), from_scratch=True)
    # In the model's own order, which decides how ZeRO cuts them.
    assert [(weight.shape, weight.kind) for weight in described.tensors()] == real
    assert described.parameters == sum(p.numel() for p in model.parameters())


def test_published_t5_has_untied_output_embedding(tmp_path):
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    settings = {"d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 1, "num_heads": 2, "vocab_size": 50}
    model = T5ForConditionalGeneration(T5Config(**settings, tie_word_embeddings=False))
    # Such a checkpoint holds two different tables.
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone() + 1)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"tie_word_embeddings": False}
    loaded = T5ForConditionalGeneration.from_pretrained(tmp_path)
    assert describe(config).parameters == sum(p.numel() for p in loaded.parameters())
    assert describe(config, from_scratch=True).parameters == describe(config).parameters - 50 * 16


def test_model_family_defaults():
    assert describe({"model_type": "t5"}).hidden == 512
    assert describe({"model_type": "mt5"}).decoder.queries == 6 * 64


def test_unknown_model_family_suggests_nearest():
    with pytest.raises(MissingError, match=r"'lama'.*did you mean llama"):
        describe({"model_type": "lama"})


@pytest.mark.parametrize("value", [0, -4, "4096", 10**12, 1.5, True])
def test_invalid_hidden_size_is_refused(value):
    config = {
        "model_type": "llama", "hidden_size": value, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 1, "vocab_size": 8,
    }  # fmt: skip
    with pytest.raises(UsageError, match="hidden_size"):
        describe(config)


def test_missing_vocab_size_is_named():
    with pytest.raises(UsageError, match="vocab_size"):
        describe({"model_type": "llama", "hidden_size": 8})


def test_max_length_limited_by_position_embeddings():
    gpt2 = describe({"model_type": "gpt2"})
    check_length(gpt2, "--max-length", 1024)
    with pytest.raises(UsageError, match="positions for 1,024"):
        check_length(gpt2, "--max-length", 1025)
    check_length(describe({"model_type": "t5"}), "--max-length", 10**6)
