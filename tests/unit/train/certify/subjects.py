"""What the checks of `dsrun certify` look at, of a config or of a tokenizer."""

import json
from pathlib import Path

from transformers import AutoConfig

from dsrun.certify.request import CertifyRequest
from dsrun.models.folder import FoundModel
from dsrun.train.certify import small
from dsrun.train.certify.subject import CertifySubject

RIGHT = ("llama", "qwen3", "gpt2", "t5", "bart", "mixtral", "gemma3_text")
"""Families that train right."""


def config_of(kind, **values):
    """The config of a published model of this type, as its class has it."""
    starts = {"decoder_start_token_id": 0} if kind == "t5" else {}
    return AutoConfig.for_model(kind, **starts | values)


def subject_of(config, folder, *, tokenizer=None, generation=None, build=False):
    """`generation` is what generation_config.json says; `build` makes the small model."""
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    if build and not (folder / "small").exists():
        small.build(small.small_config(config), folder / "small")
    return CertifySubject(
        request=CertifyRequest(model=str(folder)),
        found=FoundModel(name=str(folder), folder=Path(folder), config=config.to_dict(), stored=None),
        config=config,
        task="seq2seq" if config.is_encoder_decoder else "causal-lm",
        small=folder / "small",
        words=folder / "words",
        tokenizer=tokenizer is not None,
    )


def codes(findings):
    return [(each.level, each.code) for each in findings]
