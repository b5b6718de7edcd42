"""What is said of the data before training: figures as an independent count has them."""

import math
import random

import numpy as np
import pytest

from dsrun.train.data.batches import BatchSplit, GlobalBatchSampler, TrainingRows
from dsrun.train.data.overview import data_facts, data_rows, padding_of, percent
from dsrun.train.loop.loaders import _Collate
from dsrun.train.packing.sampler import BatchGrouping, WindowSampler

NO_HOLD_OUT = {"validation_split_percentage": 0}


def names(rows):
    return [name for name, _ in rows]


def pairs(count, seed=0):
    rng = random.Random(seed)
    return [{"source": "s" * rng.randint(1, 30), "target": "t" * rng.randint(1, 9)} for _ in range(count)]


def collated(batches, rows, collator, *, both):
    """Tokens and cells as training counts them for metrics.jsonl."""
    made = [_Collate(collator, both, joins=False)(TrainingRows(rows).__getitems__(batch)) for batch in batches]
    return 1 - sum(each.tokens for each in made) / sum(each.cells for each in made)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", ["plain", "grouped", "budget"])
@pytest.mark.parametrize("fixed", [False, True])
def test_padding_is_that_of_training(ranks, kind, fixed, seq2seq, prepare, jsonl):
    file = jsonl(pairs(103))
    data = prepare(seq2seq, "seq2seq", train_file=file, pad_to_max_length=fixed, max_length=40, max_target_length=12)
    lengths = np.array([[len(row["input_ids"]), len(row["labels"])] for row in data.train])
    for rank in range(ranks):
        split = BatchSplit(4, rank, ranks, 2)
        if kind == "budget":
            sampler = WindowSampler(lengths, split, BatchGrouping("budget", split.global_batch, 4))
        else:
            widest = lengths.max(1) if kind == "grouped" else None
            sampler = GlobalBatchSampler(len(lengths), split, lengths=widest)
        expected = collated(sampler, data.train, data.collator, both=True)
        assert padding_of(sampler, data.train, data.collator) == pytest.approx(expected)


@pytest.mark.parametrize("task", ["causal-lm", "dpo"])
def test_padding_of_one_sequence_or_two_answers(task, causal, prepare, jsonl):
    rng = random.Random(1)
    rows = [
        {"prompt": "p" * rng.randint(1, 9), "chosen": "c" * rng.randint(1, 9), "rejected": "r" * rng.randint(1, 9)}
        for _ in range(50)
    ]
    rows = rows if task == "dpo" else [{"prompt": row["prompt"], "completion": row["chosen"]} for row in rows]
    data = prepare(causal, task, train_file=jsonl(rows), **NO_HOLD_OUT)
    sampler = GlobalBatchSampler(len(data.train), BatchSplit(8, 0, 1))
    assert padding_of(sampler, data.train, data.collator) == pytest.approx(
        collated(sampler, data.train, data.collator, both=False)
    )


def test_padding_of_a_mixture(causal, prepare, jsonl):
    files = [
        jsonl([{"prompt": "p" * n, "completion": "c"} for n in range(1, size)], f"{size}.jsonl") for size in (9, 30)
    ]
    sets = {f"s{number}": {"train_file": [str(file)]} for number, file in enumerate(files)}
    data = prepare(causal, "causal-lm", mix={"sets": sets}, **NO_HOLD_OUT)
    sampler = GlobalBatchSampler(len(data.train), BatchSplit(4, 0, 1))
    expected = collated(sampler, data.train, data.collator, both=False)
    assert padding_of(sampler, data.train, data.collator) == pytest.approx(expected)
    assert [each["name"] for each in data_facts(data)["splits"]] == ["s0 train", "s1 train"]


@pytest.mark.parametrize("batch", [1, 7, 60, 61, 512])
@pytest.mark.parametrize("drop_last", [False, True])
def test_steps_of_an_epoch(batch, drop_last, seq2seq, prepare, jsonl):
    data = prepare(seq2seq, "seq2seq", train_file=jsonl(pairs(60)))
    facts = data_facts(data, global_batch=batch, drop_last=drop_last)
    assert facts["steps_per_epoch"] == (math.floor if drop_last else math.ceil)(60 / batch)
    shown = dict(data_rows(data, facts, fewer="--global-batch-size to 60"))["samples"]
    assert ("fewer than" in shown, "--global-batch-size to 60" in shown) == (batch > 60, batch > 60)


def test_truncated_share_and_the_flags_that_lower_it(seq2seq, prepare, jsonl):
    rows = pairs(200)
    options = {"max_source_length": 20, "max_target_length": 8}
    data = prepare(seq2seq, "seq2seq", train_file=jsonl(rows), **options)
    cut = sum(len(row["source"]) + 1 > 20 or len(row["target"]) + 1 > 8 for row in rows)
    facts = data_facts(data)
    assert facts["splits"][0]["truncated"] == cut / 200
    shown = dict(data_rows(data, facts))["truncated"]
    assert ("--max-source-length" in shown, "--max-target-length" in shown) == (True, True)
    # What is named helps.
    longer = prepare(seq2seq, "seq2seq", train_file=jsonl(rows), max_source_length=31, max_target_length=10)
    assert data_facts(longer)["splits"][0]["truncated"] == 0
    # Where the model has no more positions, no flag does.
    full = prepare(seq2seq, "seq2seq", train_file=jsonl(rows), max_positions=20, max_target_length=10)
    assert "raise" not in dict(data_rows(full, data_facts(full)))["truncated"]


@pytest.mark.parametrize(("given", "flag"), [({"max_length": 4}, "--max-length"), ({"block_size": 4}, "--block-size")])
def test_flag_of_a_causal_models_length(given, flag, causal, prepare, jsonl):
    rows = [{"prompt": "a", "completion": "b" * 9}]
    data = prepare(causal, "causal-lm", train_file=jsonl(rows), **given, **NO_HOLD_OUT)
    assert f"(raise {flag})" in dict(data_rows(data, data_facts(data)))["truncated"]
    raised = dict.fromkeys(given, 20)
    assert not prepare(causal, "causal-lm", train_file=jsonl(rows), **raised, **NO_HOLD_OUT).counts["train"].cut


def test_nothing_is_said_where_nothing_is_worth_it(seq2seq, prepare, jsonl):
    data = prepare(seq2seq, "seq2seq", train_file=jsonl(pairs(60)))
    assert names(data_rows(data, data_facts(data))) == ["data"]
    assert names(data_rows(data, data_facts(data, global_batch=10, padding=0.01))) == ["data", "samples"]


def test_all_that_is_worth_a_word(seq2seq, prepare, jsonl):
    rows = [*pairs(60), {"source": "é" + "s" * 50, "target": "t"}, {"source": "s", "target": None}]
    data = prepare(seq2seq, "seq2seq", train_file=jsonl(rows), max_source_length=40)
    shown = data_rows(data, data_facts(data, global_batch=10, padding=0.41), even="leave out --x")
    assert names(shown) == ["data", "dropped", "samples", "truncated", "padding", "unknown"]
    assert ("41%" in dict(shown)["padding"], "leave out --x" in dict(shown)["padding"]) == (True, True)


def test_streamed_data_is_unknown(seq2seq, prepare, jsonl):
    data = prepare(seq2seq, "seq2seq", train_file=jsonl(pairs(60)), streaming=True)
    facts = data_facts(data, global_batch=10)
    assert (facts["samples"], facts["steps_per_epoch"]) == (None, None)
    (split,) = facts["splits"]
    assert (split["rows"], split["samples"], split["dropped"], split["truncated"]) == (None,) * 4
    assert "unknown" in dict(data_rows(data, facts))["samples"]


def test_running_text_has_blocks(causal, prepare, jsonl):
    data = prepare(causal, "causal-lm", train_file=jsonl([{"text": "abcdefg"}] * 8), block_size=10, **NO_HOLD_OUT)
    (split,) = data_facts(data)["splits"]
    assert (split["rows"], split["samples"], split["truncated"]) == (8, math.ceil(8 * 8 / 10), None)


@pytest.mark.parametrize(("share", "text"), [(0.0321, "3.2%"), (0.412, "41%"), (1.0, "100%"), (0.0005, "0.05%")])
def test_percent(share, text):
    assert percent(share) == text
