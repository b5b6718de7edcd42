"""What happened to rows on the way to samples: how many were read, cut and left out, and why."""

import math
from dataclasses import dataclass, field
from typing import Any

from dsrun.errors import UsageError
from dsrun.recipe.preflight import bad_rows
from dsrun.train.data.lengths import LengthLimits


@dataclass
class RowCounts:
    """What happened to rows: how many were read, cut, and left out, and why; how many conversations were divided, and
    into how many samples more. By reason (of `bad_rows`) `left` has [rows, number of a row not behind the first, the
    first in words]; by side `words` has [tokens, unknown ones], special tokens aside. Row `begin` was the first."""

    rows: int = 0
    cut: int = 0
    cut_source: int = 0
    cut_target: int = 0
    divided: int = 0
    extra: int = 0
    begin: int = 0
    left: dict[str, list[Any]] = field(default_factory=dict)
    words: dict[str, list[int]] = field(default_factory=dict)

    def add(self, other: dict[str, Any]) -> None:
        """Add counts of other rows, as a dictionary."""
        for reason, (count, begin, first) in other.get("left", {}).items():
            mine = self.left.get(reason, [0, begin, first])
            # Processes finish in any order.
            self.left[reason] = [mine[0] + count, *min(mine[1:], [begin, first], key=lambda each: each[0])]
        for side, pair in other.get("words", {}).items():
            self.words[side] = [a + b for a, b in zip(self.words.get(side, (0, 0)), pair, strict=True)]
        for name in other.keys() - {"left", "words", "begin"}:
            setattr(self, name, getattr(self, name) + other[name])

    def leave_out(self, reason: str, first: str) -> None:
        self.add({"left": {reason: [1, self.begin, first]}})

    def refuse_bad(self, share: float, *, least: int = 1) -> None:
        bad_rows.refuse_bad(self.left, self.rows, share, least=least)

    def unknown(self, side: str) -> float | None:
        """The share of tokens that stand for what the tokenizer does not know; None where it marks nothing so."""
        tokens, unknown = self.words.get(side, (0, 0))
        return unknown / tokens if tokens else None

    def notices(self, split: str) -> list[str]:
        if not self.divided:
            return []
        return [
            f"{split}: {self.divided:,} of {self.rows:,} conversations became {self.divided + self.extra:,} samples, "
            "as the chat template changes earlier turns: each answer is learned after what the model sees when it "
            "writes it"
        ]


@dataclass(frozen=True)
class TruncatedExamples:
    """How many of a split's examples lost tokens: `limit` to the source, or to the target where only it was cut. With
    larger values of `flags` fewer would."""

    cut: int
    total: int
    limit: int
    target_limit: int | None = None
    flags: tuple[str, ...] = field(default=(), compare=False)

    def sentence(self) -> str:
        at = f"{self.limit:,} tokens"
        if self.target_limit is not None:
            at = f"{self.limit:,} source or {self.target_limit:,} target tokens"
        if not self.cut:
            return f"none of {self.total:,} examples was cut at {at}"
        return f"{self.cut:,} of {self.total:,} examples {'was' if self.cut == 1 else 'were'} cut at {at}"


def truncation_of(counts: RowCounts, limits: LengthLimits, split: str) -> TruncatedExamples:
    target = limits.target if split == "train" else limits.eval_target
    # Rows that were left out before had no tokens.
    total = counts.rows + counts.extra - sum(each[0] for name, each in counts.left.items() if name != "no_loss")
    longer = "--max-target-length" if split == "train" else "--val-max-target-length"
    cuts = ((counts.cut_source, limits.source, limits.flag), (counts.cut_target, target, longer))
    flags = tuple(flag for cut, limit, flag in cuts if cut and limit < (limits.most or math.inf))
    if counts.cut_source and counts.cut_target:
        return TruncatedExamples(counts.cut, total, limits.source, target, flags)
    return TruncatedExamples(counts.cut, total, target if counts.cut_target else limits.source, flags=flags)


def check_sample_count(flag: str, requested: int | None, there: int, what: str) -> None:
    """Raise UsageError where more samples are asked for than there are."""
    if requested is None:
        return
    if requested < 1:
        raise UsageError(f"{flag} {requested}: at least one sample is needed")
    if requested > there:
        raise UsageError(f"{flag} {requested:,}: there are only {there:,} {what}", fix=f"{flag} {there}")
