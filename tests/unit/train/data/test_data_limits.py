"""How long a sample may be and how many are used."""

import pytest

from dsrun.errors import UsageError

PAIR = {"source": "one", "target": "unu"}
NO_HOLD_OUT = {"validation_split_percentage": 0}


@pytest.mark.parametrize(
    ("task", "flags", "named"),
    [
        (
            "causal-lm",
            {"max_source_length": 4, "max_target_length": 4},
            "no --max-source-length or --max-target-length",
        ),
        ("causal-lm", {"max_length": 4}, None),
        ("causal-lm", {"block_size": 4}, None),
        ("seq2seq", {"block_size": 4}, "no --block-size"),
        ("seq2seq", {"max_source_length": 4, "max_target_length": 4}, None),
    ],
)
def test_length_flag_of_other_task_named(task, flags, named, request, prepare, jsonl):
    """A length that this kind of model does not have is named."""
    tokenizer = request.getfixturevalue("seq2seq" if task == "seq2seq" else "causal")
    row = PAIR if task == "seq2seq" else {"text": "one"}
    data = prepare(tokenizer, task, train_file=jsonl([row]), splits=["train"], **NO_HOLD_OUT, **flags)
    said = [notice for notice in data.notices if "nothing is cut there" in notice]
    assert [named in notice for notice in said] == ([True] if named else [])


def test_truncation_counts_each_sample_once(seq2seq, prepare, jsonl):
    rows = [
        {"source": "a" * 4, "target": "b" * 3},  # fits exactly, with its end token
        {"source": "a" * 5, "target": "b"},
        {"source": "a", "target": "b" * 9},
        {"source": "a" * 9, "target": "b" * 9},
    ]
    options = {"max_source_length": 5, "max_target_length": 4}
    data = prepare(seq2seq, "seq2seq", train_file=jsonl(rows), **options)
    assert (data.counts["train"].cut, data.counts["train"].encoded) == (3, 4)
    assert data.counts["train"].truncation() == "3 of 4 examples were cut at 5 source or 4 target tokens"
    assert seq2seq.convert_ids_to_tokens(data.train[3]["labels"]) == ["b", "b", "b", "</s>"]
    data = prepare(seq2seq, "seq2seq", train_file=jsonl(rows[:2], "b.jsonl"), **options)
    assert data.counts["train"].truncation() == "1 of 2 examples was cut at 5 tokens"
    data = prepare(seq2seq, "seq2seq", train_file=jsonl(rows[2:3], "c.jsonl"), **options)
    assert data.counts["train"].truncation() == "1 of 1 examples was cut at 4 tokens"
    data = prepare(seq2seq, "seq2seq", train_file=jsonl(rows[:1], "d.jsonl"), **options)
    assert data.counts["train"].truncation() == "none of 1 examples was cut at 5 tokens"


def test_max_train_samples(seq2seq, causal, prepare, jsonl, tmp_path):
    file = jsonl([{"source": str(i), "target": "x"} for i in range(10)])
    assert len(prepare(seq2seq, "seq2seq", train_file=file, max_train_samples=3).train) == 3
    with pytest.raises(UsageError, match=r"--max-train-samples 11: there are only 10 rows in .*train.jsonl"):
        prepare(seq2seq, "seq2seq", train_file=file, max_train_samples=11)
    (tmp_path / "a.txt").write_text("abcd\n" * 10)
    data = prepare(
        causal, "causal-lm", train_file=tmp_path / "a.txt", block_size=10, max_train_samples=2, **NO_HOLD_OUT
    )
    assert ["".join(causal.convert_ids_to_tokens(list(row["input_ids"]))) for row in data.train] == ["abcd\n" * 2] * 2
    with pytest.raises(UsageError, match="there are only 6 blocks of 10 tokens"):
        prepare(
            causal,
            "causal-lm",
            train_file=tmp_path / "a.txt",
            block_size=10,
            max_train_samples=9,
            **NO_HOLD_OUT,
        )


def test_max_train_samples_reads_beginning_only(causal, prepare, jsonl):
    """Few blocks of a large corpus need its beginning only."""
    file = jsonl([{"text": "abcd"}] * 3000)
    seen = []
    data = prepare(
        causal,
        "causal-lm",
        train_file=file,
        block_size=10,
        max_train_samples=2,
        progress=lambda *a: seen.append(a),
        **NO_HOLD_OUT,
    )
    assert len(data.train) == 2
    assert seen[-1] == ("train", 1000, 1000)


@pytest.mark.parametrize("flag", ["max_source_length", "max_target_length", "val_max_target_length", "max_length"])
def test_invalid_max_lengths_rejected(seq2seq, prepare, jsonl, flag):
    name = "--" + flag.replace("_", "-")
    with pytest.raises(UsageError, match=f"{name} 0: a sequence needs at least 2 tokens"):
        prepare(seq2seq, "seq2seq", train_file=jsonl([PAIR]), **{flag: 0})
    with pytest.raises(UsageError, match=f"{name} 65: only 64 positions are known"):
        prepare(seq2seq, "seq2seq", train_file=jsonl([PAIR]), max_positions=64, **{flag: 65})
    prepare(seq2seq, "seq2seq", train_file=jsonl([PAIR]), max_positions=64, model_type="t5", **{flag: 65})


def test_default_max_lengths(seq2seq, causal, prepare, jsonl):
    file = jsonl([{"source": "a" * 2000, "target": "b" * 2000}])
    row = prepare(seq2seq, "seq2seq", train_file=file).train[0]
    assert (len(row["input_ids"]), len(row["labels"])) == (1024, 128)
    row = prepare(seq2seq, "seq2seq", train_file=file, max_positions=100).train[0]
    assert (len(row["input_ids"]), len(row["labels"])) == (100, 100)
    seq2seq.model_max_length = 512
    assert len(prepare(seq2seq, "seq2seq", train_file=file, model_type="t5").train[0]["input_ids"]) == 512
    file = jsonl([{"text": "a" * 100}], "text.jsonl")
    assert len(prepare(causal, "causal-lm", train_file=file, max_positions=40, **NO_HOLD_OUT).train[0]["labels"]) == 40
