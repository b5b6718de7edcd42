"""YAML that is endless, or far longer than its text."""

from __future__ import annotations

import pytest
import yaml

from dsrun.errors import UsageError
from dsrun.system.yaml_nodes import refuse_endless

LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 64))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb: &b\n  c: [1, *b]\n", "f.yaml:[23]: an anchor .* refers to itself"),
        ("&a\n? *a\n: 1\n", "refers to itself"),
        (LAUGHS, "f.yaml:[0-9]+: stands for more than 100,000 values"),
    ],
)
def test_endless_file_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        refuse_endless(yaml.compose(text), "f.yaml")


@pytest.mark.parametrize("text", ["", "a: &a {b: 1}\nc: *a\nd: [*a, *a]\n", "- 1\n"])
def test_anchor_that_is_used_again_is_fine(text: str) -> None:
    refuse_endless(yaml.compose(text), "f.yaml")
