"""Streams give the same rows as prepared data, at every start, and go on anywhere without reading what is before."""

import csv
import gzip
import json
from dataclasses import replace
from itertools import islice

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, IterableDataset
from torch.utils.data import DataLoader

from dsrun.errors import UsageError
from dsrun.recipe.rows import readers
from dsrun.recipe.rows.readers import START, read_marked
from dsrun.train.data.batches import BatchSplit, StreamOfBatches
from dsrun.train.data.reading.sources import TableSource
from dsrun.train.data.stream import RowStream

PAIRS = [{"source": f"{i}", "target": f"{i}{i}"} for i in range(250)]


def test_streamed_rows_equal_prepared_rows(seq2seq, prepare, jsonl):
    file = jsonl(PAIRS)
    stream = prepare(seq2seq, "seq2seq", train_file=file, streaming=True)
    assert isinstance(stream.train, RowStream)
    assert list(stream.train) == list(prepare(seq2seq, "seq2seq", train_file=file).train)
    assert list(stream.train) == list(stream.train)
    assert "streamed train" in stream.origin
    assert stream.counts == {}


def test_streamed_blocks_equal_prepared_blocks(causal, prepare, jsonl):
    file = jsonl([{"text": "x" * (i % 13)} for i in range(300)])
    options = {"train_file": file, "block_size": 16, "validation_split_percentage": 0}
    stream = prepare(causal, "causal-lm", streaming=True, **options).train
    blocks = prepare(causal, "causal-lm", **options).train
    assert [row["input_ids"] for row in stream] == [row["input_ids"].tolist() for row in blocks]


def resumed_everywhere(stream, again):
    """Read `stream` noting every state; from each, `again` must give the rest."""
    reader, states, rows = stream.start(), [], []
    while True:
        states.append(json.loads(json.dumps(reader.state())))
        try:
            rows.append(next(reader))
        except StopIteration:
            break
    assert len(rows) > 100
    for at in (0, 1, 5, 99, 100, 101, len(rows) - 1, len(rows)):
        reader = again.start(states[at])
        assert reader.count == at
        assert list(reader) == rows[at:], f"from row {at}"


@pytest.mark.parametrize("block_size", [7, 16, 250])
def test_streamed_blocks_resume_where_they_stopped(causal, prepare, jsonl, block_size):
    file = jsonl([{"text": "x" * (i * 7 % 113)} for i in range(500)])
    options = {"train_file": file, "block_size": block_size, "validation_split_percentage": 0}
    first, second = (prepare(causal, "causal-lm", streaming=True, **options).train for _ in range(2))
    resumed_everywhere(first, second)


def test_streamed_files_resume_where_they_stopped(seq2seq, prepare, jsonl, tmp_path):
    """Rows without a target are left out, so that batches of the tokenizer and rows do not run in step."""
    rows = [{**pair, "target": None} if i % 3 == 1 else pair for i, pair in enumerate(PAIRS)]
    jsonl(rows[:100], "data/train-1.jsonl")
    jsonl(rows[100:120], "data/train-2.jsonl")
    jsonl(rows[120:], "data/train-3.jsonl")
    first, second = (prepare(seq2seq, "seq2seq", dataset=tmp_path / "data", streaming=True).train for _ in range(2))
    resumed_everywhere(first, second)


@pytest.mark.parametrize("kind", [Dataset, IterableDataset])
def test_streamed_table_resumes_where_it_stopped(seq2seq, prepare, jsonl, kind):
    """A saved dataset, and a streamed one of the Hub, which comes in shards."""
    table = Dataset.from_list(PAIRS)
    if kind is IterableDataset:
        table = table.to_iterable_dataset(num_shards=4)
    stream = prepare(seq2seq, "seq2seq", train_file=jsonl(PAIRS), streaming=True).train
    encoder = replace(stream.encoder, layout=stream.layout)
    stream = RowStream(TableSource(table, "table"), stream.layout, encoder)
    assert list(stream) == list(stream)
    resumed_everywhere(stream, stream)


def many(count):
    return [{"source": f"{i}", "target": "zwei\nZeilen" if i % 5 == 0 else f'"{i}"'} for i in range(count)]


def written(path, rows):
    """The rows in the format that the suffix says; gives the path."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=70)
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8-sig") as file:
            writer = csv.DictWriter(file, ["source", "target"])
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".txt":
        path.write_text("".join(f"Zeile {row['source']}\r\n\n" for row in rows), encoding="utf-8-sig")
    else:
        text = "\ufeff" + "\n\n".join(json.dumps(row) for row in rows)
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.csv", "a.parquet", "a.json", "a.txt"])
@pytest.mark.parametrize("keep_linebreaks", [True, False])
def test_data_file_formats_resume_from_any_mark(tmp_path, name, keep_linebreaks):
    path = written(tmp_path / name, many(200))
    rows = list(read_marked(path, keep_linebreaks=keep_linebreaks))
    assert len(rows) >= 200
    for at in (0, 1, 69, 70, 71, 140, 199, len(rows)):
        mark = rows[at - 1][0] if at else START
        assert list(read_marked(path, keep_linebreaks=keep_linebreaks, start=mark)) == rows[at:]


def test_csv_with_carriage_return_line_ends(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"source,target\ra,b\rc,d\r")
    rows = list(read_marked(path))
    assert [row for _, _, row in rows] == [{"source": "a", "target": "b"}, {"source": "c", "target": "d"}]
    assert list(read_marked(path, start=rows[0][0])) == rows[1:]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_stream_resume_of_shortened_file_rejected(tmp_path, name):
    """A file that has become shorter is not taken as read to its end."""
    path = written(tmp_path / name, many(200))
    mark = list(read_marked(path))[150][0]
    written(path, many(100))
    with pytest.raises(UsageError, match="is shorter than when this run last read it"):
        next(read_marked(path, start=mark))


def test_hub_stream_resumes_in_loader_worker(seq2seq, prepare, jsonl):
    """There `datasets` shares its shards out, and the place comes with the batch."""
    stream = prepare(seq2seq, "seq2seq", train_file=jsonl(PAIRS), streaming=True).train
    table = Dataset.from_list(PAIRS).to_iterable_dataset(num_shards=4)
    encoder = replace(stream.encoder, layout=stream.layout)
    rows = RowStream(TableSource(table, "table"), stream.layout, encoder)

    def batches(count, place=None):
        loader = DataLoader(StreamOfBatches(rows, BatchSplit(4, 0, 1)), batch_size=None, num_workers=1, collate_fn=same)
        loader.dataset.place = place
        # `datasets` words the same place in more than one way.
        return [replace(taken, after=None) if place else taken for taken in islice(loader, count)]

    whole = batches(80)
    assert [row for taken in whole[:62] for row in taken.rows] == list(rows)[:248]
    for at in (10, 62, 63, 70):
        expected = [replace(taken, after=None) for taken in whole[at : at + 5]]
        assert batches(5, place=whole[at - 1].after) == expected


def same(taken):
    return taken


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_stream_resume_far_in_reads_little(seq2seq, prepare, tmp_path, name, monkeypatch):
    """To go on behind 50,000 rows it reads one batch to tokenise, twice the lines here, or its row groups."""
    path = written(tmp_path / name, many(50_200))
    stream = prepare(seq2seq, "seq2seq", train_file=path, streaming=True).train
    reader = stream.start()
    for _ in range(50_050):
        next(reader)
    state, expected = reader.state(), next(reader)
    read = []
    monkeypatch.setattr(readers, "_numbered_lines", counting(readers._numbered_lines, read))
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counting(pq.ParquetFile.iter_batches, read))
    assert next(stream.start(state)) == expected
    assert 0 < len(read) <= 300


def counting(function, read):
    def counted(*args, **options):
        for each in function(*args, **options):
            read.extend(range(len(each)) if isinstance(each, pa.RecordBatch) else [0])
            yield each

    return counted


def test_stream_limits_and_validation(seq2seq, causal, prepare, jsonl):
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


def test_streamed_ids_outside_embedding_rejected(causal, prepare, jsonl):
    """Ids outside the embedding are refused when they come."""
    file = jsonl([{"input_ids": [1, 2]}, {"input_ids": [1, 900]}])
    data = prepare(causal, "causal-lm", train_file=file, streaming=True, vocab_size=900)
    with pytest.raises(UsageError, match="token id 900"):
        list(data.train)
