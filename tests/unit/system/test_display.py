"""Foreign text without control characters; figures and durations in words."""

import math

import pytest

from dsrun.system.terminal.display import cells, counted, duration, figure, padded, precise_duration, printable, wrapped


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain: ä, 漢字, \t tab", "plain: ä, 漢字, \t tab"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]52;c;aGVsbG8=\x07", r"\x1b]52;c;aGVsbG8=\x07"),
        ("\x1b]0;title\x1b\\", r"\x1b]0;title\x1b" + "\\"),
        ("\x9b2J", r"\x9b2J"),
        ("a\nerror: b\r", r"a\nerror: b\r"),
        ("\u202egpj.exe", r"\u202egpj.exe"),
        ("\udcff", r"\udcff"),
    ],
)
def test_printable_escapes_control_characters(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_printable_keeps_line_breaks_where_told() -> None:
    assert printable("a\nb\x07", keep="\n") == "a\nb\\x07"


def test_counted():
    assert [counted(number, "file") for number in (0, 1, 1000)] == ["0 files", "1 file", "1,000 files"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (0.0306736, "0.03067"), (43214.22, "43,214"), (1.2e-5, "1.2e-05"), (5.0, "5"), (99.537, "99.54"),
        (1e9, "1,000,000,000"), (-3.25, "-3.25"), (24190.4, "24,190"), (3.3e-5, "3.3e-05"), (-0.0123456, "-0.01235"),
        (1e16, "1e+16"), (10**400, "∞"), (-(10**400), "−∞"), (math.nan, "NaN"), (math.inf, "∞"), (-math.inf, "−∞"),
    ],
)  # fmt: skip
def test_figures_have_four_digits(value: float, text: str) -> None:
    assert figure(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0853, "85.3 ms"),
        (0.0999, "0.0999 s"),
        (2.456, "2.46 s"),
        (12.44, "12.4 s"),
        (99.6, "2 min"),
        (7200.0, "2.0 h"),
    ],
)
def test_short_times_have_three_digits(seconds: float, text: str) -> None:
    assert precise_duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (99, "99 s"),
        (100, "2 min"),
        (5900, "98 min"),
        (6000, "1.7 h"),
        (2e5, "2.3 days"),
        (1e300, "unknown"),
    ],
)
def test_duration_format(value: float, text: str) -> None:
    assert duration(value) == text


def test_columns_of_wide_characters():
    assert (cells("loss"), cells("显存 ok"), cells("é")) == (4, 7, 1)
    assert (padded("显存", 6), padded("loss", 6), padded("loss", 2)) == ("显存  ", "loss  ", "loss")


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("a bb  ccc", 4, ["a bb", "ccc"]),
        ("to /a/long/path/stays whole", 8, ["to", "/a/long/path/stays", "whole"]),
        ("显存不足：权重放不下", 10, ["显存不足：", "权重放不下"]),
        ("显存不足：权重", 8, ["显存不", "足：权重"]),
        ("请看（日志）", 6, ["请看", "（日", "志）"]),
        ("用 --zero 3，再试", 8, ["用", "--zero", "3，再试"]),
        ("", 8, [""]),
    ],
)
def test_text_wrapped_to_columns(text, width, lines):
    """Words stay whole; Chinese breaks between characters, but a line neither begins with a mark that closes nor ends
    with one that opens."""
    assert wrapped(text, width) == lines
