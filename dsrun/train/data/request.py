"""Data requested and prepared: lengths, prepared rows, counts of truncated rows, and the collator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch

from dsrun.errors import UsageError
from dsrun.recipe.spec import DEFAULT_TARGET, TrainSpec
from dsrun.train.loop.batches import IGNORED

if TYPE_CHECKING:
    from datasets import Dataset

    from dsrun.train.data.mixture import Mixture
    from dsrun.train.data.reading.sources import Sources
    from dsrun.train.data.stream import RowStream
    from dsrun.train.data.token_files import Blocks
    from dsrun.train.plugin import LoadedPlugin

DEFAULT_LENGTH = 1024
"""Tokens of a source or block by default, as in the Transformers example scripts."""


@dataclass
class Counts:
    """What happened to rows: how many were read, cut, and left out, and why; how many conversations were divided, and
    into how many samples more."""

    rows: int = 0
    cut: int = 0
    cut_source: int = 0
    cut_target: int = 0
    incomplete: int = 0
    no_loss: int = 0
    bad: int = 0
    divided: int = 0
    extra: int = 0
    first_bad: str = ""
    first_incomplete: str = ""
    first_no_loss: str = ""

    def add(self, other: dict[str, Any]) -> None:
        for name, value in other.items():
            mine = getattr(self, name)
            setattr(self, name, mine + value if isinstance(mine, int) else mine or value)

    def note_bad(self, error: str) -> None:
        self.bad += 1
        self.first_bad = self.first_bad or error

    def refuse_bad(self, share: float, *, least: int = 1) -> None:
        """Raise UsageError where more than this share of the rows is bad; fewer rows than `least` count as so many."""
        if self.bad > share * max(self.rows, least):
            more = f"; {self.bad:,} of {self.rows:,} rows are invalid" if self.bad > 1 else ""
            raise UsageError(f"{self.first_bad}{more}", fix="mend it, or leave such rows out: --max-bad-rows SHARE")

    def notices(self, split: str, limit: int) -> list[str]:
        lines = []
        if self.bad:
            lines.append(
                f"{split}: {self.bad:,} of {self.rows:,} rows are invalid and left out (the first: {self.first_bad})"
            )
        if self.divided:
            samples = self.divided + self.extra
            lines.append(
                f"{split}: {self.divided:,} of {self.rows:,} conversations became {samples:,} samples, as the chat "
                "template changes earlier turns: each answer is learned after what the model sees when it writes it"
            )
        if self.incomplete:
            lines.append(
                f"{split}: {self.incomplete:,} of {self.rows:,} rows lack a text and are left out "
                f"(the first: {self.first_incomplete})"
            )
        if self.no_loss:
            lines.append(
                f"{split}: {self.no_loss:,} of {self.rows:,} rows have nothing to learn from within {limit:,} "
                f"tokens and are left out (the first: {self.first_no_loss})"
            )
        return lines


@dataclass(frozen=True)
class Limits:
    """In tokens: `source` is also the whole sequence of a causal LM; only seq2seq has targets."""

    source: int
    target: int
    eval_target: int


@dataclass(frozen=True)
class Truncation:
    """How many of a split's examples lost tokens: `limit` to the source, or to the target where only it was cut."""

    cut: int
    total: int
    limit: int
    target_limit: int | None = None

    def sentence(self) -> str:
        at = f"{self.limit:,} tokens"
        if self.target_limit is not None:
            at = f"{self.limit:,} source or {self.target_limit:,} target tokens"
        if not self.cut:
            return f"none of {self.total:,} examples was cut at {at}"
        return f"{self.cut:,} of {self.total:,} examples {'was' if self.cut == 1 else 'were'} cut at {at}"


def truncation_of(counts: Counts, source_limit: int, target_limit: int) -> Truncation:
    total = counts.rows + counts.extra
    if counts.cut_source and counts.cut_target:
        return Truncation(counts.cut, total, source_limit, target_limit)
    return Truncation(counts.cut, total, target_limit if counts.cut_target else source_limit)


def limits_of(spec: TrainSpec, task: str, max_positions: int | None, tokenizer: Any) -> Limits:
    """The limits that the flags ask for, or the defaults where they do not. `max_positions` is the number of positions
    the model knows, None when they are relative (T5) or unbounded."""
    # Tokenizers without a limit report int(1e30) (transformers VERY_LARGE_INTEGER).
    default = min(DEFAULT_LENGTH, max_positions or DEFAULT_LENGTH, tokenizer.model_max_length or DEFAULT_LENGTH)
    if task == "causal-lm":
        flag, length_given = _first(("--block-size", spec.block_size), ("--max-length", spec.max_length))
        length = _checked(flag, length_given, default, max_positions, least=2)
        return Limits(length, length, length)
    least = tokenizer.num_special_tokens_to_add(pair=False) + 1
    flag, length_given = _first(("--max-source-length", spec.max_source_length), ("--max-length", spec.max_length))
    # With --resize-position-embeddings the model is made to fit the source.
    positions = None if spec.resize_position_embeddings else max_positions
    source = _checked(flag, length_given, default, positions, least)
    short = min(DEFAULT_TARGET, max_positions or DEFAULT_TARGET)
    target = _checked("--max-target-length", spec.max_target_length, short, max_positions, least)
    eval_target = _checked("--val-max-target-length", spec.val_max_target_length, target, max_positions, least)
    return Limits(source, target, eval_target)


def idle_lengths(spec: TrainSpec, task: str) -> str | None:
    """A notice of the lengths that were given and that this task does not have."""
    kind, own, others = "a seq2seq model", "--max-source-length", ["block_size"]
    if task == "causal-lm":
        kind, own = "a causal language model", "--max-length"
        others = ["max_source_length", "max_target_length"]
    given = [f"--{name.replace('_', '-')}" for name in others if getattr(spec, name) is not None]
    return f"{kind} has no {' or '.join(given)}: nothing is cut there ({own} N)" if given else None


def check_sample_count(flag: str, requested: int | None, there: int, what: str) -> None:
    """Raise UsageError where more samples are asked for than there are."""
    if requested is None:
        return
    if requested < 1:
        raise UsageError(f"{flag} {requested}: at least one sample is needed")
    if requested > there:
        raise UsageError(f"{flag} {requested:,}: there are only {there:,} {what}", fix=f"{flag} {there}")


def _first(*flags: tuple[str, int | None]) -> tuple[str, int | None]:
    return next((pair for pair in flags if pair[1] is not None), flags[0])


def _checked(flag: str, requested: int | None, default: int, positions: int | None, least: int) -> int:
    if requested is None:
        return default
    if requested < least:
        raise UsageError(f"{flag} {requested}: a sequence needs at least {least} tokens")
    if positions is not None and requested > positions:
        raise UsageError(f"{flag} {requested}: the model knows {positions:,} positions", fix=f"{flag} {positions}")
    return requested


@dataclass
class Collator:
    """Pads rows {"input_ids", "labels"} on the right; other keys are left out.

    Gives int64 tensors: input_ids [batch, source], attention_mask likewise, labels [batch, target] with -100 where
    there is padding. Padding is marked by position and never by id, so a tokenizer whose padding is its end token still
    learns to end.

    For seq2seq set `model` after it is built: decoder_input_ids [batch, target] then come from the labels.

    `length` and `target_length` pad to a fixed size (--pad-to-max-length); otherwise to the longest of the batch,
    rounded up to `multiple_of` (8 fills the tensor cores of a GPU; on a CPU it would be waste). `max_target_length`
    bounds generation in evaluation. `adjust` (batch, rows) returns the batch to use instead.
    """

    pad_id: int
    seq2seq: bool
    multiple_of: int = 1
    length: int | None = None
    target_length: int | None = None
    max_target_length: int | None = None
    model: Any = None
    adjust: Callable[[dict[str, Any], Sequence[dict[str, Any]]], dict[str, Any]] | None = None

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        inputs, labels = ([np.asarray(row[name], dtype=np.int64) for row in rows] for name in ("input_ids", "labels"))
        width = self._width(inputs, self.length)
        batch = {
            "input_ids": _padded(inputs, width, self.pad_id),
            "attention_mask": _padded([np.ones_like(ids) for ids in inputs], width, 0),
            "labels": _padded(labels, self._width(labels, self.target_length) if self.seq2seq else width, IGNORED),
        }
        if self.seq2seq and self.model is not None:
            batch["decoder_input_ids"] = self.decoder_input_ids(batch["labels"])
        return self.adjust(batch, rows) if self.adjust else batch

    def decoder_input_ids(self, labels: torch.Tensor) -> torch.Tensor:
        """What the decoder reads to write `labels`: [batch, target] both. M2M100 (NLLB) and Blenderbot have no method
        for it (transformers 5.23): their forward shifts labels itself, but the loss is not left to their forward."""
        labels = self._shiftable(labels)
        if hasattr(self.model, "prepare_decoder_input_ids_from_labels"):
            return self.model.prepare_decoder_input_ids_from_labels(labels=labels)
        start = labels.new_full((len(labels), 1), self.model.config.decoder_start_token_id)
        return torch.cat([start, labels[:, :-1].masked_fill(labels[:, :-1] == IGNORED, self.pad_id)], dim=1)

    def _width(self, arrays: Sequence[np.ndarray], fixed: int | None) -> int:
        longest = max(len(array) for array in arrays)
        if fixed is not None:
            return max(fixed, longest)
        return -(-longest // self.multiple_of) * self.multiple_of

    def _shiftable(self, labels: torch.Tensor) -> torch.Tensor:
        """Labels whose rows all hold a token: mBART's shift_tokens_right indexes with -1 where all are ignored, as in
        filler rows."""
        empty = (labels == IGNORED).all(dim=1)
        if not empty.any():
            return labels
        labels = labels.clone()
        labels[empty, 0] = 0 if self.pad_id != 0 else 1
        return labels


def _padded(arrays: Sequence[np.ndarray], width: int, fill: int) -> torch.Tensor:
    out = np.full((len(arrays), width), fill, dtype=np.int64)
    for row, array in zip(out, arrays, strict=True):
        row[: len(array)] = array
    return torch.from_numpy(out)


Rows: TypeAlias = "Dataset | Blocks | RowStream | Mixture"


@dataclass(frozen=True)
class DataRequest:
    """What is to be prepared, for which model. `splits` are wanted where there is data for them; those in `required`,
    and train and test where wanted, must be there, unless it `is_part` of a mixture. `sources` are the data, None for
    that which `spec` names. `max_positions` None: no limit."""

    spec: TrainSpec
    task: Literal["seq2seq", "causal-lm"]
    model_type: str
    max_positions: int | None
    vocab_size: int
    splits: frozenset[str] = frozenset({"train", "validation"})
    required: frozenset[str] = frozenset()
    is_part: bool = False
    plugin: LoadedPlugin | None = None
    sources: Sources | None = None

    @property
    def preference(self) -> bool:
        """Whether rows are two answers, of which the first is preferred."""
        return self.spec.task == "dpo"


@dataclass(frozen=True)
class PreparedData:
    """Datasets ready for the collator, and what the user should know about them. Rows: {"input_ids", "labels"}, labels
    being -100 where nothing is learned; those of validation and test may hold "source_text" and "target_text", those of
    preferences "rejected_ids" and "rejected_labels".
    `train_fingerprint` differs where the training rows, their order or their tokens do; None: not known."""

    train: Rows | None
    validation: Rows | None
    test: Rows | None
    truncation: dict[str, Truncation]
    notices: tuple[str, ...]
    origin: str
    collator: Collator
    train_fingerprint: str | None = None
