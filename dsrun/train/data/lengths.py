"""To how many tokens samples are cut: what the flags ask for, or what the model and its tokenizer allow."""

from dataclasses import dataclass
from typing import Any

from dsrun.recipe.recipe_spec import DEFAULT_TARGET, TrainSpec
from dsrun.train.base.refusals import refuse

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
        target, longer = (self.target, "--max-target-length")
        if split != "train":
            target, longer = (self.eval_target, "--val-max-target-length")
        pairs = ((self.source, self.flag), (target, longer))
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
