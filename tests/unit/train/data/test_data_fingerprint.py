"""The training data's fingerprint: the same for the same samples, another one after any change that training sees."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from dsrun.system.variables import cache_root

PAIRS = [{"source": f"one {i}", "target": f"unu {i}"} for i in range(50)]
TEXTS = [{"text": f"line {i:02}"} for i in range(50)]


@pytest.fixture
def fingerprint(seq2seq, causal, prepare, jsonl):
    def of(rows, **options):
        task = "seq2seq" if "source" in rows[0] else "causal-lm"
        options = {} if task == "seq2seq" else {"validation_split_percentage": 0, "block_size": 16, **options}
        file = jsonl(rows)
        found = prepare(seq2seq if task == "seq2seq" else causal, task, train_file=file, **options)
        return found.train_fingerprint

    return of


def edited(rows, number, **values):
    return [*rows[:number], {**rows[number], **values}, *rows[number + 1 :]]


def test_training_data_fingerprint_of_rows(fingerprint):
    """An edit, another order, and words that move from one row to the next, each with the same number of rows."""
    plain = fingerprint(PAIRS)
    others = [
        edited(PAIRS, 20, source="one 99"),
        edited(PAIRS, 20, target="unu 99"),
        [PAIRS[1], PAIRS[0], *PAIRS[2:]],
        PAIRS[1:],
    ]
    found = [fingerprint(rows) for rows in others]
    assert len({plain, *found}) == 5
    assert fingerprint(PAIRS) == plain


def test_training_data_fingerprint_keeps_row_boundaries(causal, prepare, jsonl):
    """The same ids in the same order, cut elsewhere."""
    cuts = [[[5, 6], [7]], [[5], [6, 7]]]
    rows = [[{"input_ids": ids, "labels": [1] * len(ids)} for ids in cut] for cut in cuts]
    options = {"validation_split_percentage": 0}
    found = {prepare(causal, "causal-lm", train_file=jsonl(each), **options).train_fingerprint for each in rows}
    assert len(found) == 2


@pytest.mark.parametrize("rows", [PAIRS, TEXTS], ids=["rows", "blocks"])
def test_training_data_fingerprint_survives_new_cache_and_processes(fingerprint, rows):
    plain = fingerprint(rows)
    shutil.rmtree(cache_root() / "prepared")
    assert fingerprint(rows, num_proc=3) == plain


@pytest.mark.parametrize("streaming", [False, True])
def test_training_data_fingerprint_of_text(fingerprint, streaming):
    options = {"streaming": streaming}
    found = {
        fingerprint(TEXTS, **options),
        fingerprint(edited(TEXTS, 20, text="line 99"), **options),
        fingerprint(TEXTS, block_size=32, **options),
        fingerprint(TEXTS, max_train_samples=3, **options),
    }
    assert len(found) == 4
    assert all(found)
    assert fingerprint(TEXTS, **options) in found


def test_training_data_fingerprint_of_token_file(causal, prepare, tmp_path):
    def of(tokens, **options):
        path = tmp_path / "tokens.bin"
        path.write_bytes(np.array(tokens, dtype="<u2").tobytes())
        options = {"validation_split_percentage": 0, "block_size": 8, **options}
        return prepare(causal, "causal-lm", train_file=str(path), **options).train_fingerprint

    plain = of(range(64))
    assert len({plain, of([*range(63), 1]), of(range(64), block_size=16), of(range(64), max_train_samples=2)}) == 4
    assert of(range(64)) == plain
