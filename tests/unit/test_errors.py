"""Names that were probably meant: near enough, and not far-fetched."""

import pytest

from dsrun.errors import nearest, nearest_names


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("--modle", ["model", "zero"], "model"),
        ("learning-rat", ["learning_rate"], "learning_rate"),
        ("TRAIN.jsonl", ["train.jsonl"], "train.jsonl"),
        ("tran.jsonl", ["train.jsonl", "trail.json"], "train.jsonl"),
        ("train.json", ["train.jsonl"], "train.jsonl"),
        ("sourceprefix", ["source_prefix"], "source_prefix"),
        ("matlab", ["matlab@flex", "comsol"], "matlab@flex"),
    ],
)
def test_nearest_name_that_was_meant(name, known, meant):
    assert nearest(name, known) == meant


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("nope.jsonl", ["pref.jsonl"]),  # alike in nothing but what all of them end with
        ("a.jsonl", ["b.jsonl"]),
        ("discopop_tau", ["dpo_beta", "dpo_label_smoothing"]),
        ("adamw", ["grokadamw", "adafactor"]),
        ("lr", ["zero"]),
        ("b20", ["l20", "tesla k20"]),
        ("eval", ["eval_steps", "eval_strategy"]),  # which of them?
        ("", ["a", "b"]),
    ],
)
def test_nearest_name_that_is_far_fetched(name, known):
    assert nearest(name, known) is None


def test_nearest_names_come_first():
    assert nearest_names("evel_steps", ["eval_step", "eval_steps", "logging_steps"], 2) == ["eval_steps", "eval_step"]
