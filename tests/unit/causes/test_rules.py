"""The rules are data; these are the mistakes that their reader refuses, and what the data must keep to."""

import re

import pytest

from dsrun.causes.rules import UNKNOWN, cause_named, causes, parse

CAUSE = """
[[cause]]
code = "a"
then = "stop"
title = "t"
means = "m"
fix = "f"
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CAUSE + CAUSE, "cause a is there twice"),
        (CAUSE + 'colour = "red"\n', "cause a: colour unknown or missing"),
        (CAUSE.replace('title = "t"\n', ""), "cause a: title unknown or missing"),
        (CAUSE.replace('"stop"', '"wait"'), "cause a: level error, then wait"),
        (CAUSE + 'level = "bad"\n', "cause a: level bad, then stop"),
        (CAUSE + 'sign = [{ has = "abc", weight = "heavy" }]\n', "cause a: weight heavy, has 'abc'"),
        (CAUSE + 'sign = [{ has = "ab" }]\n', "cause a: weight root, has 'ab'"),
        (CAUSE + 'sign = [{ pattern = "abc" }]\n', "cause a: has unknown or missing"),
    ],
)
def test_a_mistake_in_the_rules_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        list(parse(text))


def test_every_cause_says_in_one_line_what_it_is_what_it_means_and_what_helps() -> None:
    for cause in causes().values():
        for text in (cause.title, cause.means, cause.fix):
            assert text
            assert "\n" not in text


def test_every_expression_compiles_and_no_expression_is_without_use() -> None:
    for cause in causes().values():
        for sign in cause.signs:
            for expression in (sign.pattern, sign.unless, sign.near):
                re.compile(expression)


def test_what_a_restart_helps_is_transient() -> None:
    assert cause_named("rank_killed").transient
    assert not cause_named("disk_full").transient
    assert cause_named("cuda_oom").then == "shrink"


def test_a_code_that_nobody_knows_may_be_transient() -> None:
    assert cause_named("never heard of") is UNKNOWN
    assert UNKNOWN.transient
