"""What `dsrun init` finds in a folder: data files and their columns, models."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from dsrun.cli.init.found import READ, cached_models, data_files, model_folders, read_sample, row_count
from dsrun.errors import UsageError

T5 = {"model_type": "t5", "is_encoder_decoder": True}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_model(path: Path, config: dict, weights: str | None = "model.safetensors") -> None:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    if weights:
        (path / weights).write_bytes(b"")


def test_data_files_likeliest_training_data_first(folder):
    pairs = "source,target\na,b\n"
    for name in ("train.csv", "more.csv", "valid.csv"):
        (folder / name).write_text(pairs)
    (folder / "data").mkdir()
    (folder / "data/train-2.tsv").write_text("text\nx\n")
    (folder / "story.txt").write_text("once\n")
    (folder / "odd.csv").write_text("x,y\n1,2\n")
    assert [str(each.path) for each in data_files(folder)] == [
        "train.csv", "data/train-2.tsv", "more.csv", "story.txt", "odd.csv", "valid.csv",
    ]  # fmt: skip


def test_what_is_no_data_is_not_offered(folder):
    (folder / "requirements-dev.txt").write_text("torch\n")
    (folder / "package.json").write_text('{"name": "x", "version": "1"}')
    (folder / "empty.csv").write_text("")
    (folder / "broken.jsonl").write_text("{\n{\n")
    (folder / ".hidden.jsonl").write_text('{"text": "x"}\n')
    (folder / "model.bin").write_bytes(b"1234")
    (folder / "folder.json").mkdir()
    assert data_files(folder) == []


def test_heads_of_few_files_are_read(folder):
    """A folder may hold thousands of shards."""
    for number in range(READ + 10):
        (folder / f"shard-{number}.jsonl").write_text('{"text": "x"}\n')
    (folder / "train.jsonl").write_text('{"text": "x"}\n')
    found = data_files(folder)
    assert len(found) == READ
    assert found[0].path == Path("train.jsonl")


def test_names_that_cannot_be_shown_are_not_offered(folder):
    (folder / "tr\x1bain.csv").write_text("text\nx\n")
    assert data_files(folder) == []


def test_description_says_size_and_columns(folder):
    (folder / "a.csv").write_text("document,summary\nx,y\n")
    (folder / "b.csv").write_text("x,y\n" + "1,2\n" * 300)
    first, second = data_files(folder)
    assert first.description("seq2seq") == "21 B, document → summary"
    assert second.description(None) == "1.2 KiB, columns x, y"


def test_sample_has_the_first_value_of_each_column(folder):
    (folder / "a.csv").write_text("text,label\n,1\nhello,2\n")
    assert read_sample(folder / "a.csv") == {"text": "hello", "label": "1"}
    (folder / "b.tsv.gz").write_bytes(gzip.compress("source\ttarget\nä\tb\n".encode()))
    assert read_sample(folder / "b.tsv.gz") == {"source": "ä", "target": "b"}
    (folder / "c.jsonl").write_text('{"messages": [1]}\n')
    assert read_sample(folder / "c.jsonl") == {"messages": [1]}


def test_sample_of_parquet(folder):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"source": ["a"], "target": ["b"]}), folder / "a.parquet")
    assert read_sample(folder / "a.parquet") == {"source": "a", "target": "b"}
    (folder / "b.parquet").write_bytes(b"PAR1 and nothing else PAR1")
    with pytest.raises(UsageError, match=r"b.parquet is not a valid Parquet file: "):
        read_sample(folder / "b.parquet")


def test_row_count_from_the_head(folder):
    (folder / "a.jsonl").write_text('{"text": "0123456789"}\n' * 40_000)
    assert row_count(folder / "a.jsonl") == pytest.approx(40_000, rel=0.01)
    (folder / "a.json").write_text("[]")
    assert row_count(folder / "a.json") is None


def test_model_folders_that_can_be_trained(folder):
    make_model(folder / "one", T5)
    make_model(folder / "models/two", {"model_type": "llama"}, "pytorch_model.bin")
    make_model(folder / "bare", T5, weights=None)
    make_model(folder / "vision", {"model_type": "vit"})
    make_model(folder / "reader", {"model_type": "bert"})
    (folder / "other").mkdir()
    assert list(model_folders(folder)) == [("./one", "t5, a folder here"), ("./models/two", "llama, a folder here")]


def test_cached_models_of_the_hub(folder):
    make_model(folder / "models--org--small/snapshots/abc", T5)
    make_model(folder / "models--half/snapshots/abc", T5, weights=None)
    environ = {"HF_HUB_CACHE": str(folder)}
    assert list(cached_models(environ)) == [("org/small", "t5, in the Hub's cache")]
    assert list(cached_models({"HF_HUB_CACHE": str(folder / "none")})) == []
