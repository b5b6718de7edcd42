"""What each demo is: the training settings, the model's configuration, and the tokenizer files of a model folder.

The settings were found by training on two CPU cores. demo-t5 has a tokenizer of words, written out by rule: number
phrases use some eighty words, and one token per word keeps sequences short. demo-llama has a byte-level BPE trained on
the demo's own training texts, so it can write any text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dsrun.demo.corpus import LIMIT, english, romanian
from dsrun.errors import MissingError

T5_PAD: Final = 0
T5_EOS: Final = 1
T5_SPECIAL: Final = ("<pad>", "</s>", "<unk>")

LLAMA_PAD: Final = 0
LLAMA_BOS: Final = 1
LLAMA_EOS: Final = 2
LLAMA_SPECIAL: Final = ("<|pad|>", "<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
LLAMA_VOCABULARY: Final = 2048

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
"""Per demo: flags of TrainingArguments, ``global_batch_size`` (samples per optimizer step) and ``block_size`` (tokens
per sample of a causal LM)."""

# Sentences a user may put before a phrase with --source-prefix, in the manner of the T5 paper.
_PREFIXES: Final = ("translate english to romanian:", "translate romanian to english:")

# Each turn is <|role|>, a line break, the text, <|end|>.  The generation block marks the
# assistant's text, so that a trainer can get a mask of it from the tokenizer.
CHAT_TEMPLATE: Final = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}"
    "{% else %}{{ message['content'] + eos_token }}{% endif %}"
    "{{ '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)


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


def llama_config() -> dict[str, object]:
    """The config.json of demo-llama: three layers, 128 wide, grouped-query attention."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": LLAMA_VOCABULARY,
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


def generation_config(name: str, config: Mapping[str, object]) -> dict[str, object]:
    """The generation_config.json of a demo with this config.json: greedy, and for demo-t5 long enough for every
    phrase."""
    ids = {key: value for key, value in config.items() if key.endswith("_token_id")}
    return {**ids, "max_length": T5_LENGTH if name == DEMO_T5 else 128, "num_beams": 1, "do_sample": False}


def t5_words(phrase: str) -> list[str]:
    """Cut a phrase into the demo-t5 tokens: words with ``▁`` in front, and ``-nine`` as a token of its own."""
    words: list[str] = []
    for word in phrase.split():
        head, *tail = word.split("-")
        words += [f"▁{head}", *(f"-{part}" for part in tail)]
    return words


def t5_vocabulary() -> dict[str, int]:
    """Token -> id for every number phrase of both languages and for the T5 prefixes.

    Numbers below a thousand and whole thousands use every word that any phrase up to 999_999 uses.
    """
    vocabulary = {token: i for i, token in enumerate(T5_SPECIAL)}
    numbers = [*range(1000), *range(1000, LIMIT, 1000)]
    phrases = [spell(n) for spell in (english, romanian) for n in numbers]
    for phrase in [*phrases, *_PREFIXES]:
        for word in t5_words(phrase):
            vocabulary.setdefault(word, len(vocabulary))
    return vocabulary


def t5_tokenizer() -> dict[str, str]:
    """The tokenizer files of demo-t5, in the JSON format of the `tokenizers` library."""
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    special = {**dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False), "special": True}
    end = {"SpecialToken": {"id": "</s>", "type_id": 0}}
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": token, **special} for i, token in enumerate(T5_SPECIAL)],
        # Lower case, and the old cedilla letters many keyboards still type for ș and ț.
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "NFC"},
                {"type": "Lowercase"},
                {"type": "Replace", "pattern": {"String": "ş"}, "content": "ș"},
                {"type": "Replace", "pattern": {"String": "ţ"}, "content": "ț"},
            ],
        },
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                metaspace,
                {"type": "Split", "pattern": {"String": "-"}, "behavior": "MergedWithNext", "invert": False},
            ],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [first, end],
            "pair": [first, end, second, end],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [T5_EOS], "tokens": ["</s>"]}},
        },
        "decoder": metaspace,
        "model": {"type": "WordLevel", "vocab": t5_vocabulary(), "unk_token": "<unk>"},
    }
    names = dict(zip(("pad_token", "eos_token", "unk_token"), T5_SPECIAL, strict=True))
    return {"tokenizer.json": _json(tokenizer), "tokenizer_config.json": _tokenizer_config(T5_LENGTH, **names)}


def llama_tokenizer(texts: Iterable[str]) -> dict[str, str]:
    """Train the byte-level BPE of demo-llama on `texts`; returns its files, chat template included.

    Raises MissingError without the package `tokenizers`.
    """
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    except ImportError as error:
        raise MissingError("demo-llama needs the package tokenizers", fix="pip install 'dsrun[train]'") from error
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=LLAMA_VOCABULARY,
        special_tokens=list(LLAMA_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", pair="<|begin|> $A <|begin|> $B:1", special_tokens=[("<|begin|>", LLAMA_BOS)]
    )
    names = dict(zip(("pad_token", "bos_token", "eos_token"), LLAMA_SPECIAL[:3], strict=True))
    config = _tokenizer_config(LLAMA_LENGTH, **names, chat_template=CHAT_TEMPLATE)
    return {"tokenizer.json": str(tokenizer.to_str(pretty=True)), "tokenizer_config.json": config}


def _tokenizer_config(max_length: int, **own: str) -> str:
    common = {"clean_up_tokenization_spaces": False, "model_input_names": ["input_ids", "attention_mask"]}
    return _json({"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_length, **own, **common})


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"
