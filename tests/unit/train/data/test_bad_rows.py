"""Rows that cannot be used: one rule for all that is wrong with them, and figures as counted independently."""

import csv
import json
import random
import re

import pytest

from dsrun.errors import UsageError
from dsrun.recipe.preflight.bad_rows import UNUSABLE, refuse_bad

PAIR = {"source": "one", "target": "unu"}
FAULTS = {
    "unreadable": '{"source": ',
    "columns": {"src": "x", "tgt": "y"},
    "invalid": {"source": {"x": 1}, "target": "y"},
    "no_target": {"source": "x", "target": None},
    "no_source": {"source": "", "target": "y"},
}
TALK = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]


def written(path, rows):
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def left_out(data, key="train"):
    """By reason: rows, and the number of the first."""
    left = data.counts[key].left
    return {why: (count, int(re.search(r", (?:line|row) (\d+)", first)[1])) for why, (count, _, first) in left.items()}


@pytest.mark.parametrize("seed", range(4))
def test_counts_agree_with_independent_ones(seed, seq2seq, prepare, tmp_path):
    """Of any mixture of good and faulty rows, in one process and in several."""
    rng = random.Random(seed)
    kinds = ["good", *rng.choices(["good", "good", *FAULTS], k=2500)]
    file = written(tmp_path / "a.jsonl", [FAULTS.get(kind, PAIR) for kind in kinds])
    data = prepare(seq2seq, "seq2seq", train_file=file, max_bad_rows=0.9, num_proc=1 + seed % 2)
    expected = {why: (kinds.count(why), kinds.index(why) + 1) for why in FAULTS if why in kinds}
    assert left_out(data) == expected
    assert data.counts["train"].rows == len(kinds)
    assert len(data.train) == kinds.count("good")


@pytest.mark.parametrize("fault", ["unreadable", "columns", "invalid"])
def test_share_of_unusable_rows_named_as_mend_is_enough(fault, seq2seq, prepare, tmp_path):
    """What the error names is right to the letter, and one thousandth less is too little."""
    file = written(tmp_path / "a.jsonl", [PAIR, PAIR, FAULTS[fault]] * 7)
    with pytest.raises(UsageError, match=r"line 3") as error:
        prepare(seq2seq, "seq2seq", train_file=file)
    share = float(error.value.fix.rpartition(" ")[2])
    assert len(prepare(seq2seq, "seq2seq", train_file=file, max_bad_rows=share).train) == 14
    with pytest.raises(UsageError):
        prepare(seq2seq, "seq2seq", train_file=file, max_bad_rows=share - 0.001)


@pytest.mark.parametrize("rows", [*range(1, 40), 100, 999, 1001, 12345])
def test_named_share_is_enough_for_any_numbers(rows):
    for bad in {1, rows // 3, rows // 2, rows - 1} - {0, rows}:
        left = {"invalid": [bad, 0, "x"]}
        refuse_bad(left, rows, bad / rows)
        with pytest.raises(UsageError) as error:
            refuse_bad(left, rows, 0)
        refuse_bad(left, rows, float(error.value.fix.rpartition(" ")[2]))


def test_no_share_is_named_where_no_row_is_left():
    with pytest.raises(UsageError) as error:
        refuse_bad({"invalid": [3, 0, "x"]}, 3, 0.01)
    assert "--max-bad-rows" not in error.value.fix


def test_reasons_are_named_together_with_their_first_rows(seq2seq, prepare, tmp_path):
    file = written(tmp_path / "a.jsonl", [PAIR, *FAULTS.values()])
    with pytest.raises(UsageError) as error:
        prepare(seq2seq, "seq2seq", train_file=file)
    assert [f"line {number}:" in str(error.value) for number in range(1, 7)] == [False, True, True, True, False, False]


def test_rows_that_are_merely_empty_never_end_the_run(seq2seq, prepare, tmp_path):
    file = written(tmp_path / "a.jsonl", [PAIR, FAULTS["no_target"], FAULTS["no_source"]])
    assert len(prepare(seq2seq, "seq2seq", train_file=file, max_bad_rows=0).train) == 1
    assert not {"no_target", "no_source", "empty", "no_loss"} & set(UNUSABLE)


def test_short_rows_of_csv_are_counted(seq2seq, prepare, tmp_path):
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["source", "target"], ["a", "b"], ["c"], ["d", "e"]])
    data = prepare(seq2seq, "seq2seq", train_file=tmp_path / "a.csv", max_bad_rows=0.4)
    assert left_out(data) == {"unreadable": (1, 3)}


@pytest.mark.parametrize("streaming", [False, True])
def test_streams_have_the_same_rule(streaming, seq2seq, prepare, tmp_path):
    file = written(tmp_path / "a.jsonl", [PAIR, FAULTS["columns"]] * 1000)
    with pytest.raises(UsageError, match=r"no source and no target.*--max-bad-rows"):
        list(prepare(seq2seq, "seq2seq", train_file=file, streaming=streaming).train)
    data = prepare(seq2seq, "seq2seq", train_file=file, streaming=streaming, max_bad_rows=0.5)
    assert len(list(data.train)) == 1000


def test_rows_of_a_divided_file_are_one_share(causal, prepare, tmp_path):
    """One bad row in a hundred is 1%, wherever it is held out to."""
    for bad in range(0, 100, 9):
        talks = [{"messages": TALK}] * bad + [{"messages": [{"role": "x"}]}] + [{"messages": TALK}] * (99 - bad)
        file = written(tmp_path / "a.jsonl", talks)
        data = prepare(causal, "causal-lm", train_file=file, splits=["train", "validation"])
        assert len(data.train) + len(data.validation) == 99


def test_chats_and_preferences_count_rows_without_their_columns(causal, prepare, tmp_path):
    chats = written(tmp_path / "chats.jsonl", [{"messages": TALK}, {"talk": TALK}])
    data = prepare(causal, "causal-lm", train_file=chats, max_bad_rows=0.5, validation_split_percentage=0)
    assert left_out(data) == {"columns": (1, 2)}
    pairs = [{"prompt": "p", "chosen": "a", "rejected": "b"}, {"prompt": "p", "chosen": "a"}]
    options = {"max_bad_rows": 0.5, "validation_split_percentage": 0}
    data = prepare(causal, "dpo", train_file=written(tmp_path / "p.jsonl", pairs), **options)
    assert left_out(data) == {"columns": (1, 2)}


def test_languages_of_a_translation_are_columns(seq2seq, prepare, tmp_path):
    rows = [{"translation": {"en": "a", "ro": "b"}}, {"translation": {"en": "a", "de": "b"}}]
    data = prepare(seq2seq, "seq2seq", train_file=written(tmp_path / "a.jsonl", rows), max_bad_rows=0.5)
    assert left_out(data) == {"columns": (1, 2)}


def test_optional_columns_may_lack(causal, prepare, tmp_path):
    rows = [{"instruction": "a", "input": "b", "output": "c"}, {"instruction": "a", "output": "c"}]
    file = written(tmp_path / "a.jsonl", rows)
    assert len(prepare(causal, "causal-lm", train_file=file, validation_split_percentage=0).train) == 2


def test_empty_documents_are_counted(causal, prepare, tmp_path):
    file = written(tmp_path / "a.jsonl", [{"text": "one"}, {"text": ""}, {"text": None}, {"text": "two"}])
    data = prepare(causal, "causal-lm", train_file=file, validation_split_percentage=0)
    assert left_out(data) == {"empty": (2, 2)}


def test_sets_of_a_mixture_are_counted_apart(seq2seq, prepare, tmp_path):
    one = written(tmp_path / "a.jsonl", [PAIR, FAULTS["no_target"]])
    two = written(tmp_path / "b.jsonl", [PAIR, PAIR, FAULTS["no_source"]])
    sets = {"a": {"train_file": [str(one)]}, "b": {"train_file": [str(two)]}}
    data = prepare(seq2seq, "seq2seq", mix={"sets": sets})
    assert (left_out(data, "a train"), left_out(data, "b train")) == ({"no_target": (1, 2)}, {"no_source": (1, 3)})


def test_cached_start_counts_the_same(seq2seq, prepare, tmp_path):
    file = written(tmp_path / "a.jsonl", [PAIR, *FAULTS.values()])
    first, second = (prepare(seq2seq, "seq2seq", train_file=file, max_bad_rows=0.9) for _ in range(2))
    assert first.counts == second.counts
    assert first.counts["train"].left
