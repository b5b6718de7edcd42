"""One line for each thing wrong with a data file, from its head alone."""

import gzip

import pytest

from dsrun.errors import UsageError
from dsrun.recipe.preflight.data_files import check_data_file
from dsrun.recipe.rows.readers import first_rows, sample_of

GOOD = {
    "a.json": b'[\n  {"text": "x"}\n]',
    "lines.json": b'{"text": "x"}\n{"text": "y"}\n',
    "b.jsonl": b'\xef\xbb\xbf{"text": "x"}\n',
    "c.csv": b"source,target\na,b\n",
    "long.csv": b'source,target\n"' + b"word " * 40_000 + b'",b\n',
    "d.tsv": b"source\ttarget\na\tb\n",
    "e.txt": "zăpadă\n".encode(),
    "f.parquet": b"PAR1....PAR1",
    "g.bin": b"\x01\x00\x02\x00",
    "h.jsonl.gz": gzip.compress(b'{"text": "x"}\n'),
    "breaks.jsonl": '{"text": "a\u2028b\x85c"}\n{"text": "y"}\n'.encode(),
    "old-mac.jsonl": b'{"text": "x"}\r{"text": "y"}\r',
}

BAD = {
    "empty.json": (b"", "is empty"),
    "space.txt": (b" \n\n", "is empty"),
    "a.json": (b"PAR1rest", "is a Parquet file, not json"),
    "first.jsonl": (b'{"text": }\n', "line 1: not JSON"),
    "pretty.json": (b'[\n{"text": "x"},\n{"text" "y"}\n]', "line 3: not JSON"),
    "words.json": (b"hello\n", "line 1: not JSON"),
    "b.txt": (b"line\nbin\x00ary", "line 2: binary data"),
    "wide.csv": ("a,b\n1,2\n".encode("utf-16"), "is UTF-16"),
    "head.csv": (b"source,target\n", "is empty"),
    "broken-head.csv": ("source,tar\u2028get\n".encode(), "is empty"),
    "c.parquet": (b"hello world", "does not begin with PAR1"),
    "short.parquet": (b"PAR1 and then cut", "cut short"),
    "odd.bin": (b"abc", "not a whole number of uint16"),
    "list.npy": (b"[1, 2]", "not a NumPy array"),
    "semicolons.csv": (b"source;target\na;b\n", r"looks semicolon-separated: its first line is 'source;target'"),
    "tabs.csv": (b"source\ttarget\na\tb\n", "looks tab-separated"),
    "semicolons.tsv": (b"source;target\na;b\n", "looks semicolon-separated"),
    "latin.csv": ("source,target\nGrüße,é\n".encode("latin-1"), "iconv -f LATIN1 -t UTF-8 "),
    "d.jsonl": (gzip.compress(b"{}"), "is a gzip file"),
    "e.jsonl.gz": (b'{"text": 1}', "not a valid gzip"),
    "f.xlsx": (b"PK", "says nothing about the data"),
    "none": (b"{}", "says nothing about the data"),
    "g.bin.gz": (gzip.compress(b"ab"), "not read compressed"),
}


@pytest.mark.parametrize("name", GOOD)
def test_valid_data_files_accepted(tmp_path, name):
    (tmp_path / name).write_bytes(GOOD[name])
    check_data_file(tmp_path / name)
    assert name == "f.parquet" or name == "g.bin" or first_rows(tmp_path / name)


@pytest.mark.parametrize("name", BAD)
def test_invalid_data_file_error_is_one_line(tmp_path, name):
    content, expected = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError) as error:
        sample_of(first_rows(tmp_path / name))
    assert expected in str(error.value)
    assert name in str(error.value)
    assert "\n" not in str(error.value)
