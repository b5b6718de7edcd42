"""The JSON reader: what json.loads reads, with places, and a little more."""

import ast
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsrun.zero.lint.source import NotJsonError, dotted, read

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
PIECES = st.sampled_from(
    [
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        '"a"',
        '"',
        "1",
        "-",
        "01",
        "1.",
        "1e5",
        ".5",
        "true",
        "nul",
        " ",
        "\n",
        "\\",
        "\u00e9",
    ]
)


def plain(text):
    """What json.loads makes of it, or None."""
    try:
        return [json.loads(text)]
    except ValueError:
        return None


def strict(text):
    """What our reader makes of it when nothing had to be overlooked, or None."""
    try:
        source = read(text)
    except NotJsonError:
        return None
    beyond = [issue for issue in source.issues if issue.kind != "number_word"]
    return None if beyond else [source.value]


@settings(max_examples=200, derandomize=True, deadline=None)
@given(VALUES, st.sampled_from([None, 2, "\t"]), st.booleans())
def test_json_reader_matches_json_loads(value, indent, ascii_only):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert strict(text) == plain(text)


@settings(max_examples=400, derandomize=True, deadline=None)
@given(st.lists(PIECES, max_size=9).map("".join))
def test_json_reader_accepts_no_more_than_json_loads(text):
    """What json.loads refuses is refused, or noted as a syntax issue."""
    assert strict(text) == plain(text)


TEXT = """{
  "a": 1,
  "b": {
    "c": [5e8, 2],
    "d": {"e": "x"}
  }
}"""


def test_json_key_positions():
    source = read(TEXT)
    places = {dotted(path): str(position) for path, position in source.positions.items()}
    assert places == {
        "a": "2:3",
        "b": "3:3",
        "b.c": "4:5",
        "b.c[0]": "4:11",
        "b.c[1]": "4:16",
        "b.d": "5:5",
        "b.d.e": "5:11",
    }
    assert source.position(("b", "nonsense")).line == 3
    assert source.position(("nonsense",)).line == 1


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ('{"a": 1} // end', ["comment"]),
        ('{# one\n"a": /* two\n lines */ 1}', ["comment", "comment"]),
        ('{"a": [1, 2,],}', ["trailing_comma", "trailing_comma"]),
        ('{"a": True, "b": None}', ["python_word", "python_word"]),
        ("{'a': 'b'}", ["single_quotes", "single_quotes"]),
        ('{"a": NaN, "b": -Infinity}', ["number_word", "number_word"]),
        ('{"a": "// no comment, True, }"}', []),
    ],
)
def test_json_syntax_issues_are_read_and_noted(text, kinds):
    source = read(text)
    assert [issue.kind for issue in source.issues] == kinds
    assert isinstance(source.value, dict)


@pytest.mark.parametrize("text", [r"'it\'s'", r"'x\"y'", "'a\"b'", r"'\u00e9'", r"'a\\b'", "''"])
def test_json_single_quoted_strings(text):
    assert read(text).value == ast.literal_eval(text)


def test_json_python_only_escape_is_refused():
    with pytest.raises(NotJsonError, match="escape"):
        read(r"'\x41'")


def test_json_syntax_issue_positions_and_values():
    source = read("{\n 'a': True,\n}")
    assert source.value == {"a": True}
    assert [(issue.kind, str(issue.position)) for issue in source.issues] == [
        ("single_quotes", "2:2"),
        ("python_word", "2:7"),
        ("trailing_comma", "2:11"),
    ]
    assert math.isinf(read('{"a": -Infinity}').value["a"])


@pytest.mark.parametrize(
    ("text", "place", "message", "fix"),
    [
        ("", "1:1", "the text ends too early", ""),
        ('{"a": 1', "1:1", "the text ends before the closing }", ""),
        ('{\n"a": 1\n"b": 2}', "3:1", "expected , or }", "a comma is missing at the end of line 2"),
        ('{"a" 1}', "1:6", "expected : after the key a", ""),
        ("{a: 1}", "1:2", "expected a key", "double quotes"),
        ('{"a": yes}', "1:7", "yes is not a JSON value", '"yes"'),
        ('{"a": 1_000}', "1:7", "1_000 is not a JSON value", "write 1000"),
        ('{"a": .5}', "1:7", ".5 is not a JSON value", "write 0.5"),
        ('{"a": +inf}', "1:7", "+inf is not a JSON value", '"+inf"'),
        ('{"a": ,}', "1:7", "a value is missing", ""),
        ('{"a": "b}', "1:7", "unterminated string", 'close it with "'),
        ('{"a": 1}}', "1:9", "more text after the end", ""),
        ('{"a": 1 /* x', "1:9", "a comment without its end", ""),
        ("[" * 200, "1:102", "more than 100 levels deep", ""),
    ],
)
def test_invalid_json_is_refused_with_position(text, place, message, fix):
    with pytest.raises(NotJsonError) as caught:
        read(text)
    assert str(caught.value.position) == place
    assert message in caught.value.message
    assert fix in caught.value.fix


def test_json_duplicate_key_last_one_wins():
    source = read('{\n"a": {"x": 1, "y": 2},\n"a": {"x": 3}}')
    assert source.value == {"a": {"x": 3}}
    assert [(duplicate.path, duplicate.position.line, duplicate.first.line) for duplicate in source.duplicates] == [
        (("a",), 3, 2)
    ]
    assert ("a", "y") not in source.positions


def test_json_byte_order_mark_is_skipped():
    assert read('\ufeff{"a": 1}').value == {"a": 1}
