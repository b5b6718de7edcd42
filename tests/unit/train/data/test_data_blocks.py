"""Blocks: what goes in comes out, once."""

import pickle
from itertools import chain, islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsrun.errors import UsageError
from dsrun.train.data.stream import blocks
from dsrun.train.data.token_files import TokenBin, divide, write_tokens

DOCUMENTS = st.lists(st.lists(st.integers(0, 100_000), max_size=30), min_size=1, max_size=12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("blocks")


def blocks_of(documents, block, state=None):
    """The blocks of documents with the states after them; a document's own state is the number of the next."""
    state = state or {"rows": 0, "used": 0}
    rows = (({"input_ids": list(ids)}, number) for number, ids in enumerate(documents, 1))
    return blocks(islice(rows, state["rows"], None), block, state["rows"], state["used"])


@given(documents=DOCUMENTS, block=st.integers(1, 17), before=st.integers(0, 40))
def test_streamed_blocks_hold_documents_once(documents, block, before):
    """Streamed blocks hold the documents once, also when resumed."""
    made = list(blocks_of(documents, block))
    rows, states = [row for row, _ in made], [None, *(state for _, state in made)]
    assert [token for row in rows for token in row["input_ids"]] == list(chain(*documents))
    assert all(len(row["input_ids"]) == block for row in rows[:-1])
    assert all(row["labels"] == row["input_ids"] for row in rows)
    before = min(before, len(rows))
    again = blocks_of(documents, block, states[before])
    assert [row for row, _ in again] == rows[before:]


@settings(deadline=None)
@given(documents=DOCUMENTS.filter(any), block=st.integers(1, 17), percent=st.integers(1, 99))
def test_token_file_blocks_hold_documents_once(folder, documents, block, percent):
    """Blocks of a file hold the documents once, divided or not."""
    path = folder / "tokens.bin"
    flat = list(chain(*documents))
    written = write_tokens(map(np.array, documents), path, largest_id=max(flat))
    blocks = TokenBin(path, "uint16" if max(flat) < 65536 else "uint32", block)
    assert written == blocks.tokens == len(flat)
    assert np.concatenate([row["input_ids"] for row in blocks]).tolist() == flat
    assert blocks.lengths().tolist() == [len(row["labels"]) for row in blocks]
    if len(blocks) > 1:
        held, rest = divide(blocks, percent, "x")
        assert [t for part in (held, rest) for row in part for t in row["input_ids"]] == flat
        assert len(held) >= 1
        assert len(rest) >= 1


def test_token_limit_kept(tmp_path):
    path = tmp_path / "t.bin"
    assert write_tokens([np.arange(5), np.arange(5)], path, largest_id=4, limit=7) == 7
    assert np.fromfile(path, dtype="<u2").tolist() == [0, 1, 2, 3, 4, 0, 1]


def test_single_block_cannot_be_divided(tmp_path):
    np.arange(5, dtype="<u2").tofile(tmp_path / "t.bin")
    with pytest.raises(UsageError, match="none can be held out"):
        divide(TokenBin(tmp_path / "t.bin", "uint16", 8), 5, "t.bin")


def test_token_file_pickled_as_path(tmp_path):
    """Loader workers get a path, and not the content."""
    path = tmp_path / "t.bin"
    np.arange(60_000, dtype="<u2").tofile(path)
    blocks = TokenBin(path, "uint16", 1000)
    assert blocks[-1]["input_ids"][-1] == 59_999
    packed = pickle.dumps(blocks)
    assert len(packed) < 1000
    assert pickle.loads(packed)[3]["input_ids"][0] == 3000
    assert blocks[0]["input_ids"].dtype == np.int64
    with pytest.raises(IndexError):
        blocks[60]


@pytest.mark.parametrize(("token", "wrong"), [(900, "token id 900 is outside"), (-3, "the negative id -3")])
def test_extreme_tokens_over_chunks(token, wrong, causal, prepare, tmp_path, monkeypatch):
    monkeypatch.setattr("dsrun.train.data.token_files._CHUNK", 4)
    np.array([1, 2, 3, 4, 5, token, 7], dtype="<i4").tofile(tmp_path / "t.bin")
    with pytest.raises(UsageError, match=wrong):
        prepare(causal, "causal-lm", train_file=tmp_path / "t.bin", vocab_size=900, bin_dtype="int32")


def test_token_file_of_partial_tokens_rejected(tmp_path):
    (tmp_path / "t.bin").write_bytes(b"123456")
    with pytest.raises(UsageError, match="not a whole number of uint32"):
        TokenBin(tmp_path / "t.bin", "uint32", 8)
