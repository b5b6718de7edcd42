from __future__ import annotations

import math

import pytest

from dsrun.train.loop.evaluation import text_scores
from dsrun.train.loss.model_loss import perplexity


def test_text_scores_of_perfect_text():
    texts = ["the cat sat on the mat", "a dog ran through the park"]
    scores = text_scores(texts, texts)
    assert scores == pytest.approx(dict.fromkeys(scores, 100.0))
    assert set(scores) == {"bleu", "chrf", "rouge1", "rouge2", "rougeL", "rougeLsum", "exact_match"}


def test_text_scores_of_known_texts():
    scores = text_scores(["the cat sat", " exact "], ["the cat ran", "exact"])
    assert scores["exact_match"] == 50
    # "the cat ." matches two of three unigrams both ways: F = 2/3; the other pair is perfect.
    assert scores["rouge1"] == pytest.approx(100 * (2 / 3 + 1) / 2)
    assert 0 < scores["chrf"] < 100


def test_text_scores_of_no_texts():
    assert text_scores([], []) == {}


def test_perplexity():
    assert perplexity(math.log(20)) == pytest.approx(20)
    assert perplexity(10_000.0) == math.inf
