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
FIX = "take a --model whose tokenizer knows such texts"


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


def refuse_unknown(counts: RowCounts, where: str) -> None:
    """Raise UsageError where half of the tokens of a side are unknown."""
    for side, (tokens, unknown) in counts.words.items():
        if unknown >= MOST * tokens > 0:
            said = f"{where}: the tokenizer does not know {unknown / tokens:.0%} of the tokens of the {side} texts"
            raise UsageError(f"{said}, which are lost", fix=f"{FIX}, or --force to go on")
