"""The records of a CSV or TSV file, also with fields of hundreds of megabytes."""

import csv
import io
from collections.abc import Iterable, Iterator
from itertools import chain

# The default of 128 KiB would refuse long documents. The csv module takes four to eight bytes a character for a field.
csv.field_size_limit(8 << 20)
LONGEST = 1 << 30
"""Characters of one field; Arrow's strings end at 2 GiB."""


def csv_records(lines: Iterator[str], delimiter: str) -> Iterator[list[str]]:
    """As csv.reader, strict, which reads all but the records with a field beyond its limit. It takes no line before it
    needs it. Raises csv.Error."""
    held: list[str] = []

    def kept() -> Iterator[str]:
        for line in lines:
            held.append(line)
            yield line

    while True:
        try:
            for record in csv.reader(kept(), delimiter=delimiter, strict=True):
                held.clear()
                yield record
            return
        except csv.Error as error:
            if "field limit" not in str(error):
                raise
        begun, held = held, []
        yield _long_record(chain(begun, lines), delimiter)


def _long_record(lines: Iterable[str], delimiter: str) -> list[str]:
    """The next record, by the rules of csv.reader, in the memory of two of its fields."""
    fields: list[str] = []
    field: io.StringIO | None = None
    for line in lines:
        at, end = 0, len(line.rstrip("\r\n"))
        while True:
            if field is None and line.startswith('"', at):
                field, at = io.StringIO(), at + 1
            if field is not None:
                quote = _closing_quote(line, at)
                field.write((line[at:] if quote < 0 else line[at:quote]).replace('""', '"'))
                if field.tell() > LONGEST:
                    raise csv.Error(f"a field of more than {LONGEST:,} characters")
                if quote < 0:
                    break
                fields.append(field.getvalue())
                field, at = None, quote + 1
                if at < end and not line.startswith(delimiter, at):
                    raise csv.Error(f"'{delimiter}' expected after '\"'")
            else:
                begin, at = at, line.find(delimiter, at)
                at = end if at < 0 else at
                fields.append(line[begin:at])
            if at >= end:
                return fields
            at += 1
    raise csv.Error("unexpected end of data")


def _closing_quote(line: str, at: int) -> int:
    """Where the quoted field that `at` lies in ends; -1 where the line ends before."""
    while (at := line.find('"', at)) >= 0 and line.startswith('"', at + 1):
        at += 2
    return at
