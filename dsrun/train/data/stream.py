"""Rows tokenised while training, for data larger than the disk. The order is that of the source, at every start, and a
reader can begin where another one stopped without reading what lies before."""

from collections import deque
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, IterableDataset

from dsrun.recipe.preflight.layouts import RowLayout
from dsrun.recipe.rows.readers import RawRow, ReadPosition
from dsrun.train.data.build_splits import NORMAL, BuildSpec, encoder_for, layout_of, normal_row, notices_of
from dsrun.train.data.encoding.tokenise import RowEncoder
from dsrun.train.data.reading.sources import AnySource, DataSource, FileSource, PluginSource, TableSource

# Rows tokenised at a time: fewer than in a map over everything, as the first batch is waited for. It bounds
# too what is read twice when a reader goes on where another one stopped.
_BATCH = 100

StreamState = dict[str, Any]
"""Where a reader is, as plain JSON values; what is in it concerns only who made it."""
_Batches = Iterator[tuple[dict[str, list[Any]], int, Any]]
"""Columns of raw rows, their number, and the place in the source after them."""
_RawBatches = Iterator[tuple[list[tuple[str, RawRow]], Any]]
"""Rows, each with where it is for an error, and the place in the source after them."""


@dataclass(frozen=True)
class RowStream:
    """Prepared rows {"input_ids", "labels"} in the order of the source, at most `limit`, read as often as one likes.
    With `block_size` documents are joined and cut into blocks."""

    source: AnySource
    layout: RowLayout
    encoder: RowEncoder
    block_size: int | None = None
    limit: int | None = None

    @property
    def fingerprint(self) -> str | None:
        """Of files alone, and of their sizes, beginnings and ends: all else is read only when it is trained on."""
        outline = None if isinstance(self.source, TableSource) else self.source.outline()
        return outline and f"{outline}, at most {self.limit} in blocks of {self.block_size}"

    def start(self, state: StreamState | None = None) -> "RowReader":
        """A reader of the first row, or of the row after those that a reader with this state gave."""
        return RowReader(self, state or {})

    def __iter__(self) -> "RowReader":
        return self.start()


class RowReader(Iterator[RawRow]):
    """An iterator over a RowStream. `count` rows lie before the next one."""

    def __init__(self, stream: RowStream, state: StreamState) -> None:
        self.count: int = state.get("count", 0)
        self._state = state
        self._limit = stream.limit
        start: StreamState = state.get("rows", {})
        rows = _encoded_rows(stream, start)
        self._rows: Iterator[tuple[RawRow, StreamState]] = (
            ((row, {"rows": after}) for row, after in rows)
            if stream.block_size is None
            else blocks(rows, stream.block_size, start, state.get("used", 0))
        )

    def __next__(self) -> RawRow:
        if self._limit is not None and self.count >= self._limit:
            raise StopIteration
        row, self._state = next(self._rows)
        self.count += 1
        return row

    def state(self) -> StreamState:
        """Where this reader is: `RowStream.start` goes on from there, in any process."""
        return {**self._state, "count": self.count}


def _encoded_rows(stream: RowStream, state: StreamState) -> Iterator[tuple[RawRow, StreamState]]:
    """Rows of a source tokenised a batch at a time, each with the state after it: the source's before the batch, how
    many rows were read until then, and how many encoded rows of the batch were taken."""
    place, read, taken = state.get("source"), state.get("read", 0), state.get("taken", 0)
    source, layout = stream.source, stream.layout
    if isinstance(source, TableSource):
        batches = _table_rows(source, layout, place)
    else:
        batches = _normal_rows(source, layout, place)
    for columns, count, after in batches:
        encoded = stream.encoder(columns, range(read, read + count))
        rows = [dict(zip(encoded, values, strict=True)) for values in zip(*encoded.values(), strict=True)]
        end = {"source": after, "read": read + count, "taken": 0}
        for number, row in enumerate(rows[taken:], taken + 1):
            yield row, end if number == len(rows) else {"source": place, "read": read, "taken": number}
        place, read, taken = after, read + count, 0


def _normal_rows(source: FileSource | PluginSource, layout: RowLayout, place: Any) -> _Batches:
    """Rows of files or of a plugin in normal form, of the same types as prepared data, or refused as there."""
    inner = source.source if isinstance(source, PluginSource) else source
    batches = _file_batches(inner, place) if isinstance(inner, FileSource) else _table_batches(inner, None, place)
    for rows, after in batches:
        made = rows
        if isinstance(source, PluginSource):
            # A place in the source lies between its own rows, so the rows made of one stay in one batch.
            made = [(where, each) for where, row in rows for each in source.made(where, row)]
        normal = [normal_row(layout, where, row) for where, row in made]
        columns = pa.RecordBatch.from_pylist(normal, NORMAL[layout.kind]).to_pydict()
        yield columns, len(normal), after


def _file_batches(source: FileSource, place: Any) -> _RawBatches:
    rows = source.rows_from((place[0], ReadPosition(*place[1])) if place else (0, ReadPosition()))
    while batch := list(islice(rows, _BATCH)):
        file, mark = batch[-1][0]
        yield [(where, row) for _, where, row in batch], [file, list(mark)]


def _table_rows(source: TableSource, layout: RowLayout, place: Any) -> _Batches:
    for rows, after in _table_batches(source, list(layout.used), place):
        yield {name: [row.get(name) for _, row in rows] for name in layout.used}, len(rows), after


def _table_batches(source: TableSource, columns: list[str] | None, place: Any) -> _RawBatches:
    """Rows of a saved dataset, from any row on, or of a streamed one of the Hub, which keeps its own place."""
    # A view of its own: a streamed table keeps its place in itself.
    names = [name for name in source.table.column_names or () if columns is None or name in columns]
    table = source.table.select_columns(names) if names else copy(source.table)
    number = 0
    if isinstance(table, Dataset):
        number = place or 0
        # datasets 5.2 refuses an empty range behind the last row.
        rows = iter(table.select(range(number, len(table))) if number < len(table) else ())
    else:
        if place:
            table.load_state_dict(place)
        rows = iter(table)
    while batch := list(islice(rows, _BATCH)):
        number += len(batch)
        yield [(source.where, row) for row in batch], number if isinstance(table, Dataset) else table.state_dict()


def blocks(
    rows: Iterator[tuple[RawRow, StreamState]], size: int, start: StreamState, used: int
) -> Iterator[tuple[RawRow, StreamState]]:
    """Documents joined and cut, each block with the state after it: that of the rows before the document in which the
    next block begins, and how many of its tokens are used. The last block may be short. `start` is the state before
    `rows`, of whose first document `used` tokens are used."""
    documents: deque[tuple[list[int], StreamState]] = deque()
    there = -used
    after = start

    def cut() -> tuple[RawRow, StreamState]:
        nonlocal used, there
        ids: list[int] = []
        while documents and len(ids) < size:
            document = documents[0][0]
            part = document[used : used + size - len(ids)]
            ids += np.asarray(part).tolist()
            used += len(part)
            if used >= len(document):
                documents.popleft()
                used = 0
        there -= len(ids)
        return {"input_ids": ids, "labels": list(ids)}, {"rows": documents[0][1] if documents else after, "used": used}

    for row, state in rows:
        documents.append((row["input_ids"], after))
        there += len(row["input_ids"])
        after = state
        while there >= size:
            yield cut()
    if there > 0:
        yield cut()


def stream(
    spec: BuildSpec, source: AnySource, tokenizer: Any, *, vocab_size: int, limit: tuple[float, bool]
) -> tuple[RowStream, list[str], list[str]]:
    """The stream, what the user should know of it, and the columns of its first rows that nothing reads."""
    part = spec.parts[0]
    layout = layout_of(spec, source, tokenizer)
    encoder = encoder_for(spec, part, source, layout, tokenizer)
    encoder = replace(encoder, vocab_size=vocab_size, max_bad=limit[0], force=limit[1])
    block_size = spec.source_limit if layout.kind == "text" else None
    rows = RowStream(source, layout, encoder, block_size, part.samples)
    return rows, notices_of(layout, spec, tokenizer), layout.unread()


def materialise(source: DataSource, samples: int | None) -> DataSource:
    """The rows of a streamed split, all fetched: evaluation goes over the same rows many times and needs their number.
    Other sources as they are."""
    if not isinstance(source, TableSource) or not isinstance(source.table, IterableDataset):
        return source
    table = source.table if samples is None else source.table.take(samples)
    return TableSource(Dataset.from_list(list(table)), source.where)
