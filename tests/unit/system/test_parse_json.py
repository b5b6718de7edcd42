"""JSON of strangers is a value or a ValueError."""

import json

import pytest

from dsrun.system.files import parse_json


def test_parse_json_value() -> None:
    assert parse_json(b'{"a": [1]}') == {"a": [1]}


@pytest.mark.parametrize("text", ["[" * 200 + "]" * 200, "[" + "[{}]," * 1000 + "1]"])
def test_parse_json_of_200_levels(text: str) -> None:
    assert parse_json(text) == json.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 1_000_000,
        '{"a":' * 1_000_000,
        "[" * 201 + "]" * 201,
        b'{"a":' * 201 + b"1" + b"}" * 201,
        "9" * 5000,
    ],
)
def test_parse_json_of_damaged_or_deep_text(text: str | bytes) -> None:
    """Also where Python's parser runs out of stack, or what goes through the value would."""
    with pytest.raises(json.JSONDecodeError):
        parse_json(text)
