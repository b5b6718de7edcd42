"""What the data of a run comes to: samples and batches, and what of it is left out, cut, padded or unknown; and samples
as they are trained on, for the user's eyes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

from dsrun.recipe.preflight.bad_rows import REASONS
from dsrun.recipe.preflight.layouts import columns_in_words
from dsrun.recipe.preflight.splits import SPLITS
from dsrun.train.base.console import SHOWN_PADDING
from dsrun.train.base.labels import IGNORED
from dsrun.train.data.batches import FILLER, FILLER_LENGTH
from dsrun.train.data.collate import PaddingCollator
from dsrun.train.data.counts import FIX, SOME
from dsrun.train.data.data_request import PreparedData
from dsrun.train.data.encoding.preferences import PreferenceCollator, sides
from dsrun.train.data.mixture import DataMixture, sets_of, side_lengths

# Many more samples take time, and say the same.
_MEASURED = 10_000


def data_facts(
    data: PreparedData, *, global_batch: int | None = None, drop_last: bool = False, padding: float | None = None
) -> dict[str, Any]:
    """For run.json, as docs/run-folder.md describes it; None is what is not known."""
    count = len(data.train) if data.train is not None and hasattr(data.train, "__len__") else None
    steps = None
    if count is not None and global_batch:
        steps = count // global_batch if drop_last else -(-count // global_batch)
    known = {"samples": count, "global_batch": global_batch, "steps_per_epoch": steps, "padding": padding}
    named = [(split, sets_of(rows)) for split in SPLITS if (rows := getattr(data, split)) is not None]
    return {**known, "splits": [_split(data, name, split, rows[name]) for split, rows in named for name in rows]}


def _split(data: PreparedData, name: str, split: str, rows: Any) -> dict[str, Any]:
    key = f"{name} {split}".strip()
    counts = data.counts.get(key)
    left = {reason: {"rows": n, "first": first} for reason, (n, _, first) in counts.left.items()} if counts else None
    return {
        "name": key,
        "unread": data.unread.get(key, []),
        "rows": counts.rows if counts else None,
        "samples": len(rows) if hasattr(rows, "__len__") else None,
        "dropped": left,
        "truncated": counts.cut / max(counts.encoded, 1) if counts and counts.limits else None,
        "unknown": {side: bad / n for side, (n, bad) in counts.words.items() if n} if counts else {},
    }


def data_rows(
    data: PreparedData, facts: dict[str, Any], *, fewer: str | None = None, even: str | None = None
) -> list[tuple[str, str]]:
    """The same for people, where there is something to say: names and values. `fewer` and `even` are what makes batches
    smaller and less padded."""
    rows = [("data", data.origin)]
    # Splits and sets with the same columns that nothing reads share a line.
    unread: dict[str, list[str]] = {}
    for each in facts["splits"]:
        if each["unread"]:
            unread.setdefault(columns_in_words(each["unread"]), []).append(each["name"])
    rows += [("not read", f"{', '.join(names)}: {columns}") for columns, names in unread.items()]
    for each in facts["splits"]:
        if found := each["dropped"]:
            parts = [f"{it['rows']:,} {REASONS[why]} (the first: {it['first']})" for why, it in found.items()]
            whole = sum(it["rows"] for it in found.values())
            rows.append(("dropped", f"{each['name']}: {whole:,} of {each['rows']:,} rows: {', '.join(parts)}"))
    count, batch, padding = facts["samples"], facts["global_batch"], facts["padding"] or 0
    if data.train is not None and count is None:
        rows.append(("samples", "streamed: how many there are, are left out or cut, is unknown"))
    elif batch and count is not None and count < batch:
        lower = f" (lower {fewer})" if fewer else ""
        rows.append(("samples", f"{count:,}, fewer than one batch of {batch:,}: a step is a whole epoch{lower}"))
    elif batch and count is not None:
        steps = facts["steps_per_epoch"]
        rows.append(("samples", f"{count:,} in batches of {batch:,}: {steps:,} step{'s'[: steps != 1]} an epoch"))
    for each in facts["splits"]:
        if each["truncated"]:
            counts = data.counts[each["name"]]
            flags = [flag for _, flag in counts.reached if flag]
            longer = f" (raise {' and '.join(flags)})" if flags else ""
            rows.append(("truncated", f"{each['name']}: {counts.truncation()}, {percent(each['truncated'])}{longer}"))
    # A step that is a whole epoch is filled up, as the line above says.
    if padding >= SHOWN_PADDING and count >= batch:
        rows.append(("padding", f"{percent(padding)} of what the batches hold{f' ({even})' if even else ''}"))
    for each in facts["splits"]:
        if shares := [f"{percent(share)} of its {side} tokens" for side, share in each["unknown"].items() if share]:
            fix = f" ({FIX})" if max(each["unknown"].values()) >= SOME else ""
            rows.append(("unknown", f"{each['name']}: {', '.join(shares)} are unknown to the tokenizer, and lost{fix}"))
    return rows


def percent(share: float) -> str:
    """A share for people: 3.2%, 41%."""
    return f"{100 * share:.0f}%" if share >= 0.095 else f"{100 * share:.2g}%"


def padding_of(batches: Iterable[list[int]], rows: Any, collator: PaddingCollator) -> float | None:
    """The share of the cells of micro batches, lists of samples, that hold no token; None where a plugin makes them."""
    if collator.adjust:
        return None
    pairs = isinstance(collator, PreferenceCollator)
    sides = ("input_ids", "rejected_ids") if pairs else ("input_ids", "labels")
    lengths = side_lengths(rows, both=pairs or collator.seq2seq, sides=sides)
    tokens = cells = seen = 0
    for batch in batches:
        taken = lengths[[number for number in batch if number != FILLER]]
        least = FILLER_LENGTH if FILLER in batch else 0
        # The answers of a pair are rows of one tensor.
        columns = [taken.ravel(), taken.ravel()] if pairs else taken.T
        fixed = (collator.length, collator.length if pairs else collator.target_length)
        widths = (collator.width(int(each.max(initial=least)), to) for each, to in zip(columns, fixed, strict=False))
        tokens, cells = tokens + int(taken.sum()), cells + len(batch) * sum(widths)
        seen += len(batch)
        if seen >= _MEASURED:
            break
    return 1 - tokens / cells if cells else None


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
    cut, full = (_sides(each, seq2seq=seq2seq) for each in (row, whole or row))
    both = zip((kept for _, kept, _ in cut), full, strict=True)
    return [ShownSample(side, ids, _states(kept, ids, learned)) for kept, (side, ids, learned) in both]


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
