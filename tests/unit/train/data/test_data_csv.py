"""CSV with long fields and many columns: read as any other, in little memory, and refused with file and line."""

import csv
import io
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsrun.errors import UsageError
from dsrun.recipe.rows import csv_records as records
from dsrun.recipe.rows.csv_records import csv_records
from dsrun.recipe.rows.readers import read_marked

MEMORY = """
import resource, sys
from pathlib import Path
from dsrun.recipe.rows.readers import read_marked
used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
before = used()
[(_, where, row)] = read_marked(Path(sys.argv[1]))
print(len(row["source"]), used() - before)
"""


def read(text, delimiter=","):
    """The records, or the error."""
    found = []
    try:
        found += csv_records(iter(io.StringIO(text, newline="")), delimiter)
    except csv.Error as error:
        found.append(str(error))
    return found


@pytest.fixture
def short_limit():
    before = csv.field_size_limit(4)
    yield
    csv.field_size_limit(before)


@pytest.mark.parametrize("delimiter", [",", "\t"])
@given(fields=st.lists(st.lists(st.text('ab",\t\n\r', max_size=9), min_size=2, max_size=4), max_size=5))
def test_long_csv_fields_written_by_csv_read_back(fields, delimiter):
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=delimiter).writerows(fields)
    before = csv.field_size_limit(4)
    try:
        assert read(file.getvalue(), delimiter) == fields
    finally:
        csv.field_size_limit(before)


@given(text=st.text('ab",\n', max_size=30))
def test_long_csv_fields_read_as_short_ones(text):
    """Also where quotes are broken; what the error says may differ."""
    expected = read(text)
    before = csv.field_size_limit(4)
    try:
        found = read(text)
    finally:
        csv.field_size_limit(before)
    assert [type(each) for each in found] == [type(each) for each in expected]
    assert [each for each in found if isinstance(each, list)] == [each for each in expected if isinstance(each, list)]


@pytest.mark.parametrize("line", ['"{}",b', 'b,"{}"', "b,{}"])
def test_csv_field_of_megabytes(tmp_path, line):
    document = "a word, " * (2 << 20) if '"' in line else "a word; " * (2 << 20)
    path = tmp_path / "a.csv"
    path.write_text("source,target\nc,d\n" + line.format(document) + "\ne,f\n")
    rows = [(where.rpartition(" ")[2], list(row.values())) for _, where, row in read_marked(path)]
    values = ["b", document] if line.startswith("b") else [document, "b"]
    assert rows == [("2", ["c", "d"]), ("3", values), ("4", ["e", "f"])]


def test_csv_memory_of_long_field(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('source,target\n"' + "some words in each of many lines\n" * (1 << 20) + '",b\n')
    done = subprocess.run([sys.executable, "-c", MEMORY, path], capture_output=True, text=True, check=True)
    length, memory = map(int, done.stdout.split())
    assert length == 33 << 20
    assert memory < 4 * length


def test_csv_field_over_limit_names_line(tmp_path, monkeypatch, short_limit):
    monkeypatch.setattr(records, "LONGEST", 20)
    path = tmp_path / "a.csv"
    path.write_text('a,b\n1,2\n"' + "more\n" * 9 + '",4\n')
    with pytest.raises(UsageError, match=r"a\.csv, line 7: broken CSV \(a field of more than 20 characters\)"):
        list(read_marked(path))


def test_csv_of_many_columns(tmp_path):
    names = [f"column {i}" for i in range(100_000)]
    path = tmp_path / "a.csv"
    path.write_text(",".join(names) + "\n" + ",".join(map(str, range(100_000))) + "\n")
    [(_, _, row)] = read_marked(path)
    assert row["column 99999"] == "99999"
