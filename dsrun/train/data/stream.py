"""Rows tokenised while training, for data larger than the disk. The order is that of the source, at every start, and a
reader can begin where another one stopped without reading what lies before."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import pyarrow as pa
from datasets import Dataset

from dsrun.train.data.build import NORMAL, Job, encoder_for, layout_of, normal_row
from dsrun.train.data.layouts import Layout
from dsrun.train.data.readers import Mark
from dsrun.train.data.sources import FileSource, Source, TableSource
from dsrun.train.data.tokenise import Row, RowEncoder

# Rows tokenised at a time: fewer than in a map over everything, as the first batch is waited for. It bounds
# too what is read twice when a reader goes on where another one stopped.
_BATCH = 100

State = dict[str, Any]
"""Where a reader is, as plain JSON values; what is in it concerns only who made it."""


@dataclass(frozen=True)
class RowStream:
    """Prepared rows {"input_ids", "labels"} in the order of the source, at most `limit`, read as often as one likes.
    With `block_size` documents are joined and cut into blocks."""

    source: Source
    layout: Layout
    encoder: RowEncoder
    block_size: int | None = None
    limit: int | None = None

    def start(self, state: State | None = None) -> Reader:
        """A reader of the first row, or of the row after those that a reader with this state gave."""
        return Reader(self, state or {})

    def __iter__(self) -> Reader:
        return self.start()


class Reader:
    """An iterator over a RowStream. `count` rows lie before the next one."""

    def __init__(self, stream: RowStream, state: State) -> None:
        self.count: int = state.get("count", 0)
        self._limit = stream.limit
        rows = EncodedRows(stream, state.get("rows", {}))
        self._rows = rows if stream.block_size is None else Blocks(rows, stream.block_size, state)

    def __iter__(self) -> Reader:
        return self

    def __next__(self) -> Row:
        if self._limit is not None and self.count >= self._limit:
            raise StopIteration
        row = next(self._rows)
        self.count += 1
        return row

    def state(self) -> State:
        """Where this reader is: `RowStream.start` goes on from there, in any process."""
        rows = self._rows
        inner = rows.state() if isinstance(rows, Blocks) else {"rows": rows.state()}
        return {"count": self.count, **inner}


class EncodedRows:
    """Rows of a source tokenised a batch at a time. The state: the source's before the batch, and how many rows of the
    batch were taken."""

    def __init__(self, stream: RowStream, state: State) -> None:
        self._encoder = stream.encoder
        source, layout, place = stream.source, stream.layout, state.get("source")
        self._raw = (
            _FileRows(source, layout, place) if isinstance(source, FileSource) else _TableRows(source, layout, place)
        )
        self._read: int = state.get("read", 0)
        self._before = state.get("source"), self._read
        self._ready: deque[Row] = deque()
        self._taken = 0
        for _ in range(state.get("taken", 0)):
            next(self)

    def __next__(self) -> Row:
        while not self._ready:
            self._fetch()
        self._taken += 1
        return self._ready.popleft()

    def state(self) -> State:
        source, read = self._before if self._ready else (self._raw.state(), self._read)
        return {"source": source, "read": read, "taken": self._taken if self._ready else 0}

    def _fetch(self) -> None:
        self._before, self._taken = (self._raw.state(), self._read), 0
        rows = list(islice(self._raw, _BATCH))
        if not rows:
            raise StopIteration
        indices = range(self._read, self._read + len(rows))
        self._read += len(rows)
        encoded = self._encoder(self._raw.columns(rows), indices)
        names = list(encoded)
        self._ready.extend(dict(zip(names, values, strict=True)) for values in zip(*encoded.values(), strict=True))


@dataclass
class _Document:
    ids: list[int]
    used: int
    before: State


class Blocks:
    """Documents joined and cut; the last block may be short. The state: that of the rows before the document in which
    the next block begins, and how many of that document's tokens are used."""

    def __init__(self, rows: EncodedRows, block_size: int, state: State) -> None:
        self._rows = rows
        self._size = block_size
        self._documents: deque[_Document] = deque()
        self._there = 0
        if state.get("used"):
            self._fetch(state["used"])

    def __next__(self) -> Row:
        while self._there < self._size and self._fetch():
            pass
        if not self._there:
            raise StopIteration
        ids: list[int] = []
        while self._documents and len(ids) < self._size:
            document = self._documents[0]
            part = document.ids[document.used : document.used + self._size - len(ids)]
            ids += part
            document.used += len(part)
            if document.used == len(document.ids):
                self._documents.popleft()
        self._there -= len(ids)
        return {"input_ids": ids, "labels": list(ids)}

    def state(self) -> State:
        if not self._documents:
            return {"rows": self._rows.state(), "used": 0}
        return {"rows": self._documents[0].before, "used": self._documents[0].used}

    def _fetch(self, used: int = 0) -> bool:
        before = self._rows.state()
        try:
            ids = next(self._rows)["input_ids"]
        except StopIteration:
            return False
        if len(ids) > used:
            self._documents.append(_Document(ids, used, before))
            self._there += len(ids) - used
        return True


class _FileRows:
    """Rows of files in normal form; the state is the place in them."""

    def __init__(self, source: FileSource, layout: Layout, state: Any) -> None:
        self._layout = layout
        self._place = (state[0], Mark(*state[1])) if state else (0, Mark())
        self._rows = source.rows_from(self._place)

    def __iter__(self) -> _FileRows:
        return self

    def __next__(self) -> Row:
        self._place, where, row = next(self._rows)
        return normal_row(self._layout, where, row)

    def state(self) -> Any:
        return [self._place[0], list(self._place[1])]

    def columns(self, rows: list[Row]) -> dict[str, list[Any]]:
        """Of the same types as prepared data, or refused as there."""
        return pa.RecordBatch.from_pylist(rows, NORMAL[self._layout.kind]).to_pydict()


class _TableRows:
    """Rows of a saved dataset, from any row on, or of a streamed one of the Hub, which keeps its own place."""

    def __init__(self, source: TableSource, layout: Layout, state: Any) -> None:
        self._used = list(layout.used)
        # A view of its own: a streamed table keeps its place in itself.
        self._table = source.table.select_columns(self._used)
        self._number = 0
        if isinstance(self._table, Dataset):
            self._number = state or 0
            rest = range(self._number, len(self._table))
            # datasets 5.2 refuses an empty range behind the last row.
            self._rows = iter(self._table.select(rest) if rest else ())
            return
        if state:
            self._table.load_state_dict(state)
        self._rows = iter(self._table)

    def __iter__(self) -> _TableRows:
        return self

    def __next__(self) -> Row:
        row = next(self._rows)
        self._number += 1
        return row

    def state(self) -> Any:
        return self._number if isinstance(self._table, Dataset) else self._table.state_dict()

    def columns(self, rows: list[Row]) -> dict[str, list[Any]]:
        return {name: [row.get(name) for row in rows] for name in self._used}


def stream(job: Job, source: Source, tokenizer: Any, *, vocab_size: int) -> tuple[RowStream, list[str]]:
    part = job.parts[0]
    layout, _ = layout_of(job, source, tokenizer)
    encoder = replace(encoder_for(job, part, source, layout, tokenizer), vocab_size=vocab_size)
    block_size = job.source_limit if layout.kind == "text" else None
    rows = RowStream(source, layout, encoder, block_size, part.samples)
    return rows, [layout.notice] if layout.notice else []


def materialise(source: TableSource, samples: int | None) -> TableSource:
    """The rows of a streamed split, all fetched: evaluation goes over the same rows many times and needs their
    number."""
    table = source.table if samples is None else source.table.take(samples)
    return TableSource(Dataset.from_list(list(table)), source.where)
