"""Rows tokenised while training, for data larger than the disk. The order is that of the source, at every
start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset, Features, IterableDataset, Sequence, Value

from dsrun.train.data.blocks import cut
from dsrun.train.data.build import Job, encoder_for, features_of, layout_of, normal_features, normal_rows
from dsrun.train.data.layouts import Layout
from dsrun.train.data.sources import FileSource, Source, TableSource

# Rows tokenised at a time: fewer than in a map over everything, as the first batch is waited for.
_BATCH = 100


def stream(job: Job, source: Source, tokenizer: Any, *, vocab_size: int) -> tuple[IterableDataset, list[str]]:
    """A stream of prepared rows of the job's first part, and notices.

    Rows hold input_ids and labels; documents are cut into blocks across their ends. Reading it twice gives
    the same rows in the same order; several files are shards that data loader workers may share.

    Raises:
        UsageError: the data is empty or its columns mean nothing known; ids outside the vocabulary when they
            come.
    """
    part = job.parts[0]
    layout, columns = layout_of(job, source, tokenizer)
    encoder = replace(encoder_for(job, part, source, layout, tokenizer), vocab_size=vocab_size)
    raw = _raw(source, layout)
    rows = raw.map(
        encoder,
        batched=True,
        batch_size=_BATCH,
        with_indices=True,
        remove_columns=list(raw.column_names or columns),
        features=features_of(encoder),
    )
    if layout.kind == "text":
        rows = _blocks(rows, job.source_limit)
    if part.samples:
        rows = rows.take(part.samples)
    return rows, [layout.notice] if layout.notice else []


def materialise(source: TableSource, samples: int | None) -> TableSource:
    """The rows of a streamed split, all fetched: evaluation goes over the same rows many times and needs
    their number.
    """
    table = source.table if samples is None else source.table.take(samples)
    return TableSource(Dataset.from_list(list(table)), source.where)


def _raw(source: Source, layout: Layout) -> IterableDataset:
    if isinstance(source, FileSource):
        return IterableDataset.from_generator(
            _file_rows,
            features=normal_features(layout),
            # A list makes shards of its items; everything else is given to each.
            gen_kwargs={"paths": [str(path) for path in source.paths], "source": source, "layout": layout},
        )
    table = source.table
    if isinstance(table, datasets.Dataset):
        table = table.to_iterable_dataset()
    return table.select_columns(list(layout.used))


def _file_rows(paths: list[str], source: FileSource, layout: Layout) -> Iterator[dict[str, Any]]:
    yield from normal_rows(replace(source, paths=tuple(Path(path) for path in paths)), layout)


def _blocks(rows: IterableDataset, block_size: int) -> IterableDataset:
    ids = Sequence(Value("int32"))
    return IterableDataset.from_generator(
        _cut_rows,
        features=Features({"input_ids": ids, "labels": ids}),
        gen_kwargs={"rows": rows, "block_size": block_size},
    )


def _cut_rows(rows: IterableDataset, block_size: int) -> Iterator[dict[str, list[int]]]:
    yield from cut((row["input_ids"] for row in rows), block_size)
