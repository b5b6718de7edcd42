"""A tokenizer of words, and rows in them, for the small model of `dsrun certify`: they mean nothing, and are the same
everywhere."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WORDS = ("<pad>", "</s>", "<unk>", *(f"w{number}" for number in range(125)))
"""The longest vocabulary; the ids of the first two are those of padding and of the end."""
LONGEST = 64
"""Tokens of a sample, at most."""
_TRAINED, _TESTED = 29, 5
"""Rows: a last batch that is not full, as real data has one."""


def save_tokenizer(folder: Path, words: Sequence[str] = WORDS) -> Path:
    """The folder. It has no config.json beside it, by whose model_type transformers would choose another class."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=LONGEST
    ).save_pretrained(folder)
    return folder


def write_rows(folder: Path, task: str, words: Sequence[str] = WORDS) -> dict[str, Path]:
    """Files of rows of very different lengths, by split: pairs of a source and itself backwards, or preferences."""
    make = _preference if task == "dpo" else _pair
    splits = {"train": range(_TRAINED), "test": range(100, 100 + _TESTED)}
    files = {split: folder / f"{split}.jsonl" for split in splits}
    for split, numbers in splits.items():
        files[split].write_text("".join(json.dumps(make(number, words)) + "\n" for number in numbers), encoding="utf-8")
    return files


def _pair(number: int, words: Sequence[str]) -> dict[str, Any]:
    text = _text(words, number, 2 + number % 9)
    return {"source": " ".join(text), "target": " ".join(reversed(text))}


def _preference(number: int, words: Sequence[str]) -> dict[str, Any]:
    prompt, rejected = _text(words, number, 2 + number % 4), _text(words, number + 7, 2 + number % 6)
    return {"prompt": " ".join(prompt) + " ", "chosen": " ".join(prompt), "rejected": " ".join(rejected)}


def _text(words: Sequence[str], number: int, count: int) -> list[str]:
    return [words[3 + (number * 7 + at * at * 3) % (len(words) - 3)] for at in range(count)]
