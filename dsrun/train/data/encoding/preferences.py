"""Preferences: two answers to one prompt, of which people preferred the first, as token ids and labels."""

from collections.abc import Sequence
from typing import Any

import torch

from dsrun.recipe.rows.readers import RawRow
from dsrun.train.base.labels import IGNORED
from dsrun.train.data.collate import PaddingCollator
from dsrun.train.data.counts import RowCounts
from dsrun.train.data.encoding.tokenise import RowEncoder

REJECTED = {"rejected_ids": "input_ids", "rejected_labels": "labels"}
"""The columns of the rejected answer, and those of the chosen one that they stand beside."""


class PreferenceEncoder(RowEncoder):
    """Encodes both answers of a row as prompts with completions, or as conversations, are encoded by themselves."""

    @property
    def columns(self) -> list[str]:
        return ["input_ids", "labels", *REJECTED]

    def _lack(self, row: RawRow) -> str | None:
        return "empty" if row["chosen"] is None or row["rejected"] is None else None

    def _encode(self, rows: list[RawRow], counts: RowCounts) -> list[RawRow]:
        if self.kind == "chat-preference":
            pairs = [pair for row in rows for pair in self._conversations(row, counts)]
        else:
            sides = ("chosen", "rejected")
            chosen, rejected = (self._continuations([{**row, "target": row[side]} for row in rows]) for side in sides)
            pairs = list(zip(chosen, rejected, strict=True))
        return [joined for pair in pairs for joined in self._joined(pair, counts)]

    def _conversations(self, row: RawRow, counts: RowCounts) -> list[tuple[RawRow, RawRow]]:
        """Both conversations of a row, or nothing where one of them cannot be rendered, which is counted."""
        found = RowCounts()
        chosen, rejected = (self._tolerant({**row, "messages": row[side]}, found) for side in ("chosen", "rejected"))
        for reason, (*_, first) in found.left.items():
            counts.leave_out(reason, first)
            return []
        if len(chosen) != 1 or len(rejected) != 1:
            several = f"{row['where']}: an answer has several turns, and the chat template changes earlier ones"
            counts.leave_out("template", several)
            return []
        return [(chosen[0], rejected[0])]

    def _joined(self, pair: tuple[RawRow, RawRow], counts: RowCounts) -> list[RawRow]:
        """One row of both answers, cut to the limit; none where they do not differ within it."""
        limit = self.source_limit
        is_cut = any(len(row["input_ids"]) > limit for row in pair)
        counts.cut += is_cut
        counts.cut_source += is_cut
        chosen, rejected = ({name: row[name][:limit] for name in ("input_ids", "labels")} for row in pair)
        learned = [any(label != IGNORED for label in row["labels"][1:]) for row in (chosen, rejected)]
        if not all(learned) or chosen == rejected:
            counts.leave_out("no_loss", pair[0]["where"])
            return []
        return [chosen | {name: rejected[beside] for name, beside in REJECTED.items()}]


class PreferenceCollator(PaddingCollator):
    """Pads both answers of each row: tensors [2 x batch, length], a chosen answer before the rejected one."""

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return super().__call__([side for row in rows for side in sides(row)])


def sides(row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The chosen and the rejected answer of a row, each as a row of its own."""
    chosen = {beside: row[beside] for beside in REJECTED.values()}
    return chosen, {beside: row[name] for name, beside in REJECTED.items()}
