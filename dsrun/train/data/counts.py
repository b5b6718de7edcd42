"""What happens to rows on the way to samples: to how many tokens they are cut, by flags or by the model; how many were
read, cut and left out, and why."""

from dataclasses import dataclass, field
from typing import Any

from dsrun.recipe.preflight import bad_rows
from dsrun.recipe.recipe_spec import DEFAULT_TARGET, TrainSpec
from dsrun.train.base.refusals import notice_of, refusal, refuse

DEFAULT_LENGTH = 1024
"""Tokens of a source or block by default, as in the Transformers example scripts."""


@dataclass(frozen=True)
class LengthLimits:
    """In tokens: `source` is also the whole sequence of a causal LM; only seq2seq has targets. `flag` makes sources
    longer, up to the positions that the model knows (`most`, None: any number)."""

    source: int
    target: int
    eval_target: int
    flag: str
    most: int | None

    def sides(self, split: str) -> tuple[tuple[int, str], ...]:
        """Those of a split's source and target, with the flags that raise them; "" where the model allows no more."""
        of_training, of_others = (self.target, "--max-target-length"), (self.eval_target, "--val-max-target-length")
        pairs = ((self.source, self.flag), of_training if split == "train" else of_others)
        return tuple((limit, flag if self.most is None or limit < self.most else "") for limit, flag in pairs)


def limits_of(spec: TrainSpec, task: str, max_positions: int | None, tokenizer: Any) -> LengthLimits:
    """The limits that the flags ask for, or the defaults where they do not. `max_positions` is the number of positions
    the model knows, None when they are relative (T5) or unbounded."""
    # Tokenizers without a limit report int(1e30) (transformers VERY_LARGE_INTEGER).
    default = min(DEFAULT_LENGTH, max_positions or DEFAULT_LENGTH, tokenizer.model_max_length or DEFAULT_LENGTH)
    if task == "causal-lm":
        flag, length_given = _first(("--block-size", spec.block_size), ("--max-length", spec.max_length))
        length = _checked(flag, length_given, default, max_positions, least=2)
        return LengthLimits(length, length, length, flag if length_given else "--max-length", max_positions)
    least = tokenizer.num_special_tokens_to_add(pair=False) + 1
    flag, length_given = _first(("--max-source-length", spec.max_source_length), ("--max-length", spec.max_length))
    # With --resize-position-embeddings the model is made to fit the source.
    positions = None if spec.resize_position_embeddings else max_positions
    source = _checked(flag, length_given, default, positions, least)
    short = min(DEFAULT_TARGET, max_positions or DEFAULT_TARGET)
    target = _checked("--max-target-length", spec.max_target_length, short, max_positions, least)
    eval_target = _checked("--val-max-target-length", spec.val_max_target_length, target, max_positions, least)
    return LengthLimits(source, target, eval_target, "--max-source-length", positions)


def idle_lengths(spec: TrainSpec, task: str) -> str | None:
    """A notice of the lengths that were given and that this task does not have."""
    kind, own, others = "a seq2seq model", "--max-source-length", ["block_size"]
    if task == "causal-lm":
        kind, own = "a causal language model", "--max-length"
        others = ["max_source_length", "max_target_length"]
    given = [f"--{name.replace('_', '-')}" for name in others if getattr(spec, name) is not None]
    return f"{kind} has no {' or '.join(given)}: nothing is cut there ({own} N)" if given else None


def _first(*flags: tuple[str, int | None]) -> tuple[str, int | None]:
    return next((pair for pair in flags if pair[1] is not None), flags[0])


def _checked(flag: str, requested: int | None, default: int, positions: int | None, least: int) -> int:
    if requested is None:
        return default
    refuse("length", flag=flag, requested=requested, least=least, positions=positions)
    return requested


# Shares of the tokens of a side that are unknown to the tokenizer, as those of another language are.
SOME, MOST = 0.03, 0.5
FIX = "take a --model whose tokenizer knows such texts"


@dataclass
class RowCounts:
    """What happened to rows: how many were read, cut, and left out, and why; how many conversations were divided, and
    into how many samples more; of how many samples the chat template leaves out the tools, and a reasoning. By reason
    (of `bad_rows`) `left` has [rows, number of a row not behind the first, the first in words]; by side `words` has
    [tokens, unknown ones], special tokens aside. Row `begin` was the first. `limits` are those of source and target in
    tokens, with the flags that raise them; () for running text, which is not cut."""

    rows: int = 0
    cut: int = 0
    cut_source: int = 0
    cut_target: int = 0
    divided: int = 0
    extra: int = 0
    no_tools: int = 0
    no_reasoning: int = 0
    begin: int = 0
    left: dict[str, list[Any]] = field(default_factory=dict)
    words: dict[str, list[int]] = field(default_factory=dict)
    limits: tuple[tuple[int, str], ...] = ()

    def add(self, other: dict[str, Any]) -> None:
        """Add counts of other rows, as a dictionary."""
        for reason, (count, begin, first) in other.get("left", {}).items():
            mine = self.left.get(reason, [0, begin, first])
            # Processes finish in any order.
            self.left[reason] = [mine[0] + count, *min(mine[1:], [begin, first], key=lambda each: each[0])]
        for side, pair in other.get("words", {}).items():
            self.words[side] = [a + b for a, b in zip(self.words.get(side, (0, 0)), pair, strict=True)]
        for name in other.keys() - {"left", "words", "begin", "limits"}:
            setattr(self, name, getattr(self, name) + other[name])

    def leave_out(self, reason: str, first: str) -> None:
        self.add({"left": {reason: [1, self.begin, first]}})

    def refuse_bad(self, share: float, *, least: int = 1) -> None:
        bad_rows.refuse_bad(self.left, self.rows, share, least=least)

    def refuse_unknown(self, where: str) -> None:
        """Raise UsageError where half of the tokens of a side are unknown: such data trains on nothing."""
        for side, (tokens, unknown) in self.words.items():
            if unknown >= MOST * tokens > 0:
                raise refusal("tokenizer.unknown", where=where, share=unknown / tokens, side=side, fix=FIX)

    @property
    def encoded(self) -> int:
        """Samples, those without anything to learn among them; rows that were left out before had no tokens."""
        return self.rows + self.extra - sum(count for name, (count, *_) in self.left.items() if name != "no_loss")

    @property
    def reached(self) -> list[tuple[int, str]]:
        """The limits of the sides that were cut."""
        return [each for each, cut in zip(self.limits, (self.cut_source, self.cut_target), strict=False) if cut]

    def truncation(self) -> str:
        """How many samples lost tokens, in words."""
        limits = [f"{limit:,}" for limit, _ in self.reached or self.limits[:1]]
        at = f"{' source or '.join(limits)}{' target' * (len(limits) > 1)} tokens"
        number = f"{self.cut:,}" if self.cut else "none"
        return f"{number} of {self.encoded:,} examples {'was' if self.cut < 2 else 'were'} cut at {at}"

    def notices(self, split: str) -> list[str]:
        lost = {"tools": self.no_tools, "reasoning": self.no_reasoning}
        found = [notice_of("chat.left_out", split=split, what=what, count=n) for what, n in lost.items() if n]
        if self.divided:
            found.append(notice_of("chat.divided", split=split, counts=self, samples=self.divided + self.extra))
        return found
