"""The prompts of --sample-prompts, and what a model goes on from."""

from __future__ import annotations

import json

import pytest

from dsrun.errors import UsageError
from dsrun.train.loop.sample_prompts import encode_prompt, read_prompts
from tests.integration.conftest import make_tokenizer

TEMPLATE = (
    "{% for m in messages %}{{ m.role[:1] }} {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}w9{% endif %}"
)
    "{% for m in messages %}{{ m.role[:1] }} {{ m.content }} {% endfor %}{% if add_generation_prompt %}w9{% endif %}"
)


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


def test_causal_prompt_is_not_ended():
    """The tokenizer ends every text with </s> (1), after which a causal model would begin another."""
    tokenizer = make_tokenizer()
    assert encode_prompt("w1 w2", tokenizer, prefix=None, where="x") == [4, 5]
    assert encode_prompt("w1 w2", tokenizer, prefix="w0 ", where="x") == [3, 4, 5, 1]


def test_messages_end_where_the_answer_begins():
    tokenizer = make_tokenizer()
    messages = [{"role": "user", "content": "w1"}]
    with pytest.raises(UsageError, match="no chat template"):
        encode_prompt(messages, tokenizer, prefix=None, where="x")
    tokenizer.chat_template = TEMPLATE
    assert tokenizer.decode(encode_prompt(messages, tokenizer, prefix=None, where="x")).endswith("w1 w9")
