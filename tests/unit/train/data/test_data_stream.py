"""Streams give the same rows as prepared data, at every start."""

import pytest
from datasets import IterableDataset
from torch.utils.data import DataLoader

from dsrun.errors import UsageError

PAIRS = [{"source": f"{i}", "target": f"{i}{i}"} for i in range(250)]


def test_the_same_rows_as_prepared(seq2seq, prepare, jsonl):
    file = jsonl(PAIRS)
    stream = prepare(seq2seq, "seq2seq", train_file=file, streaming=True)
    assert isinstance(stream.train, IterableDataset)
    assert list(stream.train) == list(prepare(seq2seq, "seq2seq", train_file=file).train)
    assert list(stream.train) == list(stream.train)
    assert "streamed train" in stream.origin
    assert stream.truncation == {}


def test_documents_are_cut_into_the_same_blocks(causal, prepare, jsonl):
    file = jsonl([{"text": "x" * (i % 13)} for i in range(300)])
    options = {"train_file": file, "block_size": 16, "validation_split_percentage": 0}
    stream = prepare(causal, "causal-lm", streaming=True, **options).train
    blocks = prepare(causal, "causal-lm", **options).train
    assert [row["input_ids"] for row in stream] == [row["input_ids"].tolist() for row in blocks]


def test_it_goes_on_where_it_stopped(causal, prepare, jsonl):
    file = jsonl([{"text": "x" * (i % 13)} for i in range(300)])
    stream = prepare(causal, "causal-lm", train_file=file, block_size=16, streaming=True).train
    whole = list(stream)
    rows = iter(stream)
    for _ in range(5):
        next(rows)
    state = stream.state_dict()
    again = prepare(causal, "causal-lm", train_file=file, block_size=16, streaming=True).train
    again.load_state_dict(state)
    assert list(again) == whole[5:]


def test_no_row_is_lost_or_doubled_in_loader_processes(seq2seq, prepare, jsonl, tmp_path):
    jsonl(PAIRS[:100], "data/train-1.jsonl")
    jsonl(PAIRS[100:], "data/train-2.jsonl")
    stream = prepare(seq2seq, "seq2seq", dataset=tmp_path / "data", streaming=True).train
    loader = DataLoader(stream, batch_size=None, num_workers=2)
    assert sorted(map(str, loader)) == sorted(map(str, stream))
    assert len(list(stream)) == 250


def test_limits_and_validation(seq2seq, causal, prepare, jsonl):
    file = jsonl(PAIRS)
    data = prepare(
        seq2seq,
        "seq2seq",
        train_file=file,
        validation_file=file,
        streaming=True,
        max_train_samples=3,
        splits=["train", "validation"],
    )
    assert len(list(data.train)) == 3
    assert len(data.validation) == 250
    with pytest.raises(UsageError, match="a stream has no end"):
        prepare(
            causal,
            "causal-lm",
            train_file=file,
            streaming=True,
            splits=["train", "validation"],
            required=["validation"],
        )


def test_ids_outside_the_embedding_are_refused_when_they_come(causal, prepare, jsonl):
    file = jsonl([{"input_ids": [1, 2]}, {"input_ids": [1, 900]}])
    data = prepare(causal, "causal-lm", train_file=file, streaming=True, vocab_size=900)
    with pytest.raises(UsageError, match="token id 900"):
        list(data.train)
