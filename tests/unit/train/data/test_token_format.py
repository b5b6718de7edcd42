"""Token files of other widths than the usual, and with a header."""

from __future__ import annotations

import numpy as np
import pytest

from dsrun.errors import UsageError
from dsrun.train.data.reading.token_format import format_of

IDS = [5, 300, 7, 0, 9, 11, 60_000, 2] * 4


@pytest.fixture
def causal_ids(causal):
    """Ids that the small tokenizer has."""
    return [index % len(causal) for index in range(200)]


def written(tmp_path, dtype, ids=IDS):
    path = tmp_path / "t.bin"
    np.array(ids, dtype).tofile(path)
    return path


def test_dtype_follows_vocabulary_where_nothing_else_is_known(tmp_path):
    path = tmp_path / "t.bin"
    path.write_bytes(b"")
    assert format_of(path, 65_536, None).dtype == "uint16"
    assert format_of(path, 65_537, None).dtype == "uint32"


@pytest.mark.parametrize(
    ("stored", "vocabulary", "found"),
    [
        ("<u2", 65_000, "uint16"),
        ("<i4", 65_000, "uint32"),
        ("<u4", 65_000, "uint32"),
        ("<i8", 65_000, "int64"),
        ("<u2", 128_000, "uint16"),
        ("<u4", 128_000, "uint32"),
        ("<i8", 128_000, "int64"),
    ],
)
def test_width_shown_by_zeros_and_by_numbers_beyond_the_vocabulary(stored, vocabulary, found, tmp_path):
    shown = format_of(written(tmp_path, stored), vocabulary, None)
    assert shown.dtype == found
    usual = "uint16" if vocabulary == 65_000 else "uint32"
    assert (shown.notice is None) == (found == usual)


def test_file_of_nothing_but_zeros_has_the_usual_width(tmp_path):
    assert format_of(written(tmp_path, "<u2", [0] * 64), 100, None).dtype == "uint16"


def test_dtype_as_requested_or_as_a_file_beside_says(tmp_path):
    path = written(tmp_path, "<u2")
    (tmp_path / "t.bin.dtype").write_text("int32\n")
    assert format_of(path, 128_000, None).dtype == "int32"
    assert format_of(path, 128_000, "uint16").dtype == "uint16"
    (tmp_path / "t.bin.dtype").write_text("int8")
    with pytest.raises(UsageError, match="invalid dtype 'int8'"):
        format_of(path, 128_000, None)


@pytest.mark.parametrize("dtype", ["<u2", "<u4", "<i4", "<i8"])
def test_blocks_hold_the_ids_whatever_their_width(dtype, causal, causal_ids, prepare, tmp_path):
    path = written(tmp_path, dtype, causal_ids)
    data = prepare(causal, "causal-lm", train_file=str(path), max_length=64, validation_split_percentage=0)
    assert np.concatenate([data.train[k]["input_ids"] for k in range(len(data.train))]).tolist() == causal_ids
    assert any("is read as such" in notice for notice in data.notices) == (dtype != "<u2")


def test_numpy_array_of_ids(causal, causal_ids, prepare, tmp_path):
    path = tmp_path / "t.npy"
    np.save(path, np.array(causal_ids, np.int32))
    data = prepare(causal, "causal-lm", train_file=str(path), max_length=64, validation_split_percentage=0)
    assert np.concatenate([data.train[k]["input_ids"] for k in range(len(data.train))]).tolist() == causal_ids
    held = prepare(causal, "causal-lm", train_file=str(path), max_length=64, validation_split_percentage=50)
    assert held.train[0]["input_ids"].tolist() == causal_ids[128:192]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 3), np.int32), "an array of int32 with the shape 2×3"),
        (np.zeros(3), "an array of float64"),
        (np.array([{}]), "not a NumPy array of token ids"),
    ],
    ids=["two dimensions", "floats", "objects"],
)
def test_other_arrays_rejected(array, message, tmp_path):
    path = tmp_path / "t.npy"
    np.save(path, array, allow_pickle=True)
    with pytest.raises(UsageError, match=message):
        format_of(path, 100, None)


@pytest.mark.parametrize(("magic", "dtype"), [(20240520, "<u2"), (20240801, "<u4")])
def test_header_of_llm_c_skipped(magic, dtype, causal, causal_ids, prepare, tmp_path):
    path = tmp_path / "t.bin"
    header = np.zeros(256, "<i4")
    header[:3] = magic, 1, len(causal_ids)
    path.write_bytes(header.tobytes() + np.array(causal_ids, dtype).tobytes())
    data = prepare(causal, "causal-lm", train_file=str(path), max_length=64, validation_split_percentage=0)
    assert data.train[0]["input_ids"].tolist() == causal_ids[:64]
    assert any("header of llm.c" in notice for notice in data.notices)


def test_negative_ids_rejected(causal, prepare, tmp_path):
    path = written(tmp_path, "<i4", [1, 2, -100, 3])
    with pytest.raises(UsageError, match=r"contains the negative id -100 .*--bin-dtype"):
        prepare(causal, "causal-lm", train_file=str(path), bin_dtype="int32", validation_split_percentage=0)
