"""Samples as they are trained on, for the user's eyes: what the model reads, and what of it is learned."""

from itertools import groupby, islice
from operator import itemgetter
from typing import Any

from dsrun.train.base.labels import IGNORED
from dsrun.train.data.data_request import PreparedData
from dsrun.train.data.encoding.preferences import sides
from dsrun.train.data.mixture import DataMixture

SAMPLES = 2
LONGEST_PART = 200
MOST_PARTS = 6

PreviewParts = list[tuple[str, bool]]
"""The parts of a sample in their order: a text, and whether it is learned."""


def preview(data: PreparedData, tokenizer: Any) -> list[PreviewParts]:
    """The first sample of the training data and one from its middle; of a stream the first two, of a mixture the first
    of each set."""
    rows: Any = data.train
    if rows is None:
        return []
    if isinstance(rows, DataMixture):
        chosen = [each[0] for each in rows.sets.values()]
    elif hasattr(rows, "__len__"):
        chosen = [rows[k] for k in sorted({0, len(rows) // 2})]
    else:
        chosen = list(islice(iter(rows), SAMPLES))
    return [parts for row in chosen for parts in _samples_of(row, tokenizer, seq2seq=data.collator.seq2seq)]


def _samples_of(row: dict[str, Any], tokenizer: Any, *, seq2seq: bool) -> list[PreviewParts]:
    """What a row shows: its sample, or the two answers of a preference."""
    if "rejected_ids" not in row:
        return [parts_of(row, tokenizer, seq2seq=seq2seq)]
    named = zip(("chosen: ", "rejected: "), sides(row), strict=True)
    return [[(name, False), *parts_of(side, tokenizer, seq2seq=False)] for name, side in named]


def parts_of(row: dict[str, Any], tokenizer: Any, *, seq2seq: bool) -> PreviewParts:
    """The parts of a prepared row, decoded with their special tokens; long ones are shortened, early ones left out."""
    if seq2seq:
        labels = [label for label in row["labels"] if label != IGNORED]
        source, target = (_shortened(tokenizer.decode(ids)) for ids in (row["input_ids"], labels))
        return [(f"{source} -> ", False), (target, True)]
    # The label of the first token is never predicted.
    learned = [False, *(label != IGNORED for label in row["labels"][1:])]
    runs = groupby(zip(row["input_ids"], learned, strict=True), key=itemgetter(1))
    parts = [(tokenizer.decode([token for token, _ in run]), mark) for mark, run in runs]
    shown = [(_shortened(text, end=mark), mark) for text, mark in parts[-MOST_PARTS:]]
    return [("… ", False), *shown] if len(parts) > MOST_PARTS else shown


def _shortened(text: str, *, end: bool = True) -> str:
    """A text on one line: its beginning where `end` may be left out, else its last characters."""
    line = text.replace("\n", "↵")
    if len(line) <= LONGEST_PART:
        return line
    return line[:LONGEST_PART] + " …" if end else "… " + line[-LONGEST_PART:]
