"""What the checks of `dsrun certify` look at: the model as it is, a small one of its architecture, and trained runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsrun.certify.request import CertifyRequest
from dsrun.models.folder import FoundModel


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """A run that certify trained in `folder`: `error` says why it failed, "" if it did not."""

    name: str
    folder: Path
    error: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class CertifySubject:
    """`found` is the model with its config.json and, where they are on this machine, the shapes of its weights; `config`
    its transformers config; `small` the folder of the small model, with random weights and a tokenizer of words;
    `tokenizer` whether a tokenizer of the model's own lies beside its config. `runs` are those that were trained, by
    name."""

    request: CertifyRequest
    found: FoundModel
    config: Any
    task: str
    small: Path
    tokenizer: bool
    runs: Mapping[str, RunOutcome] = field(default_factory=dict)
