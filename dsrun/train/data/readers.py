"""Rows of local data files, one at a time, with the place each came from.

dsrun reads JSON, CSV and text itself rather than through the builders of `datasets`: those guess types (the
words "NA" and "null" become missing, "007" becomes 7, "2024-01-01" a time stamp), take a broken line for a
reason to re-read the file as something else, and do not say which line it was.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

from dsrun.errors import UsageError
from dsrun.recipe.data_files import HEAD, check_data_file, data_format, is_gzip, json_error

Row = dict[str, Any]
Rows = Iterator[tuple[str, Row]]
"""Pairs of a place for error messages ("train.csv, line 3") and a row."""

SAMPLE_ROWS = 100

# The default of 128 KiB refuses long documents.
csv.field_size_limit(1 << 30)


def read_rows(path: Path, *, keep_linebreaks: bool = True) -> Rows:
    """All rows of a json, csv, tsv, parquet or txt file.

    A txt file gives one row a line, {"text", "starts", "ends"}: with line breaks kept the file is one
    document, else every line that is not blank is one.

    Raises:
        UsageError: naming the file and the line where it is not what its suffix says.
    """
    check_data_file(path)
    kind = data_format(path)
    readers: Mapping[str, Callable[[Path], Rows]] = {
        "json": _json_rows,
        "csv": lambda path: _table_rows(path, ","),
        "tsv": lambda path: _table_rows(path, "\t"),
        "parquet": _parquet_rows,
        "txt": _running_text if keep_linebreaks else _lines,
    }
    if kind == "bin":
        raise UsageError(f"{path}: token files are for causal language models only")
    return readers[kind](path)


def read_all(paths: Sequence[Path], *, keep_linebreaks: bool = True) -> Rows:
    """The rows of several files, one after another."""
    for path in paths:
        yield from read_rows(path, keep_linebreaks=keep_linebreaks)


def sample_of(rows: Rows) -> tuple[list[str], Row]:
    """The columns found in the first rows, and a row made of the first value of each.

    JSON lines need not all have the same keys, and a value may be missing in the very first.
    """
    sample: Row = {}
    for _, row in islice(rows, SAMPLE_ROWS):
        for column, value in row.items():
            if sample.get(column) is None:
                sample[column] = value
    return list(sample), sample


def _open(path: Path) -> IO[str]:
    if is_gzip(path):
        return io.TextIOWrapper(gzip.open(path, "rb"), encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines with their numbers from 1; bytes that are not UTF-8 are an error naming the line."""
    number = 0
    with _open(path) as file:
        try:
            for number, line in enumerate(file, 1):
                yield number, line
        except UnicodeDecodeError as error:
            raise UsageError(f"{path}, after line {number}: not UTF-8 text") from error
        except (EOFError, gzip.BadGzipFile) as error:
            raise UsageError(f"{path}, after line {number}: the gzip file is damaged or cut short") from error


def _json_rows(path: Path) -> Rows:
    if _is_json_lines(path):
        yield from _json_lines(path)
    else:
        yield from _json_document(path)


def _is_json_lines(path: Path) -> bool:
    """Whether the first line is a value of its own, other than a list or an object that holds the rows."""
    for _, line in _numbered_lines(path):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError:
            return False
        return isinstance(value, dict) and _rows_within(value) is None
    return False


def _json_lines(path: Path) -> Rows:
    for number, line in _numbered_lines(path):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UsageError(f"{where}: not JSON ({error.msg})") from error
        if not isinstance(row, dict):
            raise UsageError(f"{where}: a row must be an object, not a {type(row).__name__}")
        yield where, row


def _json_document(path: Path) -> Rows:
    """A list of rows, or an object with such a list in it (as in {"version": …, "data": […]})."""
    with _open(path) as file:
        try:
            text = file.read()
        except UnicodeDecodeError as error:
            raise UsageError(f"{path}: not UTF-8 text") from error
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        # The file may have been meant as JSON lines; then the line that is broken counts.
        line, reason = json_error(text[:HEAD], len(text) <= HEAD) or (error.lineno, error.msg)
        raise UsageError(f"{path}, line {line}: not JSON ({reason})") from error
    rows = value if isinstance(value, list) else _rows_within(value)
    for number, row in enumerate([value] if rows is None else rows, 1):
        where = f"{path}, row {number}"
        if isinstance(row, str):
            yield where, {"text": row}
        elif isinstance(row, dict):
            yield where, row
        else:
            raise UsageError(f"{where}: a row must be an object, not a {type(row).__name__}")


def _rows_within(value: Row) -> list[Any] | None:
    """The rows of an object that wraps them: under `data`, or under its only key."""
    for key in ("data", *value) if len(value) == 1 else ("data",):
        rows = value.get(key)
        # A conversation alone in its row looks the same, but its items are messages.
        if (
            isinstance(rows, list)
            and rows
            and isinstance(rows[0], dict)
            and key not in ("messages", "conversations")
        ):
            return rows
    return None


def _table_rows(path: Path, delimiter: str) -> Rows:
    """Rows of a CSV or TSV file; every value is text as written."""
    reader = csv.reader((line for _, line in _numbered_lines(path)), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    try:
        for fields in reader:
            if not fields:
                continue
            if header is None:
                header = [name.strip() for name in fields]
                continue
            where = f"{path}, line {reader.line_num}"
            if len(fields) != len(header):
                raise UsageError(f"{where}: {len(fields)} fields where the header has {len(header)}")
            yield where, dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise UsageError(f"{path}, line {reader.line_num}: broken CSV ({error})") from error


def _parquet_rows(path: Path) -> Rows:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=1000):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", row
    except (pa.ArrowInvalid, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{path} is not a sound Parquet file: {reason}") from error


def _running_text(path: Path) -> Rows:
    """Lines with their breaks; the first starts the document and the last ends it."""
    held: tuple[int, str] | None = None
    for number, line in _numbered_lines(path):
        if held:
            yield _piece(path, held, ends=False)
        held = number, line.replace("\r\n", "\n")
    if held:
        yield _piece(path, held, ends=True)


def _piece(path: Path, held: tuple[int, str], *, ends: bool) -> tuple[str, Row]:
    number, line = held
    return f"{path}, line {number}", {"text": line, "starts": number == 1, "ends": ends}


def _lines(path: Path) -> Rows:
    for number, line in _numbered_lines(path):
        if line.strip():
            yield f"{path}, line {number}", {"text": line.rstrip("\r\n"), "starts": True, "ends": True}
