"""What the user is shown of the training data."""

from __future__ import annotations

import io

import pytest

from dsrun.train.base.console import Console
from dsrun.train.data.preview import LONGEST_PART, parts_of, preview
from dsrun.train.prepare import show_samples


def shown(tokenizer, data, **console):
    out = io.StringIO()
    show_samples(data, tokenizer, Console(out, **console))
    return out.getvalue()


@pytest.fixture
def talk(causal, prepare, jsonl):
    rows = [{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": f"yo{k}"}]} for k in "ab"]
    return prepare(causal, "causal-lm", train_file=jsonl(rows), validation_split_percentage=0)


def test_learned_part_in_brackets_without_colour(causal, talk):
    lines = shown(causal, talk).replace(" ", "").splitlines()
    assert lines[0] == "samples;whatislearnedisin⟦⟧:"
    assert lines[1] == "<|im_start|>user↵hi<|im_end|>↵<|im_start|>assistant↵⟦yoa<|im_end|>⟧↵"
    assert "⟦yob<|im_end|>⟧" in lines[2]
    assert len(lines) == 3


def test_learned_part_in_colour_on_a_terminal(causal, talk, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    coloured = shown(causal, talk, width=300)
    assert "⟦" not in coloured
    assert "\x1b[1;32my" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    assert "⟦y" in shown(causal, talk, width=300)


def test_seq2seq_sample_shows_source_and_target(seq2seq, prepare, jsonl):
    data = prepare(seq2seq, "seq2seq", train_file=jsonl([{"source": "a", "target": "b"}]))
    assert "a</s>->⟦b</s>⟧" in shown(seq2seq, data).replace(" ", "")


def test_long_sample_shortened_around_what_is_learned(causal):
    ids = causal("x" * 1000 + "yz", add_special_tokens=False)["input_ids"]
    (before, _), (learned, mark) = parts_of(
        {"input_ids": ids, "labels": [-100] * 1000 + ids[1000:]}, causal, seq2seq=False
    )
    assert before.startswith("… ")
    assert len(before) == LONGEST_PART + 2
    assert (learned.replace(" ", ""), mark) == ("yz", True)


def test_samples_of_a_stream_are_its_first(causal, prepare, jsonl):
    rows = [{"prompt": "a", "completion": text} for text in "bcd"]
    data = prepare(causal, "causal-lm", train_file=jsonl(rows), streaming=True, validation_split_percentage=0)
    texts = [[text.replace(" ", "") for text, _ in parts] for parts in preview(data, causal)]
    assert texts == [["a", "b</s>"], ["a", "c</s>"]]
