"""What each demo is: its model's architecture and the settings it trains well with.

The settings were found by training on two CPU cores; docstrings of the tables say what came out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dsrun.demo.vocabulary import LLAMA_BOS, LLAMA_EOS, LLAMA_PAD, T5_EOS, T5_PAD

DEMO_T5: Final = "demo-t5"
DEMO_LLAMA: Final = "demo-llama"

T5_LENGTH: Final = 32
"""Tokens; the longest phrase has 13 with its end, and a prefix adds 4."""

LLAMA_LENGTH: Final = 512
"""Tokens the positions of demo-llama reach to; it trains on shorter blocks."""

TASKS: Final[Mapping[str, str]] = {DEMO_T5: "seq2seq", DEMO_LLAMA: "causal-lm"}

DEFAULTS: Final[dict[str, dict[str, object]]] = {
    DEMO_T5: {
        "global_batch_size": 256,
        "num_train_epochs": 4,
        "learning_rate": 4e-3,
        "lr_scheduler_type": "linear",
        "warmup_steps": 40,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "per_device_eval_batch_size": 256,
        "generation_max_length": T5_LENGTH,
        "generation_num_beams": 1,
    },
    DEMO_LLAMA: {
        "global_batch_size": 16,
        "block_size": 128,
        "num_train_epochs": 1,
        "learning_rate": 6e-3,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 20,
        "weight_decay": 0.1,
        "max_grad_norm": 1.0,
        "per_device_eval_batch_size": 32,
    },
}
"""Per demo: flags of TrainingArguments, ``global_batch_size`` (samples per optimizer step) and
``block_size`` (tokens per sample of a causal LM)."""


def t5_config(vocabulary_size: int) -> dict[str, object]:
    """The config.json of demo-t5: two layers each way, 64 wide, in the shape of T5 v1.1."""
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "vocab_size": vocabulary_size,
        "d_model": 64,
        "d_kv": 16,
        "d_ff": 256,
        "num_layers": 2,
        "num_decoder_layers": 2,
        "num_heads": 4,
        "feed_forward_proj": "gated-gelu",
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": T5_LENGTH,
        "n_positions": T5_LENGTH,
        # The data has no noise to overfit to, and dropout slows the model finding the alignment.
        "dropout_rate": 0.0,
        "tie_word_embeddings": True,
        "is_encoder_decoder": True,
        "use_cache": True,
        "decoder_start_token_id": T5_PAD,
        "pad_token_id": T5_PAD,
        "eos_token_id": T5_EOS,
    }


def t5_generation() -> dict[str, object]:
    """The generation_config.json of demo-t5: greedy, long enough for every phrase."""
    return {
        "decoder_start_token_id": T5_PAD,
        "pad_token_id": T5_PAD,
        "eos_token_id": T5_EOS,
        "max_length": T5_LENGTH,
        "num_beams": 1,
        "do_sample": False,
    }


def llama_config(vocabulary_size: int) -> dict[str, object]:
    """The config.json of demo-llama: three layers, 128 wide, grouped-query attention."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary_size,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": LLAMA_LENGTH,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        # About 1/sqrt(128).  The usual 0.02 suits wide models; here it slows the first epoch a good deal.
        "initializer_range": 0.08,
        "tie_word_embeddings": True,
        "attention_dropout": 0.0,
        "use_cache": True,
        "pad_token_id": LLAMA_PAD,
        "bos_token_id": LLAMA_BOS,
        "eos_token_id": LLAMA_EOS,
    }


def llama_generation() -> dict[str, object]:
    """The generation_config.json of demo-llama: greedy, with a bound on the answer."""
    return {
        "pad_token_id": LLAMA_PAD,
        "bos_token_id": LLAMA_BOS,
        "eos_token_id": LLAMA_EOS,
        "max_length": 128,
        "do_sample": False,
    }
