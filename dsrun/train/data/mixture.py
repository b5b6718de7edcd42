"""Several data sets as one: each prepared by itself, then joined."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow.compute as pc
from torch.utils.data import ConcatDataset

from dsrun.recipe.mixture import epoch_counts, naming, specs_of, trains
from dsrun.recipe.preflight.splits import SPLITS
from dsrun.system.terminal.display import NotePrinter, counted
from dsrun.train.base.refusals import refuse
from dsrun.train.data.batches import MixtureShares
from dsrun.train.data.build_splits import BuildProgress
from dsrun.train.data.data_request import DataRequest, PreparedData
from dsrun.train.data.encoding.tokenizer import pad_with_end
from dsrun.train.data.prepare import prepare_data


class DataMixture(ConcatDataset):
    """The rows of several sets one behind the other. `shares` says what of them an epoch takes; None: all, once."""

    def __init__(self, sets: Mapping[str, Any], shares: MixtureShares | None = None) -> None:
        super().__init__([*sets.values()])
        self.sets = dict(sets)
        self.shares = shares

    def lengths(self) -> np.ndarray:
        return np.concatenate([token_lengths(rows) for rows in self.datasets])


def token_lengths(rows: Any) -> np.ndarray:
    """Tokens per sample, of the longer side where there are two; int64 [samples]."""
    if hasattr(rows, "lengths"):
        return np.asarray(rows.lengths())
    columns = [name for name in rows.column_names if name.endswith("_ids")]
    return np.asarray(_list_lengths(rows, columns).max(axis=1))


def side_lengths(rows: Any, *, both: bool, sides: Sequence[str] = ("input_ids", "labels")) -> np.ndarray:
    """Tokens per sample, int64 [samples, sides]: with `both` those of source and target."""
    if isinstance(rows, DataMixture):
        return np.concatenate([side_lengths(each, both=both, sides=sides) for each in rows.sets.values()])
    if not both or hasattr(rows, "lengths"):
        return token_lengths(rows)[:, None].astype(np.int64)
    return _list_lengths(rows, sides)


def _list_lengths(rows: Any, columns: Sequence[str]) -> np.ndarray:
    # Arrow keeps lists as offsets into their items, so that the items are not read.
    table = rows.with_format("arrow")[:]
    return np.stack([pc.list_value_length(table[name]).to_numpy() for name in columns], axis=1).astype(np.int64)


def sets_of(rows: Any) -> dict[str, Any]:
    """The sets of a mixture by name; other data under ""."""
    return rows.sets if isinstance(rows, DataMixture) else {"": rows}


def prepare_mixture(
    request: DataRequest, tokenizer: Any, *, notify: NotePrinter, progress: BuildProgress
) -> PreparedData:
    """Prepare each set of the mixture that the request's spec names, as `prepare_data` prepares one, and join them."""
    mix = request.spec.mix or {}
    padding = pad_with_end(tokenizer, request.task)
    prepared = {}
    for name, spec in specs_of(request.spec).items():
        each = replace(request, spec=spec, required=frozenset(), is_part=True)
        with naming(name):
            prepared[name] = prepare_data(each, tokenizer, notify=notify, progress=progress)
    splits = {
        split: {name: rows for name, data in prepared.items() if (rows := getattr(data, split)) is not None}
        for split in SPLITS
    }
    _check(request, splits, mix)
    sizes = {name: len(rows) for name, rows in splits["train"].items()}
    counts = epoch_counts(mix, sizes)
    shares = None if counts == sizes else MixtureShares(tuple(sizes.values()), tuple(counts.values()))
    found = {split: DataMixture(sets, shares if split == "train" else None) for split, sets in splits.items() if sets}
    others = [name for name in sizes if splits["validation"] and name not in splits["validation"]]
    not_evaluated = f"not evaluated, as they have no validation data: {', '.join(others)}" if others else None
    return PreparedData(
        **{split: found.get(split) for split in SPLITS},
        counts={f"{name} {split}": each for name, data in prepared.items() for split, each in data.counts.items()},
        unread={f"{name} {split}": each for name, data in prepared.items() for split, each in data.unread.items()},
        notices=tuple(filter(None, (padding, *_notices(prepared), *_shares(sizes, counts), not_evaluated))),
        origin=f"{len(prepared)} sets: {', '.join(f'{len(rows):,} {split}' for split, rows in found.items())}",
        train_fingerprint=_fingerprint({name: prepared[name] for name in sizes}, counts),
        collator=next(iter(prepared.values())).collator,
    )


def _check(request: DataRequest, splits: Mapping[str, Mapping[str, Any]], mix: Mapping[str, Any]) -> None:
    """Raise UsageError for a split that no set has, and for a set that should be trained on and cannot."""
    for split in SPLITS:
        needed = split in request.required or (split != "validation" and split in request.splits)
        refuse("mixture", needed=needed, split=split, there=splits[split])
    for name, options in mix["sets"].items():
        lacks_training = "train" in request.splits and trains(options) and name not in splits["train"]
        is_evaluated = any(name in sets for sets in splits.values())
        refuse("set", name=name, lacks_training=lacks_training, options=options, is_evaluated=is_evaluated)


def _notices(prepared: Mapping[str, PreparedData]) -> list[str]:
    """What is worth knowing about the sets; what holds for all of them without their names."""
    names: dict[str, list[str]] = {}
    for name, data in prepared.items():
        for notice in data.notices:
            names.setdefault(notice, []).append(name)
    return [
        notice if len(found) == len(prepared) > 1 else f"{', '.join(found)}: {notice}"
        for notice, found in names.items()
    ]


def _shares(sizes: Mapping[str, int], counts: Mapping[str, int]) -> list[str]:
    """One line for each set that is trained on: how much of an epoch it is."""
    total = sum(counts.values())
    lines = []
    for name, size in sizes.items():
        often = "" if counts[name] == size else f": {counts[name]:,} an epoch, {counts[name] / size:.3g} passes"
        lines.append(f"{name}: {counted(size, 'sample')}, {100 * counts[name] / total:.3g}% of an epoch{often}")
    return lines


def _fingerprint(prepared: Mapping[str, PreparedData], counts: Mapping[str, int]) -> str | None:
    parts = [(data.train_fingerprint, counts[name]) for name, data in prepared.items()]
    if not parts or any(fingerprint is None for fingerprint, _ in parts):
        return None
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def preparation_of(request: DataRequest) -> Callable[..., PreparedData]:
    """What prepares the data of this request."""
    return prepare_mixture if request.spec.mix else prepare_data
