"""Texts that are longer than what a tokenizer gets at once."""

import random

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from dsrun.train.data.encoding.tokenise import RowEncoder, pieces

PIECE = 200


def words(count, seed=0):
    draw = random.Random(seed)
    return ["".join(draw.choices("abcde", k=draw.randint(1, 8))) for _ in range(count)]


@pytest.fixture(params=["byte-level BPE", "unigram"])
def tokenizer(request):
    """One that joins letters within words, and each word with the space before it."""
    special = {"special_tokens": ["<unk>", "</s>"], "show_progress": False}
    if request.param == "unigram":
        core = Tokenizer(models.Unigram())
        core.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=80, unk_token="<unk>", **special)
    else:
        core = Tokenizer(models.BPE(unk_token="<unk>"))
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(vocab_size=80, **special)
    core.train_from_iterator([" ".join(words(500, seed=1))], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="</s>", pad_token="</s>")


class Watched:
    """A tokenizer that keeps how many characters it got at once."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self.most = 0

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)

    def __call__(self, text=None, **how):
        texts = text if text is not None else how["text_target"]
        self.most = max(self.most, sum(map(len, texts)))
        return self._tokenizer(text, **how)


def encoder(tokenizer, *, task, kind, piece, limit=10_000):
    return RowEncoder(
        tokenizer=tokenizer, task=task, kind=kind, where="data", source_limit=limit, target_limit=limit, piece=piece
    )


def encode(tokenizer, rows, **how):
    watched = Watched(tokenizer)
    batch = {name: [row.get(name) for row in rows] for name in rows[0]}
    return encoder(watched, **how)(batch, range(len(rows))), watched


def documents(texts):
    return [{"text": text, "starts": True, "ends": True} for text in texts]


@pytest.mark.parametrize("size", [10, 57, 200])
def test_pieces_are_the_text_cut_before_spaces(size):
    text = " ".join(words(300))
    found = list(pieces(text, size))
    assert "".join(found) == text
    assert all(len(piece) <= size for piece in found)
    if size >= 57:  # a quarter of it holds a space
        assert all(piece.startswith(" ") for piece in found[1:])


def test_text_without_spaces_cut_where_a_piece_is_full():
    assert list(pieces("x" * 25, 10)) == ["x" * 10, "x" * 10, "x" * 5]


def test_long_document_has_the_ids_of_the_whole(tokenizer):
    texts = [" ".join(words(400, seed)) for seed in (2, 3)]
    rows = documents([texts[0], "a b", "", texts[1]])
    whole, _ = encode(tokenizer, rows, task="causal-lm", kind="text", piece=10**6)
    cut, watched = encode(tokenizer, rows, task="causal-lm", kind="text", piece=PIECE)
    assert [i for ids in cut["input_ids"] for i in ids] == [i for ids in whole["input_ids"] for i in ids]
    assert sum(1 for ids in cut["input_ids"] if ids[-1] == tokenizer.eos_token_id) == 3
    assert watched.most <= PIECE


def test_many_short_texts_reach_the_tokenizer_in_batches(tokenizer):
    rows = documents(["abc de"] * 500)
    cut, watched = encode(tokenizer, rows, task="causal-lm", kind="text", piece=PIECE)
    assert len(cut["input_ids"]) == 500
    assert watched.most <= PIECE


@pytest.mark.parametrize("task", ["seq2seq", "causal-lm"])
def test_long_pair_is_cut_as_the_whole_would_be(tokenizer, task):
    rows = [
        {"source": " ".join(words(source, 4)), "target": " ".join(words(target, 5))}
        for source, target in ((900, 5), (3, 900), (900, 900), (4, 3))
    ]
    how = {"task": task, "kind": "pair", "limit": 20}
    whole, _ = encode(tokenizer, rows, piece=10**6, **how)
    cut, watched = encode(tokenizer, rows, piece=PIECE, **how)
    assert cut["input_ids"] == whole["input_ids"]
    assert cut["labels"] == whole["labels"]
    assert watched.most <= PIECE


def test_long_text_of_few_tokens_is_read_whole():
    """Most of its characters are spaces, of which the tokenizer makes nothing."""
    core = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", pad_token="<unk>")
    rows = [{"source": "a" + " " * 1000 + "a a a a", "target": "a"}]
    found, _ = encode(tokenizer, rows, task="seq2seq", kind="pair", piece=PIECE, limit=3)
    assert found["input_ids"] == [[1, 1, 1]]
