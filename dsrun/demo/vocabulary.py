"""The tokenizers of the demo models, as the files a model folder holds.

demo-t5 has a tokenizer of words, written out by rule: number phrases use some eighty words, and one
token per word keeps sequences short enough for two CPU cores.  demo-llama has a byte-level BPE
trained on the demo's own training texts, so it can write any text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dsrun.demo.numbers import LIMIT, english, romanian
from dsrun.errors import MissingError

Files = dict[str, str]
"""File name -> content."""

T5_PAD: Final = 0
T5_EOS: Final = 1
T5_SPECIAL: Final = ("<pad>", "</s>", "<unk>")

LLAMA_PAD: Final = 0
LLAMA_BOS: Final = 1
LLAMA_EOS: Final = 2
LLAMA_SPECIAL: Final = ("<|pad|>", "<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
LLAMA_VOCABULARY: Final = 2048

# Sentences a user may put before a phrase with --source-prefix, in the manner of the T5 paper.
_PREFIXES: Final = ("translate english to romanian:", "translate romanian to english:")

# Each turn is <|role|>, a line break, the text, <|end|>.  The generation block marks what the
# assistant said, so that a trainer can ask the tokenizer for a mask of it.
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


def t5_words(phrase: str) -> list[str]:
    """Cut a phrase into the demo-t5 tokens: words led by ``▁``, and ``-nine`` as a token of its own."""
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


def t5_tokenizer(max_length: int) -> Files:
    """The tokenizer files of demo-t5, in the JSON format of the `tokenizers` library.

    Args:
        max_length: longest sequence of the model, in tokens.
    """
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(i, token) for i, token in enumerate(T5_SPECIAL)],
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
                {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
                {"type": "Split", "pattern": {"String": "-"}, "behavior": "MergedWithNext", "invert": False},
            ],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [_piece("A"), _special_piece("</s>")],
            "pair": [_piece("A"), _special_piece("</s>"), _piece("B"), _special_piece("</s>")],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [T5_EOS], "tokens": ["</s>"]}},
        },
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "model": {"type": "WordLevel", "vocab": t5_vocabulary(), "unk_token": "<unk>"},
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "pad_token": "<pad>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
    }
    return {"tokenizer.json": _json(tokenizer), "tokenizer_config.json": _json(config)}


def llama_tokenizer(texts: Iterable[str], max_length: int) -> Files:
    """Train the byte-level BPE of demo-llama and return its files, chat template included.

    Args:
        texts: what to train on; the same texts give the same tokenizer.
        max_length: longest sequence of the model, in tokens.

    Raises:
        MissingError: the package `tokenizers` is not installed.
    """
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    except ImportError as error:
        raise MissingError(
            "demo-llama needs the package tokenizers", fix="pip install 'dsrun[train]'"
        ) from error
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
        single="<|begin|> $A",
        pair="<|begin|> $A <|begin|> $B:1",
        special_tokens=[("<|begin|>", LLAMA_BOS)],
    )
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "pad_token": LLAMA_SPECIAL[LLAMA_PAD],
        "bos_token": LLAMA_SPECIAL[LLAMA_BOS],
        "eos_token": LLAMA_SPECIAL[LLAMA_EOS],
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "chat_template": CHAT_TEMPLATE,
    }
    return {"tokenizer.json": str(tokenizer.to_str(pretty=True)), "tokenizer_config.json": _json(config)}


def _added_token(index: int, token: str) -> Mapping[str, object]:
    return {
        "id": index,
        "content": token,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def _piece(sequence: str) -> Mapping[str, object]:
    return {"Sequence": {"id": sequence, "type_id": 0}}


def _special_piece(token: str) -> Mapping[str, object]:
    return {"SpecialToken": {"id": token, "type_id": 0}}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"
