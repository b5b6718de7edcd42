"""Numbers in words: tables of the tricky ones, and properties over the whole range."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsrun.demo.corpus import LIMIT, english, romanian

ENGLISH = {
    0: "zero",
    10: "ten",
    13: "thirteen",
    15: "fifteen",
    20: "twenty",
    40: "forty",
    44: "forty-four",
    80: "eighty",
    99: "ninety-nine",
    100: "one hundred",
    101: "one hundred one",
    118: "one hundred eighteen",
    850: "eight hundred fifty",
    1000: "one thousand",
    1001: "one thousand one",
    1010: "one thousand ten",
    12_012: "twelve thousand twelve",
    100_000: "one hundred thousand",
    100_001: "one hundred thousand one",
    345_009: "three hundred forty-five thousand nine",
    999_999: "nine hundred ninety-nine thousand nine hundred ninety-nine",
}

ROMANIAN = {
    0: "zero",
    1: "unu",
    2: "doi",
    12: "doisprezece",
    14: "paisprezece",
    16: "șaisprezece",
    20: "douăzeci",
    21: "douăzeci și unu",
    32: "treizeci și doi",
    60: "șaizeci",
    100: "o sută",
    101: "o sută unu",
    200: "două sute",
    212: "două sute doisprezece",
    1000: "o mie",
    1001: "o mie unu",
    1100: "o mie o sută",
    2000: "două mii",
    2002: "două mii doi",
    12_012: "douăsprezece mii doisprezece",
    19_000: "nouăsprezece mii",
    20_000: "douăzeci de mii",
    21_000: "douăzeci și una de mii",
    22_022: "douăzeci și două de mii douăzeci și doi",
    100_000: "o sută de mii",
    101_000: "o sută una mii",
    102_000: "o sută două mii",
    112_112: "o sută douăsprezece mii o sută doisprezece",
    119_000: "o sută nouăsprezece mii",
    120_000: "o sută douăzeci de mii",
    200_000: "două sute de mii",
    221_001: "două sute douăzeci și una de mii unu",
    999_999: "nouă sute nouăzeci și nouă de mii nouă sute nouăzeci și nouă",
}

numbers = st.integers(min_value=0, max_value=LIMIT - 1)


@pytest.mark.parametrize(("n", "phrase"), ENGLISH.items())
def test_english_number_words(n, phrase):
    assert english(n) == phrase


@pytest.mark.parametrize(("n", "phrase"), ROMANIAN.items())
def test_romanian_number_words(n, phrase):
    assert romanian(n) == phrase


@pytest.mark.parametrize("spell", [english, romanian])
def test_number_words_are_unique(spell):
    # Every tail, every count of thousands, and a walk over their combinations (7919 is prime).
    sample = {*range(3000), *range(0, LIMIT, 1000), *range(0, LIMIT, 7919)}
    assert len({spell(n) for n in sample}) == len(sample)


@settings(deadline=None)
@given(numbers)
def test_english_number_words_round_trip(n):
    assert _read_english(english(n)) == n


@settings(deadline=None)
@given(numbers)
def test_romanian_number_words_round_trip(n):
    assert _read_romanian(romanian(n)) == n


@settings(deadline=None)
@given(numbers)
def test_number_words_are_short_lower_case(n):
    for phrase, most in ((english(n), 8), (romanian(n), 12)):
        assert len(phrase.split(" ")) <= most
        assert re.fullmatch(r"[a-zășț]+([ -][a-zășț]+)*", phrase)


@settings(deadline=None)
@given(st.integers(min_value=2, max_value=999), st.integers(min_value=0, max_value=999))
def test_romanian_de_before_thousands(thousands, rest):
    """Whether "de" stands before "mii" follows from the last two digits."""
    before_mii = romanian(thousands * 1000 + rest).split(" mii")[0].split(" ")
    assert (before_mii[-1] == "de") == (thousands % 100 == 0 or thousands % 100 >= 20)


@settings(deadline=None)
@given(st.integers(min_value=2, max_value=999))
def test_romanian_thousands_count_is_feminine(thousands):
    words = romanian(thousands * 1000).split(" ")
    assert not {"unu", "doi", "doisprezece"} & set(words)


@settings(deadline=None)
@given(st.integers(min_value=0, max_value=999))
def test_romanian_last_number_word_is_masculine(n):
    """A number that counts nothing is masculine."""
    assert romanian(n).split(" ")[-1] not in {"una", "două", "douăsprezece"}


def test_english_number_words_agree_with_num2words():
    num2words = pytest.importorskip("num2words").num2words
    for n in [*range(1200), *range(1200, LIMIT, 4999)]:
        assert english(n) == num2words(n).replace(" and ", " ").replace(",", "")


def test_romanian_number_words_agree_with_num2words():
    """Romanian agrees with num2words where that is right."""
    num2words = pytest.importorskip("num2words").num2words
    # It counts thousands with masculine 1 and 2, and puts "de" after 101..119 as well.
    wrong = {0, 1, 2, *range(3, 20)}
    checked = 0
    for n in [*range(1200), *range(1200, LIMIT, 499)]:
        thousands = n // 1000
        if thousands >= 20 and (thousands % 10 in (1, 2) or (thousands > 100 and thousands % 100 in wrong)):
            continue
        theirs = num2words(n, lang="ro").replace("ş", "ș").replace("ţ", "ț")
        assert romanian(n) == theirs
        checked += 1
    assert checked > 1500


def _read_english(phrase):
    """Read a phrase by adding and multiplying: a second way round, with its own table."""
    small = dict(
        zip(
            ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"],
            range(11),
            strict=True,
        )
    )
    teens = [
        "eleven",
        "twelve",
        "thirteen",
        "fourteen",
        "fifteen",
        "sixteen",
        "seventeen",
        "eighteen",
        "nineteen",
    ]
    tens = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
    values = small | {w: 11 + i for i, w in enumerate(teens)} | {w: 20 + 10 * i for i, w in enumerate(tens)}
    total = group = 0
    for word in phrase.replace("-", " ").split():
        if word == "thousand":
            total, group = group * 1000, 0
        elif word == "hundred":
            group *= 100
        else:
            group += values[word]
    return total + group


def _read_romanian(phrase):
    units = {
        **{"zero": 0, "o": 1, "unu": 1, "una": 1, "doi": 2, "două": 2, "trei": 3, "patru": 4, "cinci": 5},
        **{"șase": 6, "șapte": 7, "opt": 8, "nouă": 9, "zece": 10},
    }
    stems = {
        **{"un": 1, "doi": 2, "două": 2, "trei": 3, "pai": 4, "patru": 4, "cinci": 5},
        **{"șai": 6, "șapte": 7, "opt": 8, "nouă": 9},
    }
    total = group = last = 0
    for word in phrase.split():
        if word in ("și", "de"):
            continue
        if word in ("mie", "mii"):
            total, group, last = (group + last) * 1000, 0, 0
        elif word in ("sută", "sute"):
            group, last = group + last * 100, 0
        elif word.endswith("sprezece"):
            last += 10 + stems[word.removesuffix("sprezece")]
        elif word.endswith("zeci"):
            last += 10 * stems[word.removesuffix("zeci")]
        else:
            last += units[word]
    return total + group + last
