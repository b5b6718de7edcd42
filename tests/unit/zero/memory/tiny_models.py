"""Tiny models of many families, as transformers saves them, and what of an architecture is compared."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import fields

DECODER = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 160,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 48, "pad_token_id": 0,
}  # fmt: skip
BART = {
    "vocab_size": 160, "d_model": 64, "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 80, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 48,
    "pad_token_id": 0, "decoder_start_token_id": 0,
}  # fmt: skip
T5 = {
    "vocab_size": 160,
    "d_model": 64,
    "d_kv": 8,
    "d_ff": 96,
    "num_layers": 2,
    "num_decoder_layers": 1,
    "num_heads": 4,
}
GPT2 = {"vocab_size": 160, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 48}
FALCON = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 160}
LATENT = {
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "num_key_value_heads": 4, "n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "num_hidden_layers": 3, "moe_intermediate_size": 32, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
}  # fmt: skip
GEMMA3 = {
    "text_config": DECODER | {"hidden_size": 64}, "mm_tokens_per_image": 4,
    "vision_config": {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
        "patch_size": 7,
    },
}  # fmt: skip
EXPERTS = {"num_experts": 4, "moe_intermediate_size": 48, "num_experts_per_tok": 2}

MODELS = {
    "t5": ("T5", T5),
    "t5-gated": ("T5", T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "mt5": ("MT5", T5),
    "umt5": ("UMT5", T5),
    "bart": ("Bart", BART),
    "bart-untied": ("Bart", BART | {"tie_word_embeddings": False}),
    "mbart": ("MBart", BART),
    "marian": ("Marian", BART),
    "pegasus": ("Pegasus", BART),
    "m2m_100": ("M2M100", BART),
    "llama": ("Llama", DECODER),
    "llama-tied": ("Llama", DECODER | {"tie_word_embeddings": True, "attention_bias": True}),
    "mistral": ("Mistral", DECODER),
    "qwen2": ("Qwen2", DECODER),
    "qwen3": ("Qwen3", DECODER),
    "gemma": ("Gemma", DECODER),
    "gemma2": ("Gemma2", DECODER),
    "gemma3_text": ("Gemma3Text", DECODER),
    "gemma3": ("Gemma3", GEMMA3),
    "olmo2": ("Olmo2", DECODER),
    "phi3": ("Phi3", DECODER),
    "glm": ("Glm", DECODER),
    "glm4": ("Glm4", DECODER),
    "mixtral": ("Mixtral", DECODER | {"num_local_experts": 4}),
    "qwen3_moe": ("Qwen3Moe", DECODER | EXPERTS | {"mlp_only_layers": [0]}),
    "gpt_oss": ("GptOss", DECODER | {"num_local_experts": 4}),
    "deepseek_v3": ("DeepseekV3", DECODER | LATENT),
    "gpt2": ("GPT2", GPT2),
    "gpt2-untied": ("GPT2", GPT2 | {"tie_word_embeddings": False, "n_layer": 11}),
    "gpt_neox": ("GPTNeoX", DECODER),
    "gptj": ("GPTJ", GPT2 | {"rotary_dim": 8}),
    "opt": ("OPT", DECODER | {"ffn_dim": 96, "word_embed_proj_dim": 32}),
    "bloom": ("Bloom", {"vocab_size": 160, "hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "falcon": ("Falcon", FALCON),
    "falcon-new": ("Falcon", FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    # Families that no shapes are written down of.
    "codegen": ("CodeGen", GPT2 | {"rotary_dim": 8}),
    "cohere": ("Cohere", DECODER),
    "starcoder2": ("Starcoder2", DECODER),
    "stablelm": ("StableLm", DECODER),
    "phi": ("Phi", DECODER),
    "granite": ("Granite", DECODER),
    "olmo": ("Olmo", DECODER),
    "mpt": ("Mpt", {"d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 160}),
    "qwen2_moe": ("Qwen2Moe", DECODER | EXPERTS | {"shared_expert_intermediate_size": 48}),
    "olmoe": ("Olmoe", DECODER | EXPERTS),
    "longt5": ("LongT5", T5),
    "blenderbot": ("Blenderbot", BART),
    "biogpt": ("BioGpt", DECODER),
    "llama-deep": ("Llama", DECODER | {"num_hidden_layers": 11}),
}


def saved(folder, kind, settings):
    """A tiny model with random weights as transformers saves it."""
    import torch
    import transformers

    config = getattr(transformers, f"{kind}Config")(**settings)
    autos = (
        transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM,
        transformers.AutoModelForSpeechSeq2Seq,
    )
    auto = next(each for each in autos if type(config) in each._model_mapping)
    model = auto.from_config(config)
    if kind == "T5" and "tie_word_embeddings" in settings:
        # transformers builds them tied. A published checkpoint holds two different tables, and is loaded so.
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone() + 1)
        model.save_pretrained(folder)
        written = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": False}
        (folder / "config.json").write_text(json.dumps(written))
        return auto.from_pretrained(folder)
    model.save_pretrained(folder)
    return model


def plain(architecture):
    """All that the memory formulas use, without names and order."""
    values = {each.name: getattr(architecture, each.name) for each in fields(architecture) if each.name != "blocks"}
    layers = Counter(
        tuple(sorted(Counter((w.shape, w.kind) for w in block.weights).items())) for block in architecture.blocks
    )
    return values | {"layers": layers, "largest": architecture.largest, "largest_layer": architecture.largest_layer}


def matrices(architecture):
    return [weight.shape for weight in architecture.tensors() if len(weight.shape) > 1]
