"""Texts that a tokenizer does not know: what is counted, what is said, and where it ends the run."""

import json
from types import SimpleNamespace

import pytest

from dsrun.errors import UsageError
from dsrun.train.data.counts import RowCounts
from dsrun.train.data.encoding.tokenizer import UnknownTokens
from dsrun.train.data.overview import data_facts, data_rows

NO_HOLD_OUT = {"validation_split_percentage": 0}


def counted(data):
    return data.counts["train"].words


def test_share_by_side(seq2seq, prepare, jsonl):
    """Of the tokens that are kept, special ones aside."""
    rows = [{"source": "abé", "target": "abcdefghi\u0103"}, {"source": "abcdefg", "target": "b" * 30}]
    data = prepare(seq2seq, "seq2seq", train_file=jsonl(rows), max_target_length=16)
    assert counted(data) == {"source": [10, 1], "target": [25, 1]}
    assert data_facts(data)["splits"][0]["unknown"]["source"] == 0.1
    (said,) = [text for name, text in data_rows(data, data_facts(data)) if name == "unknown"]
    assert "10% of its source tokens" in said
    assert "--model" in said


def test_ids_that_come_with_the_data_are_not_judged(seq2seq, prepare, jsonl):
    unknown = [seq2seq.unk_token_id] * 9
    data = prepare(seq2seq, "seq2seq", train_file=jsonl([{"input_ids": unknown, "labels": unknown}]))
    assert counted(data) == {}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("text", ["你好世界", "Ünïcödé"])
def test_text_of_another_language_ends_the_run(text, streaming, seq2seq, prepare, jsonl):
    file = jsonl([{"source": "a known source", "target": text}] * 100)
    with pytest.raises(UsageError, match=r"target texts.*--force"):
        list(prepare(seq2seq, "seq2seq", train_file=file, streaming=streaming).train)
    assert len(list(prepare(seq2seq, "seq2seq", train_file=file, streaming=streaming, force=True).train)) == 100


TALK = [{"role": "user", "content": "你" * 99}, {"role": "assistant", "content": "好"}]


@pytest.mark.parametrize("row", [{"text": "你好"}, {"prompt": "你好", "completion": "你"}, {"messages": TALK}])
def test_causal_data_is_checked(row, causal, prepare, jsonl):
    with pytest.raises(UsageError, match="does not know"):
        prepare(causal, "causal-lm", train_file=jsonl([row]), **NO_HOLD_OUT)


def test_both_answers_of_preferences_are_counted(causal, prepare, jsonl):
    rows = [{"prompt": "ab", "chosen": "cdefghé", "rejected": "ij"}]
    data = prepare(causal, "dpo", train_file=jsonl(rows), force=True, **NO_HOLD_OUT)
    assert counted(data) == {"source": [13, 1]}


def tokenizer(**known):
    """Of which 7 is the beginning of a word."""
    return SimpleNamespace(convert_tokens_to_ids={"▁": 7}.get, **known)


def test_a_token_with_another_use_counts_nothing():
    """GPT-2's unknown token ends its texts."""
    both = tokenizer(unk_token_id=5, eos_token_id=5, all_special_ids=[5])
    assert UnknownTokens.of(both).unknown is None
    assert UnknownTokens.of(tokenizer(unk_token_id=None, all_special_ids=[])).unknown is None


def test_beginning_of_a_word_is_no_word():
    """T5 makes it and one unknown token of a whole Chinese sentence."""
    counts = RowCounts()
    UnknownTokens.of(tokenizer(unk_token_id=2, all_special_ids=[0, 1, 2])).count(
        "source", [[7, 2, 1], [7, 9, 1]], counts
    )
    assert counts.words == {"source": [2, 1]}


def test_counts_are_those_of_decoded_rows(seq2seq, prepare, tmp_path):
    file = tmp_path / "a.jsonl"
    rows = [{"source": "é" * (i % 3) + "x" * (9 + i % 5), "target": "y" * (1 + i % 4)} for i in range(300)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = prepare(seq2seq, "seq2seq", train_file=file, num_proc=2)
    ids = [token for row in data.train for token in row["input_ids"] if token != seq2seq.eos_token_id]
    assert counted(data)["source"] == [len(ids), ids.count(seq2seq.unk_token_id)]
