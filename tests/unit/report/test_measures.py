"""What a metric is called, and between which values it can be."""

from __future__ import annotations

import math

import pytest

from dsrun.report.panels import largest_possible, measure_name


@pytest.mark.parametrize(
    ("key", "values", "own", "most"),
    [
        ("eval_bleu", [0.0, 0.02], True, 100.0),
        ("eval_bleu", [0.31], False, 1.0),
        ("eval_bleu", [0.0, 31.4], False, 100.0),
        ("eval_rougeLsum", [42.0], True, 100.0),
        ("eval_exact_match", [0.0], True, 100.0),
        ("eval_accuracy", [0.5, 1.0], True, 1.0),
        ("eval_accuracy", [51.0], False, 100.0),
        ("eval_accuracy", [1.0000000000000002], False, 1.0),
        ("eval_rouge1", [100.00000000000001], True, 100.0),
        ("eval_macro_F1", [0.7], False, 1.0),
        ("eval_accuracy", [-0.5, 0.5], False, None),
        ("eval_accuracy", [120.0], False, None),
        ("eval_accuracy", [], False, None),
        ("eval_loss", [0.5], True, None),
        ("eval_perplexity", [3.0], True, None),
    ],
)
def test_largest_value_that_a_measure_can_have(key: str, values: list[float], own: bool, most: float | None) -> None:
    assert largest_possible(key, values, own=own) == most


def test_value_that_is_no_number_is_in_no_range() -> None:
    assert largest_possible("eval_accuracy", [math.inf], own=False) is None


@pytest.mark.parametrize(
    ("key", "name"), [("eval_bleu", "BLEU"), ("eval_exact_match", "Exact match"), ("eval_chrf", "chrF")]
)
def test_names_of_measures(key: str, name: str) -> None:
    assert measure_name(key) == name
