"""Data and models of the ladder: samples as long as instructions are, of random tokens, and small models made here."""

from __future__ import annotations

import json
import random
from math import exp
from pathlib import Path
from typing import Any

# A log-normal distribution with mean 90 and 99th percentile 432 has these; the tail is cut.
MU, SIGMA = 4.165, 0.818
LONGEST, SHORTEST = 512, 4
CORRELATION = 0.9
"""Of the logarithms of source and target lengths."""
SAMPLES = 2048
VOCABULARY = 4096
SPECIAL = ("<pad>", "</s>", "<unk>")

LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": 256, "intermediate_size": 704,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 1024,
    "tie_word_embeddings": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1,
}  # fmt: skip
T5: dict[str, Any] = {
    "model_type": "t5", "vocab_size": VOCABULARY, "d_model": 256, "d_kv": 64, "d_ff": 1024, "num_layers": 3,
    "num_decoder_layers": 3, "num_heads": 4, "dropout_rate": 0.0, "decoder_start_token_id": 0, "pad_token_id": 0,
    "eos_token_id": 1,
}  # fmt: skip


def pair_lengths(samples: int, *, seed: int = 0) -> list[tuple[int, int]]:
    """Tokens of source and target of each sample; both have the same distribution."""
    chance = random.Random(seed)
    found = []
    for _ in range(samples):
        one, other = chance.gauss(0, 1), chance.gauss(0, 1)
        two = CORRELATION * one + (1 - CORRELATION**2) ** 0.5 * other
        found.append((_length(one), _length(two)))
    return found


def _length(deviation: float) -> int:
    """Tokens for so many standard deviations from the median."""
    return max(SHORTEST, min(LONGEST, round(exp(MU + SIGMA * deviation))))


def make_data(file: Path, *, seq2seq: bool, samples: int = SAMPLES) -> list[tuple[int, int]]:
    """Write rows of `input_ids` and `labels`; the lengths of both. A causal sample is as long as a source."""
    chance, lengths = random.Random(1), pair_lengths(samples)
    with file.open("w", encoding="utf-8") as lines:
        for source, target in lengths:
            ids = _ids(chance, source)
            lines.write(json.dumps({"input_ids": ids, "labels": _ids(chance, target) if seq2seq else ids}) + "\n")
    return lengths


def _ids(chance: random.Random, length: int) -> list[int]:
    return [*(chance.randrange(len(SPECIAL), VOCABULARY) for _ in range(length - 1)), SPECIAL.index("</s>")]


def make_model(folder: Path, config: dict[str, Any]) -> Path:
    """Write config, weights and tokenizer to `folder`, so that all load the same."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    make_tokenizer(folder)
    auto: Any = AutoModelForSeq2SeqLM if config["model_type"] == "t5" else AutoModelForCausalLM
    torch.manual_seed(0)
    auto.from_config(AutoConfig.for_model(**config)).save_pretrained(folder)
    return folder


def make_tokenizer(folder: Path) -> None:
    """One of whole words, which no sample needs, but every trainer loads."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [*SPECIAL, *(f"w{number}" for number in range(VOCABULARY - len(SPECIAL)))]
    core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=LONGEST
    ).save_pretrained(folder)
