"""Tokens that stand for what a tokenizer does not know: data in another language than its own trains on nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsrun.errors import UsageError
from dsrun.train.base.labels import IGNORED
from dsrun.train.data.counts import RowCounts

SOME = 0.03
MOST = 0.5
# SentencePiece's beginning of a word: T5 makes it and one unknown token of a Chinese sentence.
_BEGINNING = "▁"
FIX = "take a --model, and with it a tokenizer, that knows this language"


@dataclass(frozen=True)
class UnknownTokens:
    """`unknown` is the token of a tokenizer for what it does not know, None where it has none or uses it for other
    things, too (GPT-2); `special` are tokens that say nothing."""

    unknown: int | None
    special: np.ndarray

    @classmethod
    def of(cls, tokenizer: Any) -> "UnknownTokens":
        unknown = getattr(tokenizer, "unk_token_id", None)
        others = {getattr(tokenizer, f"{name}_token_id", None) for name in ("eos", "bos", "pad")}
        beginning = tokenizer.convert_tokens_to_ids(_BEGINNING)
        special = {*getattr(tokenizer, "all_special_ids", ()), beginning, IGNORED} - {unknown, None}
        return cls(None if unknown in others else unknown, np.array(sorted(special)))

    def count(self, side: str, rows: Sequence[Sequence[int]], counts: RowCounts) -> None:
        if self.unknown is not None and rows:
            ids = np.concatenate([np.asarray(row, np.int64) for row in rows])
            words = ids[~np.isin(ids, self.special)]
            counts.add({"words": {side: [len(words), int((words == self.unknown).sum())]}})


def check_known(counts: RowCounts, where: str, *, force: bool, least: int = 100) -> list[str]:
    """Notices about unknown tokens. Raises UsageError where, of `least` tokens, too many are unknown to learn from."""
    notices = []
    for side, (tokens, _) in counts.words.items():
        share = counts.unknown(side) or 0.0
        said = f"{where}: the tokenizer does not know {share:.0%} of the tokens of the {side} texts"
        if share >= MOST and not force and tokens >= least:
            raise UsageError(f"{said}, so there is next to nothing to learn", fix=f"{FIX}, or --force to go on")
        notices += [f"{said}, which are lost: {FIX}"] if share >= SOME else []
    return notices
