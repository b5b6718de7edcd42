"""What the data of a run comes to: samples and batches, and what of it is left out, cut, padded or unknown."""

from collections.abc import Iterable
from typing import Any

from dsrun.recipe.preflight.bad_rows import REASONS
from dsrun.recipe.preflight.layouts import columns_in_words
from dsrun.recipe.preflight.splits import SPLITS
from dsrun.train.base.console import SHOWN_PADDING
from dsrun.train.data.batches import FILLER, FILLER_LENGTH
from dsrun.train.data.collate import PaddingCollator
from dsrun.train.data.counts import FIX, SOME
from dsrun.train.data.data_request import PreparedData
from dsrun.train.data.encoding.preferences import PreferenceCollator
from dsrun.train.data.mixture import sets_of, side_lengths

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
    rows = [("data", data.origin), *_unread(facts["splits"])]
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


def _unread(splits: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The columns that nothing reads; splits and sets with the same ones share a line."""
    named: dict[str, list[str]] = {}
    for each in splits:
        if each["unread"]:
            named.setdefault(columns_in_words(each["unread"]), []).append(each["name"])
    return [("not read", f"{', '.join(names)}: {columns}") for columns, names in named.items()]


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
