"""What a tokenizer or a model family needs that its users tend to forget."""

from __future__ import annotations

from typing import Any

from dsrun.errors import UsageError
from dsrun.recipe.spec import TrainSpec


def pad_with_end(tokenizer: Any, task: str) -> str | None:
    """Give a causal model's tokenizer without padding token its end token for it; returns a notice.

    The batches mark padding by position, so the true end tokens are learned all the same.

    Raises:
        UsageError: an encoder-decoder's tokenizer has none.
    """
    if tokenizer.pad_token_id is not None:
        return None
    if task == "seq2seq":
        raise UsageError(
            "the tokenizer has no padding token, without which an encoder-decoder model cannot batch",
            fix="give --tokenizer one with a pad_token",
        )
    if tokenizer.eos_token is None:
        return "the tokenizer has neither padding nor end token: nothing marks where a document ends"
    tokenizer.pad_token = tokenizer.eos_token
    return f"the tokenizer has no padding token: {tokenizer.eos_token} pads, outside the loss"


def prefix_notice(spec: TrainSpec, model_type: str) -> str | None:
    """The original T5 knows its tasks by a prefix; mT5, and what starts from scratch, does not."""
    own = spec.from_scratch or (spec.model or "").startswith("demo-")
    if model_type != "t5" or spec.source_prefix is not None or own:
        return None
    return (
        "T5 was trained with a prefix before every source and none is given "
        "(--source-prefix 'translate English to German: ' or 'summarize: ')"
    )
