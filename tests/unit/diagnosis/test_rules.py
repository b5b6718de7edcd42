"""The rules are data: mistakes that their reader rejects, and what the data must satisfy."""

import re

import pytest

from dsrun.diagnosis.rules import UNKNOWN, cause_named, causes, parse

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
def test_mistake_in_cause_rules_refused(text: str, message: str) -> None:
    """A mistake in the rules is refused."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        list(parse(text))


def test_cause_title_meaning_and_fix_are_one_line_each() -> None:
    """Title, meaning and fix of every cause are one line each."""
    for cause in causes().values():
        for text in (cause.title, cause.means, cause.fix):
            assert text
            assert "\n" not in text


def test_cause_rule_expressions_compile() -> None:
    """Every expression of the rules compiles."""
    for cause in causes().values():
        for sign in cause.signs:
            for expression in (sign.pattern, sign.unless, sign.near):
                re.compile(expression)


def test_restartable_causes_are_transient() -> None:
    """A cause that a restart helps against is transient."""
    assert cause_named("rank_killed").transient
    assert not cause_named("disk_full").transient
    assert cause_named("cuda_oom").then == "shrink"


def test_unknown_cause_is_transient() -> None:
    """An unknown code counts as transient."""
    assert cause_named("never heard of") is UNKNOWN
    assert UNKNOWN.transient
