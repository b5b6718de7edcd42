"""Making one cache entry: the rows of a source read, brought into normal form, tokenised and written."""

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, Features, Sequence, Value

from dsrun.errors import UsageError
from dsrun.recipe.preflight.layouts import FORMS, LayoutHints, RowLayout, columns_in_words, detect
from dsrun.recipe.rows.normal import normal_or_bad
from dsrun.recipe.rows.readers import RawRow, RawRows, check_columns
from dsrun.system.files import sha256_of
from dsrun.train.base.labels import IGNORED
from dsrun.train.base.refusals import notice_of, refusal, refuse
from dsrun.train.data.cache import CacheMeta, map_rows, quiet
from dsrun.train.data.counts import RowCounts
from dsrun.train.data.encoding.chat import check_template
from dsrun.train.data.encoding.preferences import PreferenceEncoder
from dsrun.train.data.encoding.tokenise import RowEncoder
from dsrun.train.data.reading.sources import AnySource, FileSource, TableSource
from dsrun.train.data.reading.token_format import narrowest
from dsrun.train.data.token_files import flat_chunks, rows_digest, write_tokens

BuildProgress = Callable[[str, int, int], None]

# Fixed, so that the same rows are held out whatever the seed of the run: runs stay comparable, and a model is
# never evaluated on what it was trained on before.
_HOLD_OUT_SEED = 0

_FIRST_ROWS = 1000

_TYPES = {"text": pa.string(), "flag": pa.bool_(), "ids": pa.list_(pa.int64())}
NORMAL = {kind: pa.schema([(name, _TYPES[each]) for name, each in fields.items()]) for kind, fields in FORMS.items()}
"""The fields of each layout's rows in normal form."""


@dataclass(frozen=True)
class SplitPart:
    """One split made from a source; `samples` is the limit that `flag` asked for, `share` which rows of a divided
    source."""

    split: str
    target_limit: int
    keep_text: bool
    flag: str
    samples: int | None = None
    share: str = "all"


@dataclass(frozen=True)
class BuildSpec:
    """What is to be made from a source, apart from the tokenizer; part of the cache's key. `held_out` is the percentage
    of the rows that goes to the part with share "held"."""

    hints: LayoutHints
    source_limit: int
    prefix: str
    parts: tuple[SplitPart, ...]
    held_out: int = 0


def build(
    spec: BuildSpec, source: AnySource, tokenizer: Any, work: Path, *, num_proc: int | None, progress: BuildProgress
) -> CacheMeta:
    """Fill the folder `work`: rows into `work/<split>` (save_to_disk), documents into `work/tokens.bin`, which is cut
    only when it is read. Returns what is in it."""
    layout = layout_of(spec, source, tokenizer)
    scratch = work / "scratch"
    scratch.mkdir()
    builder = _Builder(spec, source, layout, tokenizer, scratch, num_proc, progress)
    meta = builder.documents(work) if layout.kind == "text" else builder.rows(work)
    shutil.rmtree(scratch)
    facts = {"notices": notices_of(layout, spec, tokenizer), "unread": layout.unread(builder.later)}
    return {**meta, "layout": layout.name, **facts}


def notices_of(layout: RowLayout, spec: BuildSpec, tokenizer: Any) -> list[str]:
    """What the user should know of how rows are read."""
    notices = [layout.notice] if layout.notice else []
    if strange := [name for name in spec.hints.ignore_columns if name not in layout.found]:
        there = columns_in_words(layout.found)
        notices.append(f"--ignore-columns: the first rows have no {columns_in_words(strange)}; columns found: {there}")
    is_plain = layout.kind in ("pair", "preference") and spec.hints.task == "causal-lm"
    if is_plain and getattr(tokenizer, "chat_template", None):
        notices.append(notice_of("chat.joined", layout=layout.name))
    return notices


def layout_of(spec: BuildSpec, source: AnySource, tokenizer: Any) -> RowLayout:
    columns, sample = source.sample()
    if not sample:
        raise UsageError(f"{source.where} is empty")
    layout = detect(columns, sample, spec.hints, source.where)
    if isinstance(source, FileSource):
        check_columns(source.paths, [name for name in layout.read if name in columns])
    if layout.is_chat:
        check_template(tokenizer, source.where)
    return layout


@dataclass
class _Builder:
    spec: BuildSpec
    source: AnySource
    layout: RowLayout
    tokenizer: Any
    scratch: Path
    num_proc: int | None
    progress: BuildProgress
    # Columns of all rows, in the order found.
    later: dict[str, None] = field(default_factory=dict)

    def documents(self, work: Path) -> CacheMeta:
        part = self.spec.parts[0]
        limit = part.samples * self.spec.source_limit if part.samples and not self.spec.held_out else None
        take = None if limit is None else _FIRST_ROWS
        while True:
            table = self._table(take)
            encoded, counts = self._encode(table, part)
            ids = list(flat_chunks(encoded.data, "input_ids"))
            tokens = sum(map(len, ids))
            # A few samples of a large corpus need only its beginning, of a length unknown until it is tokenised.
            if limit is None or take is None or tokens >= limit or len(table) < take:
                break
            take *= 4
        if not tokens:
            counts.refuse_bad(0)
            raise UsageError(f"{self.source.where} contains no text")
        largest = max(int(chunk.max()) for chunk in ids if len(chunk))
        written = write_tokens(ids, work / "tokens.bin", largest_id=largest, limit=limit)
        counted = {"counts": asdict(counts), "largest": largest}
        facts = {"tokens": written, "dtype": narrowest(largest), "sha256": sha256_of(work / "tokens.bin")}
        return {"kind": "text", **facts, "parts": {part.split: counted}}

    def rows(self, work: Path) -> CacheMeta:
        whole = self.spec.parts[0]
        table = self._table(whole.samples if not self.spec.held_out else None)
        made: CacheMeta = {}
        for part in self.spec.parts:
            chosen = self._share(table, part)
            what = f"rows in {self.source.where}"
            refuse("samples", flag=part.flag, requested=part.samples, there=len(chosen), what=what)
            if part.samples:
                chosen = chosen.select(range(part.samples))
            encoded, counts = self._encode(chosen, part)
            if not len(encoded):
                counts.refuse_bad(0)
                first = counts.left["no_loss"][-1] if "no_loss" in counts.left else None
                refuse("nothing_left", counts=counts, split=part.split, first=first, **vars(self))
            largest = self._check_ids(encoded)
            with quiet():
                encoded.save_to_disk(str(work / part.split))
            made[part.split] = {"counts": asdict(counts), "largest": largest, "sha256": rows_digest(encoded.data)}
        return {"kind": "rows", "parts": made}

    def _table(self, limit: int | None) -> Dataset:
        if isinstance(self.source, TableSource):
            table = self.source.table
            table = table.select_columns([name for name in self.layout.used if name in table.column_names])
            return table if limit is None else table.select(range(min(limit, len(table))))
        path = self.scratch / "normal.arrow"
        path.unlink(missing_ok=True)
        schema = NORMAL[self.layout.kind]
        rows = (normal_row(self.layout, where, row) for where, row in self._seen(limit))
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
            while chunk := list(islice(rows, 1000)):
                writer.write_batch(pa.RecordBatch.from_pylist(chunk, schema))
        return Dataset.from_file(str(path))

    def _seen(self, limit: int | None) -> RawRows:
        for where, row in islice(self.source.rows(), limit):
            self.later |= dict.fromkeys(row)
            yield where, row

    def _share(self, table: Dataset, part: SplitPart) -> Dataset:
        """The rows of this part: a fixed random choice is held out, the rest is trained on."""
        if part.share == "all":
            return table
        if len(table) < 2:
            raise refusal("hold_out.one_row", where=self.source.where)
        held = min(len(table) - 1, max(1, round(len(table) * self.spec.held_out / 100)))
        order = np.random.default_rng(_HOLD_OUT_SEED).permutation(len(table))
        return table.select(np.sort(order[:held] if part.share == "held" else order[held:]))

    def _encode(self, table: Dataset, part: SplitPart) -> tuple[Dataset, RowCounts]:
        encoder = encoder_for(self.spec, part, self.source, self.layout, self.tokenizer)
        # int32 halves the cache that int64 would take.
        ids, text = Sequence(Value("int32")), Value("string")
        return map_rows(
            table,
            encoder,
            Features({name: text if name.endswith("_text") else ids for name in encoder.columns}),
            self.scratch / part.split,
            num_proc=self.num_proc,
            progress=lambda done, total: self.progress(part.split, done, total),
        )

    def _check_ids(self, encoded: Dataset) -> int:
        """The largest id among inputs and labels; negative ones other than -100 are refused."""
        largest = 0
        for column in (name for name in encoded.column_names if not name.endswith("_text")):
            allowed = (IGNORED,) if column.endswith("labels") else ()
            for chunk in flat_chunks(encoded.data, column):
                if not len(chunk):
                    continue
                largest = max(largest, int(chunk.max()))
                negative = chunk[(chunk < 0) & ~np.isin(chunk, allowed)]
                if len(negative):
                    raise UsageError(f"{self.source.where}: {column} contains the negative id {negative[0]}")
        return largest


def normal_row(layout: RowLayout, where: str, row: RawRow) -> RawRow:
    """A row of a file in the normal form of its layout, with its place where that has room for it."""
    normal = normal_or_bad(layout, where, row)
    return {**normal, "where": where} if "where" in NORMAL[layout.kind].names else normal


def encoder_for(spec: BuildSpec, part: SplitPart, source: AnySource, layout: RowLayout, tokenizer: Any) -> RowEncoder:
    kind = PreferenceEncoder if spec.hints.preference else RowEncoder
    return kind(
        tokenizer=tokenizer,
        task=spec.hints.task,
        kind=layout.kind,
        where=source.where,
        source_limit=spec.source_limit,
        target_limit=part.target_limit,
        prefix=spec.prefix,
        separator=layout.separator,
        layout=layout if isinstance(source, TableSource) else None,
        keep_text=part.keep_text,
    )
