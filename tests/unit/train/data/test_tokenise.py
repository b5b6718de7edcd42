"""Running text is tokenised in threads of this process, to the ids that the tokenizer itself gives."""

import os

import datasets
import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from dsrun.train.data import cache
from dsrun.train.data.encoding.tokenise import RowEncoder
from dsrun.train.data.encoding.tokenizer import plain_backend

TEXTS = ["ab", "b a", "", "</s> within", "<s>ab", "a" * 300, "abba\n"] * 40


def tokens(blocks):
    return np.concatenate([block["input_ids"] for block in blocks]).tolist()


def refuse(*_, **__):
    raise AssertionError("not this way")


@pytest.mark.parametrize("kind", ["merging", "causal"])
def test_threads_and_processes_give_the_same_ids(kind, request, prepare, jsonl, monkeypatch):
    """Those of the tokenizer called as its documentation has it, with its affixes, text by text."""
    tokenizer, file = request.getfixturevalue(kind), jsonl([{"text": text} for text in TEXTS])
    own = tokenizer(TEXTS, add_special_tokens=False)["input_ids"]
    wrap = RowEncoder(tokenizer, "causal-lm", "text", "data", 9, 9).affixes.wrap
    expected = [token for ids in own if ids for token in wrap(ids)]
    how = {"train_file": file, "validation_split_percentage": 0, "overwrite_cache": True}
    by_processes = prepare(tokenizer, "causal-lm", num_proc=2, **how)
    monkeypatch.setattr(datasets.Dataset, "map", refuse)
    by_threads = prepare(tokenizer, "causal-lm", **how)
    assert tokens(by_threads.train) == tokens(by_processes.train) == expected


def test_batches_are_encoded_without_offsets(merging, prepare, jsonl, monkeypatch):
    """Neither does the tokenizer's own call run, which makes lists that nobody needs."""
    monkeypatch.setattr(cache, "BATCH", 7)
    seen, encode = [], RowEncoder.__call__
    monkeypatch.setattr(RowEncoder, "__call__", lambda self, *a: seen.append(len(a[1])) or encode(self, *a))
    monkeypatch.setattr("dsrun.train.data.encoding.tokenise._IDS_ONLY", None)  # what its own call would be given
    file = jsonl([{"text": text} for text in TEXTS[:20]])
    prepare(merging, "causal-lm", train_file=file, validation_split_percentage=0)
    assert seen == [7, 7, 6]


def test_tokenizer_with_own_encoding_is_called(merging):
    """What a class changes on the way from text to ids stays in force."""

    class Own(PreTrainedTokenizerFast):
        def _encode_plus(self, *args, **kwargs):
            return super()._encode_plus(*args, **kwargs)

    own = Own(tokenizer_object=merging.backend_tokenizer, eos_token="</s>")
    assert plain_backend(merging) is merging.backend_tokenizer
    assert plain_backend(own) is None


def test_limits_of_earlier_calls_do_not_last(merging):
    """The Rust tokenizer keeps truncation and padding from one call to the next."""
    encoder = RowEncoder(merging, "causal-lm", "text", "data", 9, 9)
    merging(["abab", "a"], truncation=True, max_length=2)
    assert list(encoder._tokens("text", ["abab"], add_special_tokens=False)) == [[4, 4]]


@pytest.mark.parametrize("before", [None, "false"])
def test_threads_are_on_while_tokenising(before, monkeypatch):
    """The launcher switches them off for ranks, whose data loaders fork."""
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    if before:
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", before)
    with cache.tokenizer_threads(on=True):
        assert os.environ["TOKENIZERS_PARALLELISM"] == "true"
    assert os.environ.get("TOKENIZERS_PARALLELISM") == before
