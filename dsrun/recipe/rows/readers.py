"""Rows of local data files, one at a time, with the place each came from.

dsrun reads JSON, CSV and text itself rather than through the builders of `datasets`: those guess types (the words "NA"
and "null" become missing, "007" becomes 7, "2024-01-01" a time stamp), take a broken line for a reason to re-read the
file as something else, and do not name the line."""

import csv
import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from dsrun.errors import UsageError, one_line
from dsrun.recipe.preflight.bad_rows import UNREADABLE
from dsrun.recipe.preflight.data_files import as_utf8, check_data_file, data_format, is_gzip
from dsrun.recipe.rows.beside import EMPTY
from dsrun.recipe.rows.csv_records import csv_records
from dsrun.refusals import Refusals
from dsrun.system.files import parse_json

RawRow = dict[str, Any]
RawRows = Iterator[tuple[str, RawRow]]
"""Pairs of a place for error messages ("train.csv, line 3") and a row."""

SAMPLE_ROWS = 100
_TEXTS = Refusals(__file__, "refusals.toml")
_DELIMITERS = {";": "semicolon", "\t": "tab"}
# Bytes of a JSON file that is read as a whole for its first rows: about a second.
_LONGEST_DOCUMENT = 64 << 20
# The line ends of old Macs, which universal newlines include.
_LONE_RETURN = re.compile(rb"(?<=\r)(?!\n)")


class ReadPosition(NamedTuple):
    """Where reading a file goes on: lines (of Parquet and JSON documents: rows) before it, and bytes, unpacked if the
    file is compressed; formats without lines leave them at 0."""

    number: int = 0
    offset: int = 0


START = ReadPosition()
MarkedRows = Iterator[tuple[ReadPosition, str, RawRow]]
"""As RawRows, each with the mark after it, from which `read_marked` goes on without reading what is before it."""


def read_marked(path: Path, *, keep_linebreaks: bool = True, start: ReadPosition = START) -> MarkedRows:
    """The rows of a json, csv, tsv, parquet or txt file from `start` on.

    A txt file gives one row a line, {"text", "starts", "ends"}: with line breaks kept the file is one document, else
    every line that is not blank is one. Raises UsageError, with the line, for a file that is not what its suffix says.
    """
    check_data_file(path)
    match data_format(path):
        case "json":
            return (_json_lines if _is_json_lines(path) else _json_document)(path, start)
        case "csv" | "tsv" as kind:
            return _table_rows(path, "," if kind == "csv" else "\t", start)
        case "parquet":
            return _parquet_rows(path, start)
        case "txt":
            return (_running_text if keep_linebreaks else _lines)(path, start)
    raise UsageError(f"{path}: token files are for causal language models only")


def sample_of(rows: Iterable[tuple[str, RawRow]]) -> tuple[list[str], RawRow]:
    """The columns found in the first rows, and a row made of the first value of each.

    JSON lines need not all have the same keys, and a value may be missing in the very first."""
    sample: RawRow = {}
    for _, row in islice(rows, SAMPLE_ROWS):
        for column, value in row.items():
            if sample.get(column) in EMPTY:
                sample[column] = value
    unreadable = sample.pop(UNREADABLE, None)
    if unreadable and not sample:
        raise UsageError(unreadable)
    return list(sample), sample


def first_rows(path: Path, most: int | None = SAMPLE_ROWS) -> list[tuple[str, RawRow]]:
    """The first rows of a file, None: all; none of token files, of long JSON documents, and of Parquet without pyarrow.
    Raises UsageError as `read_marked` does."""
    kind = data_format(path)
    is_long = kind == "json" and path.stat().st_size > _LONGEST_DOCUMENT and not _is_json_lines(path)
    if is_long or kind in ("bin", "npy") or (kind == "parquet" and find_spec("pyarrow") is None):
        check_data_file(path)
        return []
    rows = [(where, row) for _, where, row in islice(read_marked(path), most)]
    if not rows:
        raise UsageError(f"{path} is empty")
    return rows


def check_columns(paths: Sequence[Path], wanted: Sequence[str]) -> None:
    """Raise UsageError for a file of a split that lacks one of these columns, which the first has."""
    for path in paths[1:]:
        found, _ = sample_of(first_rows(path))
        lacking = next((name for name in wanted if found and name not in found), None)
        if lacking is not None:
            what = f"{path} has no column {lacking!r}, which {paths[0]} has; columns found: {', '.join(found)}"
            raise UsageError(what, fix="files of one split have the same columns")


def _numbered_lines(path: Path, start: ReadPosition = START) -> Iterator[tuple[ReadPosition, str]]:
    """Lines with the marks after them; bytes that are not UTF-8 are an error naming the line.

    Read as bytes and not as text: a text file does not know where in it the next line begins."""
    number, offset = start
    try:
        with gzip.open(path, "rb") if is_gzip(path) else path.open("rb") as file:
            # Seeking stops at the end of a compressed file, but not of a plain one.
            if file.seek(offset) < offset or not (is_gzip(path) or path.stat().st_size >= offset):
                raise _TEXTS.error("file.shorter", path=path)
            for raw in file:
                whole = raw.count(b"\r") == raw.endswith(b"\r\n")
                for piece in (raw,) if whole else filter(None, _LONE_RETURN.split(raw)):
                    text = piece.decode("utf-8-sig" if offset == 0 else "utf-8")
                    number, offset = number + 1, offset + len(piece)
                    yield ReadPosition(number, offset), text
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}, line {number + 1}: not UTF-8 text", fix=as_utf8(path, error)) from error
    except (EOFError, gzip.BadGzipFile) as error:
        raise UsageError(f"{path}, after line {number}: the gzip file is damaged or cut short") from error


def _is_json_lines(path: Path) -> bool:
    """Whether the lines of a file are its rows. A single list or table is the rows themselves, one of several a row."""
    lines = (line for _, line in _numbered_lines(path) if line.strip())
    first = _parsed(line := next(lines, "[]"))
    if isinstance(first, json.JSONDecodeError):
        # Of JSON lines the first may be broken, too.
        return line.lstrip().startswith("{") and isinstance(_parsed(next(lines, "")), dict)
    if isinstance(first, list) or (isinstance(first, dict) and _rows_within(first) is not None):
        return next(lines, "").lstrip().startswith("[" if isinstance(first, list) else "{")
    return isinstance(first, str | dict)


def _parsed(line: str) -> Any:
    """The value in a line, or why there is none."""
    try:
        return parse_json(line)
    except json.JSONDecodeError as error:
        return error


def _json_lines(path: Path, start: ReadPosition) -> MarkedRows:
    for mark, line in _numbered_lines(path, start):
        if line.strip():
            where = f"{path}, line {mark.number}"
            yield mark, where, _as_row(_parsed(line), where)


def _json_document(path: Path, start: ReadPosition) -> MarkedRows:
    """A list of rows, or an object with such a list in it (as in {"version": …, "data": […]})."""
    value = _parsed("".join(line for _, line in _numbered_lines(path)))
    if isinstance(value, json.JSONDecodeError):
        raise UsageError(f"{path}, line {value.lineno}: not JSON ({value.msg})")
    rows = value if isinstance(value, list) else _rows_within(value)
    for number, row in islice(enumerate([value] if rows is None else rows, 1), start.number, None):
        where = f"{path}, row {number}"
        yield ReadPosition(number), where, _as_row(row, where)


def _rows_within(value: RawRow) -> list[Any] | None:
    """The rows of an object that wraps them, under `data` or its only key, or whose values are columns of texts."""
    for key in ("data", *value) if len(value) == 1 else ("data",):
        rows = value.get(key)
        # A conversation alone in its row looks the same, but its items are messages.
        if isinstance(rows, list) and rows and isinstance(rows[0], dict) and key not in ("messages", "conversations"):
            return rows
    columns = [column if isinstance(column, list) else [] for column in value.values()]
    if len({*map(len, columns)}) == 1 and any(isinstance(column[0], str) for column in columns if column):
        return [dict(zip(value, row, strict=True)) for row in zip(*columns, strict=True)]
    return None


def _as_row(value: Any, where: str) -> RawRow:
    """A row of a file: an object, or a text; of anything else, or an error, why it is none."""
    if isinstance(value, dict):
        return value
    if isinstance(value, str):
        return {"text": value}
    if isinstance(value, json.JSONDecodeError):
        return {UNREADABLE: f"{where}: not JSON ({value.msg})"}
    fix = 'write each row as {"name of a column": value}'
    return {UNREADABLE: f"{where}: a row must be an object, not a {type(value).__name__} ({fix})"}


def _table_rows(path: Path, delimiter: str, start: ReadPosition) -> MarkedRows:
    """Rows of a CSV or TSV file; every value is text as written."""
    last = START

    def lines(since: ReadPosition) -> Iterator[str]:
        nonlocal last
        for mark, line in _numbered_lines(path, since):
            last = mark
            yield line

    # It takes no line before it needs it, so `last` is the end of the record that it gave.
    try:
        records = csv_records(lines(START), delimiter)
        header = [name.strip() for name in next(filter(None, records), [])]
        _check_header(path, header)
        # Spreadsheets leave several empty names, which are never used.
        twice = next((name for name, count in Counter(header).items() if name and count > 1), None)
        if twice:
            raise UsageError(f"{path}, line 1: two columns are named {twice!r}", fix="give each a name of its own")
        if start > last:
            records = csv_records(lines(start), delimiter)
        for fields in filter(None, records):
            where = f"{path}, line {last.number}"
            if len(fields) == len(header):
                yield last, where, dict(zip(header, fields, strict=True))
            else:
                bad = f"{where}: {len(fields)} fields where the header has {len(header)}"
                yield last, where, {UNREADABLE: bad}
    except csv.Error as error:
        raise UsageError(f"{path}, line {last.number}: broken CSV ({error})") from error


def _check_header(path: Path, header: list[str]) -> None:
    if not any(header):
        raise UsageError(f"{path}, line 1: a header with the names of the columns is missing")
    if len(header) == 1 and (found := next((mark for mark in _DELIMITERS if mark in header[0]), None)):
        names = {"kind": _DELIMITERS[found], "line": header[0][:60], "mark": found.encode("unicode_escape").decode()}
        raise _TEXTS.error("table.separated", path=path, **names)


def _parquet_rows(path: Path, start: ReadPosition) -> MarkedRows:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            number = 0
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                # A group before the mark is not read.
                for batch in file.iter_batches(1000, [group]) if number + rows > start.number else ():
                    seen = min(len(batch), max(0, start.number - number))
                    for i, row in enumerate(batch.slice(seen).to_pylist(), number + seen + 1):
                        yield ReadPosition(i), f"{path}, row {i}", row
                    number += len(batch)
                    rows -= len(batch)
                number += rows
    except (pa.ArrowInvalid, OSError) as error:
        raise UsageError(f"{path} is not a valid Parquet file: {one_line(error)}") from error


def _running_text(path: Path, start: ReadPosition) -> MarkedRows:
    """Lines with their breaks; the first starts the document and the last ends it."""
    lines = _numbered_lines(path, start)
    held = next(lines, None)
    while held:
        (mark, line), held = held, next(lines, None)
        row = {"text": line.replace("\r\n", "\n"), "starts": mark.number == 1, "ends": held is None}
        yield mark, f"{path}, line {mark.number}", row


def _lines(path: Path, start: ReadPosition) -> MarkedRows:
    for mark, line in _numbered_lines(path, start):
        if line.strip():
            row = {"text": line.rstrip("\r\n"), "starts": True, "ends": True}
            yield mark, f"{path}, line {mark.number}", row
