"""Rows of a format of your own: questions with several rated answers become pairs, and bad answers are left out.

{"question": "…", "answers": [{"text": "…", "rating": 4}, {"text": "…", "rating": 1}]}

dsrun train --model t5-small --train-file questions.jsonl --plugin rated_answers:RatedAnswers
"""

from __future__ import annotations

from typing import Any

from dsrun.plugin import Plugin


class RatedAnswers(Plugin):
    """All good answers are trained on; the best one alone is what an evaluation compares with."""

    api_version = 1
    least = 3

    def rows(self, row: dict[str, Any], split: str) -> list[dict[str, Any]]:
        answers = sorted(row["answers"], key=lambda answer: answer["rating"], reverse=True)
        good = [answer["text"] for answer in answers if answer["rating"] >= self.least]
        kept = good if split == "train" else good[:1]
        return [{"source": row["question"], "target": text} for text in kept]
