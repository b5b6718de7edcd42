"""What the checks of `dsrun certify` look at: the model as it is, a small one of its architecture, and trained runs."""

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from dsrun.certify.request import CertifyRequest
from dsrun.models.folder import FoundModel, find
from dsrun.train.certify import small, toy
from dsrun.train.model.load import decide_task
from dsrun.train.model.text_part import text_config

_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "spiece.model", "vocab.json")
SHORTEST = 8
"""Tokens of a text that a small model writes, at least."""
EXPERT_MATRICES = 3
"""Dimensions of the parameter that holds one matrix of all experts."""


@dataclass(frozen=True)
class SmallRun:
    """A run that certify trained in `folder`: `says` what it is, `error` why it failed, "" if it did not. One that was
    to go on with a failed run has that run's error."""

    name: str
    says: str
    folder: Path
    error: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class CertifySubject:
    """`found` is the model with its config.json and, where its weights are on this machine, their shapes; `config`
    its transformers config; `tokenizer` whether a tokenizer of its own lies beside it. `small` is the folder of the
    small model, with random weights; `words` that of its tokenizer; `rows` are files of rows for it, by split.
    `experts` are the parameters that hold the experts' matrices, as PEFT wants them named. `runs` are those that were
    trained, by name."""

    request: CertifyRequest
    found: FoundModel
    config: Any
    task: str
    small: Path
    words: Path
    tokenizer: bool
    rows: Mapping[str, Path] = field(default_factory=dict)
    experts: tuple[str, ...] = ()
    runs: Mapping[str, SmallRun] = field(default_factory=dict)

    @property
    def built(self) -> Path:
        """A file of the small model's tensors as they were made, of buffers too."""
        return self.small.with_name("built.pt")


def named_tensors(model: Any) -> dict[str, torch.Tensor]:
    """All parameters and buffers, also those that no file holds."""
    return {name: each.detach() for name, each in (*model.named_parameters(), *model.named_buffers())}


def load_subject(request: CertifyRequest, scratch: Path) -> CertifySubject:
    """The model that was asked for, with the small one built below `scratch`. Raises DsrunError where there is no such
    model or it cannot be made small."""
    found = find(request.model)
    original = scratch / "original"
    if request.trust_remote_code:
        original = found.folder
    else:
        original.mkdir()
        (original / "config.json").write_text(json.dumps(found.config), encoding="utf-8")
    config = AutoConfig.from_pretrained(original, trust_remote_code=request.trust_remote_code)
    task = "dpo" if request.task == "dpo" else decide_task(text_config(deepcopy(config)), "auto", request.model)
    folder = scratch / "small"
    model = small.build(small.small_config(config), folder)
    # Of texts that end at once there would be nothing to compare.
    model.generation_config.min_new_tokens = SHORTEST
    model.generation_config.save_pretrained(folder)
    names = [name for name, each in model.named_parameters() if each.dim() == EXPERT_MATRICES and "experts" in name]
    subject = CertifySubject(
        request=request,
        found=found,
        config=config,
        task=task,
        small=folder,
        tokenizer=any((found.folder / name).is_file() for name in _TOKENIZERS),
        words=toy.save_tokenizer(scratch / "words"),
        rows=toy.write_rows(scratch, task),
        experts=tuple(sorted({".".join(name.split(".")[-2:]) for name in names})),
    )
    torch.save(named_tensors(model), subject.built)
    return subject
