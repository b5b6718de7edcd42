"""What the user is shown of the training data."""

from __future__ import annotations

import io
import re

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dsrun.train.base.console import Console
from dsrun.train.data.overview import LONGEST_PART, preview, shown, texts_of
from dsrun.train.prepare import show_samples


def printed(tokenizer, data, *, count=2, **console):
    out = io.StringIO()
    show_samples(data, tokenizer, Console(out, **console), count)
    return out.getvalue()


@pytest.fixture
def talk(causal, prepare, jsonl):
    rows = [{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": f"yo{k}"}]} for k in "ab"]
    return prepare(causal, "causal-lm", train_file=jsonl(rows), validation_split_percentage=0)


def test_learned_part_in_brackets_without_colour(causal, talk):
    lines = printed(causal, talk).replace(" ", "").splitlines()
    assert lines[0] == "samples;whatislearnedisin⟦⟧:"
    assert lines[1] == "<|im_start|>user↵hi<|im_end|>↵<|im_start|>assistant↵⟦yoa<|im_end|>⟧↵"
    assert "⟦yob<|im_end|>⟧" in lines[2]
    assert len(lines) == 3


def test_learned_part_in_colour_on_a_terminal(causal, talk, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    coloured = printed(causal, talk, width=300)
    assert "⟦" not in coloured
    assert "\x1b[1;32my" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    assert "⟦y" in printed(causal, talk, width=300)


def test_seq2seq_sample_shows_source_and_target(seq2seq, prepare, jsonl):
    data = prepare(seq2seq, "seq2seq", train_file=jsonl([{"source": "a", "target": "b"}]))
    assert printed(seq2seq, data).replace(" ", "").splitlines()[1:] == ["source:a</s>", "target:⟦b</s>⟧"]


def test_long_sample_shortened_around_what_is_learned(causal):
    ids = causal("x" * 1000 + "yz", add_special_tokens=False)["input_ids"]
    (sample,) = shown({"input_ids": ids, "labels": [-100] * 1000 + ids[1000:]}, seq2seq=False)
    (before, _), (learned, state) = sample.parts(causal)
    assert before.startswith("… ")
    assert len(before) == LONGEST_PART + 2
    assert (learned.replace(" ", ""), state) == ("yz", "learned")


def test_samples_of_a_stream_are_its_first(causal, prepare, jsonl):
    rows = [{"prompt": "a", "completion": text} for text in "bcd"]
    data = prepare(causal, "causal-lm", train_file=jsonl(rows), streaming=True, validation_split_percentage=0)
    texts = [[text.replace(" ", "") for text, _ in parts] for parts in preview(data, causal)]
    assert texts == [["a", "b</s>"], ["a", "c</s>"]]


@pytest.mark.parametrize(("count", "found"), [(0, ""), (1, "0"), (2, "04"), (3, "036"), (20, "012345678")])
def test_samples_at_equal_distances(causal, prepare, jsonl, count, found):
    rows = [{"prompt": "a", "completion": str(k)} for k in range(9)]
    data = prepare(causal, "causal-lm", train_file=jsonl(rows), validation_split_percentage=0)
    lines = printed(causal, data, count=count).replace(" ", "").splitlines()[1:]
    assert lines == [f"a⟦{each}</s>⟧" for each in found]


def test_cut_off_parts_have_marks_and_colours_of_their_own(monkeypatch):
    parts = [("a", "read"), ("b\nc", "learned"), ("d", "cut"), ("e", "lost")]
    plain, coloured = io.StringIO(), io.StringIO()
    Console(plain).marked(parts)
    assert plain.getvalue() == "  a⟦b\n  c⟧⟨d⟩⟨✂e⟩\n"
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    Console(coloured, width=80).marked(parts)
    assert len(set(re.findall(r"\x1b\[([\d;]*[1-9])m", coloured.getvalue()))) == 3


@pytest.mark.parametrize("text", ["naïve 中文 😀 done", "👩🏽‍🚀", " a  b\n\tc ", "�x", ""])
def test_texts_of_tokens_are_the_text(text):
    """Also where a character's bytes are in several tokens, and those of a sequence that ends inside one."""
    core = Tokenizer(models.BPE({each: k for k, each in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
    ids = tokenizer(text)["input_ids"]
    found = texts_of(ids, tokenizer)
    assert ("".join(found), len(found)) == (text, len(ids))
    assert "".join(texts_of(ids[:-1], tokenizer)).rstrip("�") == tokenizer.decode(ids[:-1]).rstrip("�")
