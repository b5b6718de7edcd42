"""Rows of a split by their numbers in its files, each as training takes it: its samples, or why it has none."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from dsrun.errors import UsageError
from dsrun.recipe.preflight.bad_rows import UNREADABLE
from dsrun.recipe.preflight.splits import missing
from dsrun.recipe.rows.readers import RawRow
from dsrun.system.terminal.display import counted
from dsrun.train.data.build_splits import encoder_for, layout_of, normal_row, notices_of
from dsrun.train.data.encoding.tokenise import RowEncoder
from dsrun.train.data.overview import STATES, ShownSample, blocks_of, shown
from dsrun.train.data.prepare import Preparation
from dsrun.train.data.reading.sources import AnySource, FileSource, PluginSource
from dsrun.train.data.token_files import is_bin

LOOKED_AT = 2000
"""Rows of which the middle one is shown where no number is given: all of a large file would take minutes."""
LONGEST_RAW = 2000
"""Characters of a row without samples."""
_UNCUT = 10**9

RowRange = tuple[int, int]
"""The first and the last number that are wanted."""
Answer = dict[str, Any]
"""What is shown, as --format json has it; docs/data.md describes it."""


class RowLookup(Preparation):
    """Looks rows up for `dsrun data`, by the numbers that messages have for them."""

    def find(self, split: str, wanted: Sequence[RowRange]) -> Answer:
        """The rows with these numbers, by default the first and one from the middle. Raises UsageError where there is
        none."""
        sources = self.sources()
        if split not in sources.splits:
            raise missing(split, sources.name, sources.splits)
        given = sources.splits[split]
        if is_bin(given):
            raise UsageError(f"{given.where} is a token file: it has blocks of ids and no rows")
        job, source = self.job((self.part(split),)), self.through_plugin(split, given)
        layout = layout_of(job, source, self.tokenizer)
        self.notices += notices_of(layout, job, self.tokenizer)
        # With a limit to ids it counts for itself, as for a stream; a row is shown whatever is wrong with it.
        encoder = encoder_for(job, job.parts[0], source, layout, self.tokenizer)
        encoder = replace(encoder, layout=None, vocab_size=sys.maxsize, max_bad=1.0, force=True)
        self.sides = self.limits.sides(split)
        rows: list[Answer] = []
        tokens = 0
        asked = wanted
        if not asked:
            numbers = [number for number, _, _ in islice(_numbered(source, None), LOOKED_AT)]
            asked = [(number, number) for number in sorted({numbers[0], numbers[len(numbers) // 2]})]
        # Of running text all that is before a row says in which block it is.
        joined = layout.kind == "text" and isinstance(given, FileSource) and len(given.paths) > 1
        for number, where, row in _numbered(source, None if joined else max(last for _, last in asked)):
            is_asked = any(first <= number <= last for first, last in asked)
            if not is_asked and layout.kind != "text":
                continue
            normal = normal_row(layout, where, row)
            kept, left = _encoded(encoder, normal, number)
            if layout.kind == "text":
                ids = [int(token) for each in kept for token in each["input_ids"]]
                samples = blocks_of(ids, tokens, self.limits.source)
                tokens += sum(len(each.ids) for each in samples)
            else:
                wide, _ = _encoded(replace(encoder, source_limit=_UNCUT, target_limit=_UNCUT), normal, number)
                samples = [part for each in wide for part in self._shown(each, kept)]
            if is_asked:
                rows.append({"row": number, "where": where, **self._row(row, samples, left)})
            if not wanted and len(rows) == len(asked):
                break
        for first, last in asked:
            if not any(first <= each["row"] <= last for each in rows):
                numbers = [number for number, _, _ in _numbered(source, None)]
                asked_for = f"{first}" if first == last else f"{first}..{last}"
                there = f"{counted(len(numbers), 'row')}, with the numbers {min(numbers)} to {max(numbers)}"
                raise UsageError(f"--row {asked_for}: {source.where} has {there}", fix=f"--row {max(numbers)}")
        return {"data": source.where, "layout": layout.name, "rows": rows}

    def _shown(self, row: RawRow, kept: list[RawRow]) -> list[ShownSample]:
        """The sides of a row that is not cut. A tokenizer ends what it cuts itself; all else is cut at the limit."""
        seq2seq = self.request.task == "seq2seq"
        limits = {name: self.sides[seq2seq and name == "labels"][0] for name in row}
        cut = kept[0] if seq2seq and kept else {name: values[: limits[name]] for name, values in row.items()}
        return shown(cut, whole=row, seq2seq=seq2seq)

    def _row(self, raw: RawRow, samples: list[ShownSample], left: dict[str, list[Any]]) -> Answer:
        found = []
        for each in samples:
            limit, flag = self.sides[each.side == "target"]
            counts = {state: each.states.count(state) for state in STATES}
            tokens = each.tokens(self.tokenizer)
            found.append({"side": each.side, "limit": limit, "flag": flag, "counts": counts, "tokens": tokens})
        reason, (_, _, why) = next(iter(left.items()), (None, (0, 0, None)))
        readable = None if samples or UNREADABLE in raw else json.dumps(raw, ensure_ascii=False, default=str)
        return {"left_out": reason, "why": why, "raw": readable and readable[:LONGEST_RAW], "samples": found}


def _numbered(source: AnySource, last: int | None) -> Iterator[tuple[int, str, RawRow]]:
    """Rows with their numbers and places, of each file up to the number `last`."""
    inner = source.source if isinstance(source, PluginSource) else source
    tables = [replace(inner, paths=(path,)) for path in inner.paths] if isinstance(inner, FileSource) else [inner]
    for table in tables:
        for where, row in table.rows():
            number = int(where.rpartition(" ")[2])
            if last is not None and number > last:
                break
            for made in source.made(where, row) if isinstance(source, PluginSource) else [row]:
                yield number, where, made


def _encoded(encoder: RowEncoder, normal: RawRow, number: int) -> tuple[list[RawRow], dict[str, list[Any]]]:
    """What becomes of a row in normal form, and why parts of it are left out."""
    once = replace(encoder)
    columns = once({name: [value] for name, value in normal.items()}, [number - 1])
    return [dict(zip(columns, each, strict=True)) for each in zip(*columns.values(), strict=True)], once.read.left
