"""Sets of several kinds prepared as one: their rows, shares, notices, fingerprint, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from dsrun.errors import UsageError
from dsrun.train.data.mixture import DataMixture, token_lengths
from dsrun.train.data.overview import preview
from dsrun.train.data.token_files import TokenBin

PAIRS = [{"prompt": f"q{i} ", "completion": f"a{i}"} for i in range(8)]
CHATS = [{"question": f"q{i}", "answer": "long answer" * i} for i in range(1, 5)]
DOCUMENTS = [{"text": "words " * 20} for _ in range(3)]


@pytest.fixture
def files(jsonl):
    found = {"docs": DOCUMENTS, "pairs": PAIRS, "chats": CHATS}
    return {name: str(jsonl(rows, f"{name}.jsonl")) for name, rows in found.items()}


@pytest.fixture
def mixed(causal, prepare, files):
    """mixed(docs={…}, pairs={…}, temperature=…): the three sets with these options more; None leaves a set out."""

    def call(*, temperature=None, splits=("train",), required=(), **more):
        options = {name: {"train_file": [file]} for name, file in files.items()}
        options["chats"]["apply_chat_template"] = True
        sets = {name: options[name] | more.get(name, {}) for name in files if more.get(name, {}) is not None}
        mix = {"sets": sets} | ({"temperature": temperature} if temperature else {})
        lengths = {"block_size": 64, "validation_split_percentage": 0}
        return prepare(causal, "causal-lm", splits=splits, required=required, mix=mix, **lengths)

    return call


def texts(tokenizer, rows):
    return ["".join(tokenizer.convert_ids_to_tokens(rows[k]["input_ids"])) for k in range(len(rows))]


def test_three_kinds_of_sets_joined(mixed, causal):
    """Running text as blocks, prompts as plain text, and questions as conversations, one behind the other."""
    train = mixed().train
    assert isinstance(train, DataMixture)
    assert isinstance(train.sets["docs"], TokenBin)
    assert [len(rows) for rows in train.sets.values()] == [6, 8, 4]
    assert len(train) == 18
    assert train.shares is None
    found = texts(causal, train)
    assert found[:6] == texts(causal, train.sets["docs"])
    assert found[6] == "q0 a0</s>"
    assert found[14].startswith("<|im_start|>user\nq1<|im_end|>")
    assert train[-1]["input_ids"] == train[17]["input_ids"]
    with pytest.raises(IndexError):
        train[18]


def test_lengths_of_a_mixture_are_those_of_its_rows(mixed):
    train = mixed().train
    assert train.lengths().tolist() == [len(train[k]["input_ids"]) for k in range(len(train))]
    assert token_lengths(train).tolist() == train.lengths().tolist()


def test_rows_of_all_sets_fit_into_one_batch(mixed):
    data = mixed()
    batch = data.collator([data.train[k] for k in (0, 6, 17)])
    assert batch["input_ids"].shape == batch["labels"].shape
    assert (batch["labels"] != -100).any(1).all()


def test_shares_and_notices_of_weighted_sets(mixed):
    data = mixed(docs={"weight": 2}, pairs={"weight": 1}, chats={"weight": 1})
    assert data.train.shares.sizes == (6, 8, 4)
    assert data.train.shares.counts == (9, 5, 4)
    assert [line for line in data.notices if "% of an epoch" in line] == [
        "docs: 6 samples, 50% of an epoch: 9 an epoch, 1.5 passes",
        "pairs: 8 samples, 27.8% of an epoch: 5 an epoch, 0.625 passes",
        "chats: 4 samples, 22.2% of an epoch",
    ]
    assert data.origin == "3 sets: 18 train"


def test_temperature_evens_out_sizes(mixed):
    assert mixed(temperature=1e6).train.shares.counts == (6, 6, 6)
    assert mixed(temperature=1.0).train.shares is None


def test_options_of_one_set_leave_the_others_alone(mixed, causal):
    data = mixed(pairs={"source_prefix": "say ", "max_train_samples": 2}, chats={"apply_chat_template": False})
    assert [len(rows) for rows in data.train.sets.values()] == [6, 2, 4]
    assert texts(causal, data.train.sets["pairs"])[0].startswith("say q0")
    assert texts(causal, data.train.sets["chats"])[0].startswith("q1\nlong")


def test_notices_name_their_sets(mixed):
    notices = mixed(chats={"apply_chat_template": False}).notices
    assert any(line.startswith("the tokenizer has no padding token") for line in notices)
    assert any(line.startswith("docs: train: ") for line in notices)
    assert any(line.startswith("pairs: the model has a chat template") for line in notices)


def test_validation_held_out_of_each_set(causal, prepare, files):
    sets = {name: {"train_file": [files[name]]} for name in ("docs", "pairs")}
    sets["pairs"]["validation_split_percentage"] = 25
    data = prepare(causal, "causal-lm", splits=("train", "validation"), mix={"sets": sets}, block_size=64)
    assert [len(rows) for rows in data.validation.sets.values()] == [1, 2]
    assert [len(rows) for rows in data.train.sets.values()] == [5, 6]
    assert data.validation.shares is None
    assert any(line.startswith("pairs: no validation data: 2 of 8 training samples") for line in data.notices)


def test_set_without_training_data_is_only_evaluated_on(mixed, files):
    data = mixed(
        splits=("train", "validation", "test"),
        pairs={"validation_file": [files["pairs"]], "test_file": [files["pairs"]]},
        docs={"train_file": [], "validation_file": [files["docs"]]},
    )
    assert {split: list(getattr(data, split).sets) for split in ("train", "validation", "test")} == {
        "train": ["pairs", "chats"],
        "validation": ["docs", "pairs"],
        "test": ["pairs"],
    }
    assert data.origin == "3 sets: 12 train, 14 validation, 8 test"
    assert "not evaluated, as they have no validation data: chats" in data.notices


def test_sets_without_evaluation_data_left_out_where_nothing_is_trained(mixed, files):
    data = mixed(splits=("validation",), required=("validation",), pairs={"validation_file": [files["pairs"]]})
    assert list(data.validation.sets) == ["pairs"]
    assert data.train is None


def test_dataset_without_training_data_may_be_evaluated_on_only(mixed, jsonl):
    folder = jsonl(PAIRS, "more/validation.jsonl").parent
    evaluated = {"train_file": [], "dataset": str(folder)}
    splits = ("train", "validation")
    assert list(mixed(splits=splits, pairs=evaluated).validation.sets) == ["pairs"]
    weighed = {name: {"weight": 1} for name in ("docs", "chats")} | {"pairs": {**evaluated, "weight": 1}}
    with pytest.raises(
        UsageError, match=r"^set pairs has no training data \(to evaluate on it only, use validation_file"
    ):
        mixed(splits=splits, **weighed)


def test_mixture_without_what_is_asked_of_it_refused(mixed, files, prepare, causal):
    with pytest.raises(UsageError, match=r"no set of the mixture has test data \(give one of them test_file: FILE\)"):
        mixed(splits=("train", "test"))
    with pytest.raises(UsageError, match="no set of the mixture has validation data"):
        mixed(splits=("train", "validation"), required=("validation",))
    only = {"sets": {"a": {"validation_file": [files["pairs"]]}}}
    with pytest.raises(UsageError, match="no set of the mixture has train data"):
        prepare(causal, "causal-lm", mix=only)


def test_error_in_a_set_names_it(mixed, jsonl):
    with pytest.raises(UsageError, match=r"^set pairs: .*odd\.jsonl"):
        mixed(pairs={"train_file": [str(jsonl([{"colour": 1, "shape": 2}], "odd.jsonl"))]})
    with pytest.raises(UsageError, match=r"^set pairs: --max-train-samples 9: there are only 8 rows"):
        mixed(pairs={"max_train_samples": 9})


def test_fingerprint_of_a_mixture(mixed, jsonl):
    """It changes with any set's rows, with the weights and with the order of the sets, not with a set's name."""
    plain = mixed().train_fingerprint
    assert plain == mixed().train_fingerprint
    others = [
        mixed(chats=None).train_fingerprint,
        mixed(pairs={"max_train_samples": 7}).train_fingerprint,
        mixed(pairs={"train_file": [str(jsonl([*PAIRS[:-1], PAIRS[0]], "edited.jsonl"))]}).train_fingerprint,
        mixed(temperature=3.0).train_fingerprint,
        mixed(temperature=30.0).train_fingerprint,
    ]
    assert len({plain, *others}) == 6


def test_preview_shows_a_sample_of_each_set(mixed, causal):
    data = mixed()
    shown = ["".join(text for text, _ in parts).replace(" ", "") for parts in preview(data, causal)]
    assert len(shown) == 3
    assert shown[1].startswith("q0a0")


def test_seq2seq_sets_with_prefixes_of_their_own(seq2seq, prepare, jsonl):
    sets = {
        name: {"train_file": [str(jsonl([{"source": "x", "target": "y"}], f"{name}.jsonl"))], "source_prefix": name}
        for name in ("translate", "summarise")
    }
    train = prepare(seq2seq, "seq2seq", mix={"sets": sets}).train
    assert texts(seq2seq, train) == ["translatex</s>", "summarisex</s>"]
    assert np.asarray(train.lengths()).tolist() == [len("translatex") + 1, len("summarisex") + 1]
