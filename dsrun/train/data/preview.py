"""Samples as they are trained on, for the user's eyes: what the model reads, learns, and does not see."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

from dsrun.train.base.labels import IGNORED
from dsrun.train.data.data_request import PreparedData
from dsrun.train.data.encoding.preferences import sides
from dsrun.train.data.mixture import DataMixture

LONGEST_PART = 200
MOST_PARTS = 6
# A character has at most four bytes, and tokens may have one each.
_MOST_BYTES = 4

STATES = ("learned", "read", "cut", "lost")
"""Of tokens: `cut` off at the limit; `lost`: cut off, and learned without the limit."""
PreviewParts = list[tuple[str, str]]
"""The parts of a sample in their order: a text, and its state."""


@dataclass(frozen=True)
class ShownSample:
    """A sample or one side of it, with the state of each token."""

    side: str
    ids: list[int]
    states: list[str]

    def tokens(self, tokenizer: Any) -> list[dict[str, Any]]:
        """Each token, as --format json has it."""
        texts = texts_of(self.ids, tokenizer)
        columns = zip(self.ids, texts, self.states, strict=True)
        return [{"position": k, "id": each[0], "text": each[1], "state": each[2]} for k, each in enumerate(columns)]

    def parts(self, tokenizer: Any) -> PreviewParts:
        """Texts with special tokens, on one line; long ones are shortened, early ones left out."""
        runs = groupby(zip(self.ids, self.states, strict=True), key=itemgetter(1))
        parts = [(tokenizer.decode([token for token, _ in run]), state) for state, run in runs]
        before = (f"{self.side}: " if self.side else "") + ("… " if len(parts) > MOST_PARTS else "")
        shortened = [(_shortened(text, end=state == "learned"), state) for text, state in parts[-MOST_PARTS:]]
        return [(before, "read"), *shortened] if before else shortened


def shown(row: dict[str, Any], *, seq2seq: bool, whole: dict[str, Any] | None = None) -> list[ShownSample]:
    """What a prepared row shows: its sample, source and target, or both answers of a preference. `whole` is the row
    before it was cut."""
    return [
        ShownSample(side, ids, _states(kept, ids, learned))
        for (_, kept, _), (side, ids, learned) in zip(
            _sides(row, seq2seq=seq2seq), _sides(whole or row, seq2seq=seq2seq), strict=True
        )
    ]


def blocks_of(ids: list[int], before: int, size: int) -> list[ShownSample]:
    """What of a document is in which block of joined text, where so many tokens are before it. The first label of a
    block is never predicted."""
    found: list[ShownSample] = []
    while ids:
        block, at = divmod(before, size)
        part, ids = ids[: size - at], ids[size - at :]
        states = ["learned" if at + k else "read" for k in range(len(part))]
        found.append(ShownSample(f"block {block + 1}, from token {at + 1} on", part, states))
        before += len(part)
    return found


def _sides(row: dict[str, Any], *, seq2seq: bool) -> list[tuple[str, list[int], list[bool]]]:
    """Names, token ids, and which of these are learned."""
    if "rejected_ids" in row:
        named = zip(("chosen", "rejected"), sides(row), strict=True)
        return [(side, *_sides(each, seq2seq=False)[0][1:]) for side, each in named]
    ids, labels = ([int(each) for each in row[name]] for name in ("input_ids", "labels"))
    if seq2seq:
        target = [label for label in labels if label != IGNORED]
        return [("source", ids, [False] * len(ids)), ("target", target, [True] * len(target))]
    # The label of the first token is never predicted.
    return [("", ids, [False, *(label != IGNORED for label in labels[1:])])]


def _states(kept: list[int], whole: list[int], learned: list[bool]) -> list[str]:
    """What is cut lies before the end tokens, which a tokenizer puts behind what it has cut."""
    start = next((k for k, pair in enumerate(zip(kept, whole, strict=False)) if pair[0] != pair[1]), len(kept))
    stop = start + len(whole) - len(kept)
    known = {(False, False): "read", (False, True): "learned", (True, False): "cut", (True, True): "lost"}
    return [known[start <= k < stop, mark] for k, mark in enumerate(learned)]


def texts_of(ids: Sequence[int], tokenizer: Any) -> list[str]:
    """The text of each token, with the space before it; a character that takes several tokens is with the last."""
    texts: list[str] = []
    before: list[int] = []
    waiting: list[int] = []
    for number, token in enumerate(ids, 1):
        waiting = [*waiting, token]
        text = tokenizer.decode(before + waiting)[len(tokenizer.decode(before)) if before else 0 :]
        if text.endswith("\N{REPLACEMENT CHARACTER}") and number < len(ids) and len(waiting) < _MOST_BYTES:
            texts.append("")
            continue
        texts.append(text)
        before, waiting = [token], []
    return texts


def preview(data: PreparedData, tokenizer: Any, count: int = 2) -> list[PreviewParts]:
    """So many samples of the training data, from its first on at equal distances; of a stream its first, of a mixture
    at least one of each set."""
    rows = data.train
    if rows is None or not count:
        return []
    tables = [*rows.sets.values()] if isinstance(rows, DataMixture) else [rows]
    chosen = [row for table in tables for row in _spread(table, -(-count // len(tables)))]
    seq2seq = data.collator.seq2seq
    return [each.parts(tokenizer) for row in chosen for each in shown(row, seq2seq=seq2seq)]


def _spread(rows: Any, count: int) -> list[dict[str, Any]]:
    if not hasattr(rows, "__len__"):
        return list(islice(iter(rows), count))
    return [rows[k] for k in sorted({len(rows) * part // count for part in range(count)})]


def _shortened(text: str, *, end: bool = True) -> str:
    """A text on one line: its beginning where `end` may be left out, else its last characters."""
    line = text.replace("\n", "↵")
    if len(line) <= LONGEST_PART:
        return line
    return line[:LONGEST_PART] + " …" if end else "… " + line[-LONGEST_PART:]
