"""The prompts of --sample-prompts, and what a model goes on from."""

from __future__ import annotations

import json

import pytest

from dsrun.errors import UsageError
from dsrun.train.loop.generation import encode_prompt, read_prompts


def test_prompts_of_text_and_of_rows(tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("one\n\ntwo\n")
    assert read_prompts(text) == ["one", "two"]
    chat = [{"role": "user", "content": "w1"}]
    rows = tmp_path / "a.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ({"prompt": "one"}, {"messages": chat})))
    assert read_prompts(rows) == ["one", chat]


def test_row_without_prompt_named(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"prompt": "a"}\n{"question": "b"}\n')
    with pytest.raises(UsageError, match=r"a\.jsonl, line 2: a row needs a prompt"):
        read_prompts(file)


def test_causal_prompt_is_not_ended(seq2seq):
    """The tokenizer ends every text, after which a causal model would begin another."""
    assert seq2seq.decode(encode_prompt("a", seq2seq, prefix=None, where="x")) == "a"
    assert seq2seq.decode(encode_prompt("a", seq2seq, prefix="b", where="x")).replace(" ", "") == "ba</s>"


def test_messages_end_where_the_answer_begins(causal, seq2seq):
    messages = [{"role": "user", "content": "a"}]
    with pytest.raises(UsageError, match="no chat template"):
        encode_prompt(messages, seq2seq, prefix=None, where="x")
    assert causal.convert_ids_to_tokens(encode_prompt(messages, causal, prefix=None, where="x"))[-2:] == ["t", "\n"]
