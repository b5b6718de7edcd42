"""Split names, and what the Hub's refusals become."""

import pytest
from datasets import Audio, Dataset, DatasetInfo, Features, IterableDataset, Value
from datasets.exceptions import DatasetNotFoundError
from transformers import MBart50Tokenizer

from dsrun.errors import MissingError, UsageError
from dsrun.recipe.preflight.splits import split_of
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.data.encoding.tokenizer import is_multilingual, set_languages
from dsrun.train.data.reading.sources import find_sources


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train.json", "train"), ("valid.csv", "validation"), ("dev-00000-of-00002.parquet", "validation"),
        ("wmt_val.jsonl", "validation"), ("eval", "validation"), ("Test.txt", "test"), ("training.csv", "train"),
        ("strain.json", None), ("latest.json", None), ("values.csv", None),
    ],
)  # fmt: skip
def test_split_from_file_name(name, split):
    assert split_of(name) == split


@pytest.mark.parametrize(
    ("raised", "expected", "line"),
    [
        (
            ConnectionError("Couldn't reach 'x/y' on the Hub (LocalEntryNotFoundError)"),
            MissingError,
            "cannot be fetched",
        ),
        (
            DatasetNotFoundError("Dataset 'x/y' doesn't exist on the Hub"),
            UsageError,
            "does not exist on the Hub",
        ),
        (
            DatasetNotFoundError("Dataset 'x/y' is a gated dataset on the Hub."),
            UsageError,
            "is gated .*hf auth login",
        ),
        (
            ValueError("Config name is missing.\nPick one"),
            UsageError,
            "Config name is missing. .*--dataset-config",
        ),
        (
            RuntimeError("Dataset scripts are no longer supported"),
            UsageError,
            "scripts are no longer supported",
        ),
    ],
)
def test_hub_dataset_error_is_one_line(monkeypatch, raised, expected, line):
    def refuse(*_args, **_options):
        raise raised

    # The Hub cannot be reached from tests; the exceptions are those `datasets` raises.
    monkeypatch.setattr("datasets.load_dataset", refuse)
    with pytest.raises(expected, match=line) as error:
        find_sources(TrainSpec(dataset="x/y"))
    assert "\n" not in str(error.value)


def test_hub_dataset_splits(monkeypatch, seq2seq, prepare):
    rows = [{"document": "abc", "summary": "a", "id": i} for i in range(4)]
    splits = {
        "train": Dataset.from_list(rows),
        "validation": Dataset.from_list(rows),
        "extra": Dataset.from_list(rows),
    }
    monkeypatch.setattr("datasets.load_dataset", lambda *_args, **_options: splits)
    data = prepare(seq2seq, "seq2seq", dataset="org/sums", dataset_config="en", splits=["train", "validation"])
    assert data.origin == "org/sums/en: 4 train, 4 validation"
    assert data.validation[3]["source_text"] == "abc"
    streamed = {
        name: IterableDataset.from_generator(lambda: iter(rows), features=table.features)
        for name, table in splits.items()
    }
    monkeypatch.setattr("datasets.load_dataset", lambda *_args, **_options: streamed)
    data = prepare(
        seq2seq,
        "seq2seq",
        dataset="org/sums",
        streaming=True,
        splits=["train", "validation"],
        max_eval_samples=2,
    )
    assert len(list(data.train)) == 4
    assert len(data.validation) == 2


def test_hub_dataset_wrong_row_named(monkeypatch, seq2seq, prepare):
    rows = [{"source": "a", "target": "b"}, {"source": "a", "target": None}]
    monkeypatch.setattr("datasets.load_dataset", lambda *_args, **_options: {"train": Dataset.from_list(rows)})
    data = prepare(seq2seq, "seq2seq", dataset="org/x")
    assert data.counts["train"].left["no_target"] == [1, 0, "org/x (train), row 2"]


def test_dataset_without_known_split_rejected(monkeypatch):
    monkeypatch.setattr("datasets.load_dataset", lambda *_args, **_options: {"extra": Dataset.from_list([{"a": 1}])})
    with pytest.raises(UsageError, match="no split named train, validation or test; found: extra"):
        find_sources(TrainSpec(dataset="org/x"))


def test_dataset_folders(tmp_path):
    (tmp_path / "a.xyz").write_text("x")
    with pytest.raises(UsageError, match="contains no data files"):
        find_sources(TrainSpec(dataset=str(tmp_path)))
    (tmp_path / "ro-en").mkdir()
    (tmp_path / "ro-en" / "part.jsonl").write_text("{}")
    assert set(find_sources(TrainSpec(dataset=str(tmp_path), dataset_config="ro-en")).splits) == {"train"}
    with pytest.raises(UsageError, match="no folder of that name"):
        find_sources(TrainSpec(dataset=str(tmp_path), dataset_config="de-en"))
    with pytest.raises(UsageError, match=r"--dataset-config ro-en: --dataset .* is a file"):
        find_sources(TrainSpec(dataset=str(tmp_path / "ro-en" / "part.jsonl"), dataset_config="ro-en"))
    (tmp_path / "train.json").write_text("{}")
    (tmp_path / "train.txt").write_text("a\n1\n")
    with pytest.raises(UsageError, match="json and txt files cannot be mixed in one split"):
        find_sources(TrainSpec(dataset=str(tmp_path)))


def test_files_without_split_in_name_reported(tmp_path, seq2seq, prepare):
    for name in ("train-1.csv", "more.csv", "sub/train.csv", "sub/also.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("source,target,,\na,b,,\n")
    data = prepare(seq2seq, "seq2seq", dataset=str(tmp_path))
    assert len(data.train) == 2
    assert [notice for notice in data.notices if "left out" in notice] == [
        f"{tmp_path}: more.csv and 1 more left out: other files have a split in their name"
    ]


@pytest.fixture
def mbart():
    vocab = [
        ("<s>", 0.0),
        ("<pad>", 0.0),
        ("</s>", 0.0),
        ("<unk>", 0.0),
        ("▁", -1.0),
        ("a", -2.0),
        ("b", -2.0),
    ]
    return MBart50Tokenizer(vocab=vocab)


def test_language_tokens_in_every_sample(mbart, prepare, jsonl):
    file = jsonl([{"translation": {"en": "a", "ro": "b"}}])
    data = prepare(mbart, "seq2seq", train_file=file, source_lang="en_XX", target_lang="ro_RO")
    source = mbart.convert_ids_to_tokens(data.train[0]["input_ids"])
    target = mbart.convert_ids_to_tokens(data.train[0]["labels"])
    assert (source[0], target[0]) == ("en_XX", "ro_RO")


def test_missing_or_unknown_language_rejected(mbart, seq2seq):
    assert is_multilingual(mbart)
    assert not is_multilingual(seq2seq)
    with pytest.raises(UsageError, match="needs --target-lang"):
        set_languages(mbart, "en_XX", None)
    with pytest.raises(UsageError, match=r"--target-lang ro: .*does not know this language .*ro_RO"):
        set_languages(mbart, "en_XX", "ro")


@pytest.mark.parametrize("kind", ["numpy", "torch", "arrow", None])
def test_rows_of_a_table_are_plain_whatever_its_format(kind, causal, prepare, tmp_path):
    rows = {"input_ids": [[5, 6, 7], [5, 8]], "completion_mask": [[0, 1, 1], [0, 1]]}
    Dataset.from_dict(rows).with_format(kind).save_to_disk(str(tmp_path / "saved"))
    data = prepare(causal, "causal-lm", dataset=tmp_path / "saved", validation_split_percentage=0)
    assert [row["labels"] for row in data.train] == [[-100, 6, 7], [-100, 8]]


def test_media_of_a_table_are_not_decoded(causal, prepare, tmp_path, monkeypatch):
    """Which takes packages that dsrun has no use for; rows with media are refused, unless they are ignored."""

    def decode(*_):
        raise ImportError("torchcodec")

    monkeypatch.setattr(Audio, "decode_example", decode)
    stored = Dataset.from_dict({"text": ["ab"] * 3, "audio": [{"bytes": b"RIFF", "path": "a.wav"}] * 3})
    info = DatasetInfo(features=Features({"text": Value("string"), "audio": Audio()}))
    Dataset(stored.data.table, info=info).save_to_disk(str(tmp_path / "saved"))
    given = {"dataset": tmp_path / "saved", "validation_split_percentage": 0}
    with pytest.raises(UsageError, match="'audio' is not empty"):
        prepare(causal, "causal-lm", **given)
    data = prepare(causal, "causal-lm", **given, ignore_columns=["audio"])
    assert len(data.train) == 1
