"""The small T5 that bench/translation.py trains, and its tokenizer, trained on the training part alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

VOCABULARY = 5000
LONGEST = 64
"""Tokens of a source or a target, its end included."""


def make_model(train_file: Path, folder: Path, seed: int) -> int:
    """Write config, tokenizer and freshly initialised weights to `folder`; the number of parameters. Both rivals load
    these weights, so that they begin alike."""
    import torch
    from tokenizers import SentencePieceBPETokenizer, processors
    from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    core = SentencePieceBPETokenizer()
    core.train_from_iterator(
        _texts(train_file), VOCABULARY, special_tokens=[*special.values()], limit_alphabet=200, show_progress=False
    )
    core.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core._tokenizer, model_max_length=LONGEST, **special)
    tokenizer.save_pretrained(folder)
    config = T5Config(
        vocab_size=VOCABULARY, d_model=160, d_kv=40, d_ff=640, num_layers=2, num_decoder_layers=2, num_heads=4,
        dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = T5ForConditionalGeneration(config)
    model.save_pretrained(folder)
    return int(model.num_parameters())


def _texts(train_file: Path) -> Iterator[str]:
    with train_file.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield row["source"]
            yield row["target"]
