"""What the headers of saved weights say of a model, against its parameters in torch and the shapes of its family."""

from __future__ import annotations

import json
import struct
from collections import Counter
from dataclasses import fields

import pytest

from dsrun.models.folder import find
from dsrun.zero.memory.model.architecture import LayerWeight
from dsrun.zero.memory.model.count import FAMILIES, count, describe
from dsrun.zero.memory.model.stored import stored_architecture
from dsrun.zero.memory.model.widths import architecture_of

_DECODER = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 160,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 48, "pad_token_id": 0,
}  # fmt: skip
_BART = {
    "vocab_size": 160, "d_model": 64, "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 80, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 48,
    "pad_token_id": 0, "decoder_start_token_id": 0,
}  # fmt: skip
_T5 = {
    "vocab_size": 160,
    "d_model": 64,
    "d_kv": 8,
    "d_ff": 96,
    "num_layers": 2,
    "num_decoder_layers": 1,
    "num_heads": 4,
}
_GPT2 = {"vocab_size": 160, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 48}
_FALCON = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 160}
_LATENT = {
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "num_key_value_heads": 4, "n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "num_hidden_layers": 3, "moe_intermediate_size": 32, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
}  # fmt: skip
_GEMMA3 = {
    "text_config": _DECODER | {"hidden_size": 64}, "mm_tokens_per_image": 4,
    "vision_config": {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
        "patch_size": 7,
    },
}  # fmt: skip
_EXPERTS = {"num_experts": 4, "moe_intermediate_size": 48, "num_experts_per_tok": 2}

MODELS = {
    "t5": ("T5", _T5),
    "t5-gated": ("T5", _T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "mt5": ("MT5", _T5),
    "umt5": ("UMT5", _T5),
    "bart": ("Bart", _BART),
    "bart-untied": ("Bart", _BART | {"tie_word_embeddings": False}),
    "mbart": ("MBart", _BART),
    "marian": ("Marian", _BART),
    "pegasus": ("Pegasus", _BART),
    "m2m_100": ("M2M100", _BART),
    "llama": ("Llama", _DECODER),
    "llama-tied": ("Llama", _DECODER | {"tie_word_embeddings": True, "attention_bias": True}),
    "mistral": ("Mistral", _DECODER),
    "qwen2": ("Qwen2", _DECODER),
    "qwen3": ("Qwen3", _DECODER),
    "gemma": ("Gemma", _DECODER),
    "gemma2": ("Gemma2", _DECODER),
    "gemma3_text": ("Gemma3Text", _DECODER),
    "gemma3": ("Gemma3", _GEMMA3),
    "olmo2": ("Olmo2", _DECODER),
    "phi3": ("Phi3", _DECODER),
    "glm": ("Glm", _DECODER),
    "glm4": ("Glm4", _DECODER),
    "mixtral": ("Mixtral", _DECODER | {"num_local_experts": 4}),
    "qwen3_moe": ("Qwen3Moe", _DECODER | _EXPERTS | {"mlp_only_layers": [0]}),
    "gpt_oss": ("GptOss", _DECODER | {"num_local_experts": 4}),
    "deepseek_v3": ("DeepseekV3", _DECODER | _LATENT),
    "gpt2": ("GPT2", _GPT2),
    "gpt2-untied": ("GPT2", _GPT2 | {"tie_word_embeddings": False, "n_layer": 11}),
    "gpt_neox": ("GPTNeoX", _DECODER),
    "gptj": ("GPTJ", _GPT2 | {"rotary_dim": 8}),
    "opt": ("OPT", _DECODER | {"ffn_dim": 96, "word_embed_proj_dim": 32}),
    "bloom": ("Bloom", {"vocab_size": 160, "hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "falcon": ("Falcon", _FALCON),
    "falcon-new": ("Falcon", _FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    # Families that no shapes are written down of.
    "codegen": ("CodeGen", _GPT2 | {"rotary_dim": 8}),
    "cohere": ("Cohere", _DECODER),
    "starcoder2": ("Starcoder2", _DECODER),
    "stablelm": ("StableLm", _DECODER),
    "phi": ("Phi", _DECODER),
    "granite": ("Granite", _DECODER),
    "olmo": ("Olmo", _DECODER),
    "mpt": ("Mpt", {"d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 160}),
    "qwen2_moe": ("Qwen2Moe", _DECODER | _EXPERTS | {"shared_expert_intermediate_size": 48}),
    "olmoe": ("Olmoe", _DECODER | _EXPERTS),
    "longt5": ("LongT5", _T5),
    "blenderbot": ("Blenderbot", _BART),
    "biogpt": ("BioGpt", _DECODER),
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


@pytest.mark.parametrize("name", MODELS)
def test_headers_tell_the_model_that_torch_loads(name, tmp_path):
    from dsrun.train.model.zero_auto import report

    model = saved(tmp_path, *MODELS[name])
    found = find(str(tmp_path))
    stored = stored_architecture(found)
    made = report(model)
    tensors = (LayerWeight(name, tuple(shape), kind) for name, shape, kind in made["tensors"])
    real = architecture_of(made["config"], tuple(tensors))
    assert sum(w.elements for w in stored.tensors()) == sum(p.numel() for p in model.parameters())
    assert plain(stored) == plain(real)
    if found.config["model_type"] in FAMILIES:
        assert plain(stored) == plain(describe(found.config))


def test_speech_model_is_counted_by_its_headers_with_a_note(tmp_path):
    sizes = {"num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 16}
    model = saved(tmp_path, "Whisper", _BART | sizes)
    counted = count(find(str(tmp_path)))
    assert counted.how == "the headers of the weights"
    assert counted.architecture.parameters == sum(p.numel() for p in model.parameters())
    assert ([each.code for each in counted.findings], counted.trained) == (["plan.not-trained"], False)


def test_unlisted_family_with_weights_is_counted_without_torch(tmp_path):
    saved(tmp_path, *MODELS["cohere"])
    counted = count(find(str(tmp_path)), meta=False)
    assert counted.how == "the headers of the weights"
    assert counted.findings == ()


def published(folder, config, change):
    """A model whose files have the tensors of its family's shapes, as `change` makes them: their headers alone."""
    shapes = change({weight.name: weight.shape for weight in describe(config).tensors()})
    tensors = {name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    header = json.dumps(tensors).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    (folder / "config.json").write_text(json.dumps(config))
    return count(find(str(folder)), meta=False)


_SPARSE = _DECODER | {"model_type": "mixtral", "num_local_experts": 4, "tie_word_embeddings": False}
_DEEP = _DECODER | _LATENT | {"model_type": "deepseek_v3", "num_nextn_predict_layers": 1}


def _one_by_one(shapes):
    """Mixtral's own files: three matrices an expert."""
    kept = {name: shape for name, shape in shapes.items() if ".experts." not in name}
    for layer in range(2):
        for expert in range(4):
            path = f"model.layers.{layer}.block_sparse_moe.experts.{expert}"
            kept |= {f"{path}.w1.weight": (96, 64), f"{path}.w2.weight": (64, 96), f"{path}.w3.weight": (96, 64)}
    return kept


def _without_prefix(shapes):
    """GPT-2's own files, which hold its causal masks too."""
    kept = {name.removeprefix("transformer."): shape for name, shape in shapes.items()}
    return kept | {f"h.{layer}.attn.bias": (1, 1, 48, 48) for layer in range(2)}


def _with(name, shape):
    return lambda shapes: {**shapes, name: shape}


PUBLISHED = {
    "names without a prefix, and masks": (_GPT2 | {"model_type": "gpt2"}, _without_prefix),
    "a tied table twice": (_FALCON | {"model_type": "falcon"}, _with("lm_head.weight", (160, 64))),
    "a copy of the table": (_T5 | {"model_type": "t5"}, _with("decoder.embed_tokens.weight", (160, 64))),
    "experts one by one": (_SPARSE, _one_by_one),
    "a layer for further tokens": (_DEEP, _with("model.layers.3.eh_proj.weight", (64, 128))),
}


@pytest.mark.parametrize(("config", "change"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_files_are_counted_as_they_are_loaded(tmp_path, config, change):
    made = published(tmp_path, config, change)
    assert (made.how, made.findings) == ("the headers of the weights", ())
    assert plain(made.architecture) == plain(describe(config))


def test_weights_of_another_model_are_noted_and_the_config_counted(tmp_path):
    made = published(tmp_path, _GPT2 | {"model_type": "gpt2"}, lambda shapes: shapes)
    config = json.loads((tmp_path / "config.json").read_text()) | {"n_layer": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    other = count(find(str(tmp_path)), meta=False)
    assert [each.code for each in other.findings] == ["plan.files-differ"]
    assert other.architecture.parameters == describe(config).parameters > made.architecture.parameters


def test_files_that_lack_weights_are_noted_and_the_config_counted(tmp_path):
    """`dsrun train` refuses them, or draws what is missing with --allow-missing-weights."""
    made = published(tmp_path, _DEEP, lambda shapes: dict(list(shapes.items())[:-3]))
    assert [each.code for each in made.findings] == ["plan.files-differ"]
    assert made.architecture.parameters == describe(_DEEP).parameters
