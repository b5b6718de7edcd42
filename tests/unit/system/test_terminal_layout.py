"""Text on a terminal: no line is wider than it, no word or number is broken, and nothing is left out."""

import os
import pty
import re
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsrun.system.shell import commands
from dsrun.system.terminal.display import aligned_rows, cells, columns_of, command_text, fitted, terminal_width, wrapped

WORD = st.text("abcdefg0123456789.,×-/节点", min_size=1, max_size=14)
SENTENCE = st.lists(WORD, max_size=40).map(" ".join)
WIDTH = st.sampled_from([40, 60, 80])


def characters(text: str) -> list[str]:
    return [each for each in text if not each.isspace()]


def test_width_of_no_terminal_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    read, write = os.pipe()
    with os.fdopen(read), os.fdopen(write, "w") as stream:
        assert terminal_width(stream) is None
    assert terminal_width(stream) is None, "it is closed"
    assert terminal_width(None) is None
    assert columns_of(None) == 70


@pytest.mark.parametrize(("columns", "width"), [(None, 72), ("40", 40), ("0", 72), ("wide", 72)])
def test_columns_wins_on_a_terminal(columns: str | None, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    outer, inner = pty.openpty()
    monkeypatch.setattr("os.get_terminal_size", lambda _number: os.terminal_size((72, 24)))
    with os.fdopen(outer, "rb"), os.fdopen(inner, "w") as stream:
        assert terminal_width(stream) == width


@given(SENTENCE, WIDTH, st.sampled_from([None, 0, 2, 13, 50]), st.sampled_from(["", "  ", "    "]))
def test_text_fits_and_keeps_its_words(text: str, width: int, hang: int | None, indent: str) -> None:
    lines = fitted(indent + text, width, hang=hang).split("\n")
    assert all(cells(line) <= width for line in lines)
    assert characters(" ".join(lines)) == characters(text)
    for word in filter(str.isascii, text.split()):
        assert any(word in line for line in lines)
    assert fitted(text, None) == text


def test_longer_word_stays_whole() -> None:
    assert wrapped("see /a/very/long/path here", 10, hang=2) == ["see", "  /a/very/long/path", "  here"]


def test_number_stays_with_its_unit() -> None:
    assert wrapped("it takes 30 s", 12) == ["it takes", "30 s"]


def test_name_of_a_field_stays_with_its_value() -> None:
    line = "validation  loss 0.1  exact match 99.61  bleu 4"
    assert wrapped(line, 38, hang=2) == ["validation  loss 0.1", "  exact match 99.61  bleu 4"]
    assert max(map(len, wrapped("a  b  " + "c " * 30, 40))) <= 40, "a field that is wider than a line"


@st.composite
def tables(draw: st.DrawFn) -> list[list[str]]:
    wide = draw(st.integers(1, 8))
    row = st.lists(st.lists(WORD, max_size=2).map(" ".join), min_size=wide, max_size=wide)
    last = draw(st.booleans())
    rows = draw(st.lists(row, min_size=2, max_size=5))
    return [
        [f"N{at}" for at in range(wide)],
        *([*each[:-1], f"{each[-1]} word" * 12] if last else each for each in rows),
    ]


@given(tables(), WIDTH)
def test_table_fits_and_keeps_its_cells(rows: list[list[str]], width: int) -> None:
    lines = list(aligned_rows(rows, width))
    assert all(cells(line) <= max(width, cells(rows[0][0]), *(cells(row[0]) for row in rows)) for line in lines)
    shown = "".join(lines)
    for row in rows[1:]:
        assert not [word for cell in row for word in cell.split() if word.isascii() and word not in shown]
    assert len(list(aligned_rows(rows))) == len(rows), "off a terminal a line for each row"


def test_columns_that_do_not_fit_stand_below_by_name() -> None:
    rows = [("RUN", "STATE", "LOSS", "GiB/GPU"), ("a", "finished", "0.1", "3.5"), ("b", "failed", "", "4")]
    assert list(aligned_rows(rows, 16)) == [
        "RUN  STATE", "a    finished", "    loss 0.1,", "    GiB/GPU 3.5", "b    failed", "    GiB/GPU 4",
    ]  # fmt: skip
    assert list(aligned_rows(rows[1:], 12, head=False))[1] == "    0.1, 3.5"


def words_of(text: str) -> Iterator[tuple[str, ...]]:
    return (each.words for each in commands(text))


@given(
    st.lists(st.sampled_from(["--model", "t5", "--bf16", "'a b  c'", '"x y"', "/a/long/path/to/data"]), max_size=30),
    WIDTH,
)
def test_wrapped_command_is_the_same_command(arguments: list[str], width: int) -> None:
    line = " ".join(["dsrun", *arguments])
    shown = command_text(line, width, comment="what it does")
    assert list(words_of(shown)) == list(words_of(line))
    assert all(cells(each) <= width for each in shown.split("\n"))
    assert command_text(line, None, comment="c") == f"{line}  # c"


def test_flag_stays_with_its_value() -> None:
    shown = command_text("dsrun train --a-long-name 1 --another-name 22 --bf16", 28)
    assert re.findall(r"--\S+ \d+", shown) == ["--a-long-name 1", "--another-name 22"]


def test_terminal_of_this_process_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys, "__stdout__", None)
    assert columns_of(sys.__stdout__) == 80
