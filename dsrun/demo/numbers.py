"""Numbers spelled out in English and in Romanian: the rule behind the ``demo-t5`` data set.

Both functions are exact and cover 0..999_999.  They are plain Python so that a demo can be made on
a machine without a network and without any package for spelling numbers.

Romanian follows the agreement rules of the standard language, as the Romanian Academy's grammar and
its dictionary DOOM give them:

* ``sută`` and ``mie`` are feminine, so what counts them takes feminine forms
  (``o sută``, ``două sute``, ``douăsprezece mii``, ``douăzeci și una de mii``);
* the tail that counts nothing takes the masculine forms used when counting aloud
  (``unu``, ``doi``, ``doisprezece``);
* ``de`` stands between a number and the noun it counts unless the last two digits of the number
  are 01..19 (``nouăsprezece mii``, ``douăzeci de mii``, ``o sută de mii``, ``o sută zece mii``).
  Unicode CLDR draws the same line between the plural forms "few" and "other" of ``ro``.
"""

from __future__ import annotations

from typing import Final

from dsrun.errors import UsageError

LIMIT: Final = 1_000_000
"""One more than the largest number that can be spelled."""

_EN_SMALL: Final = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
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
_EN_TENS: Final = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]

_RO_SMALL: Final = [
    "zero",
    "unu",
    "doi",
    "trei",
    "patru",
    "cinci",
    "șase",
    "șapte",
    "opt",
    "nouă",
    "zece",
    "unsprezece",
    "doisprezece",
    "treisprezece",
    "paisprezece",
    "cincisprezece",
    "șaisprezece",
    "șaptesprezece",
    "optsprezece",
    "nouăsprezece",
]
_RO_TENS: Final = [
    "douăzeci",
    "treizeci",
    "patruzeci",
    "cincizeci",
    "șaizeci",
    "șaptezeci",
    "optzeci",
    "nouăzeci",
]
_RO_FEMININE: Final = {1: "una", 2: "două", 12: "douăsprezece"}


def english(n: int) -> str:
    """Spell ``n`` in English, American style: lower case, hyphenated tens, no "and", no commas.

    Args:
        n: a whole number, 0 <= n < 1_000_000.

    Raises:
        UsageError: ``n`` is not a whole number or lies outside the range.
    """
    _check(n)
    thousands, rest = divmod(n, 1000)
    parts = [f"{_english_below_1000(thousands)} thousand"] if thousands else []
    if rest or not thousands:
        parts.append(_english_below_1000(rest))
    return " ".join(parts)


def romanian(n: int) -> str:
    """Spell ``n`` in Romanian, with comma-below diacritics (ș, ț) and the agreement rules above.

    Args:
        n: a whole number, 0 <= n < 1_000_000.

    Raises:
        UsageError: ``n`` is not a whole number or lies outside the range.
    """
    _check(n)
    thousands, rest = divmod(n, 1000)
    parts: list[str] = []
    if thousands == 1:
        parts.append("o mie")
    elif thousands:
        link = "mii" if 1 <= thousands % 100 <= 19 else "de mii"
        parts.append(f"{_romanian_below_1000(thousands, feminine=True)} {link}")
    if rest or not thousands:
        parts.append(_romanian_below_1000(rest, feminine=False))
    return " ".join(parts)


def _english_below_1000(n: int) -> str:
    hundreds, rest = divmod(n, 100)
    parts = [f"{_EN_SMALL[hundreds]} hundred"] if hundreds else []
    if rest >= 20:
        tens, units = divmod(rest, 10)
        parts.append(_EN_TENS[tens - 2] + (f"-{_EN_SMALL[units]}" if units else ""))
    elif rest or not hundreds:
        parts.append(_EN_SMALL[rest])
    return " ".join(parts)


def _romanian_below_1000(n: int, *, feminine: bool) -> str:
    hundreds, rest = divmod(n, 100)
    parts: list[str] = []
    if hundreds == 1:
        parts.append("o sută")
    elif hundreds:
        # "sută" is feminine, and only 2 has a feminine form of its own among 2..9.
        parts.append(f"{_romanian_small(hundreds, feminine=True)} sute")
    if rest >= 20:
        tens, units = divmod(rest, 10)
        parts.append(_RO_TENS[tens - 2])
        if units:
            parts.append(f"și {_romanian_small(units, feminine=feminine)}")
    elif rest or not hundreds:
        parts.append(_romanian_small(rest, feminine=feminine))
    return " ".join(parts)


def _romanian_small(n: int, *, feminine: bool) -> str:
    if feminine and n in _RO_FEMININE:
        return _RO_FEMININE[n]
    return _RO_SMALL[n]


def _check(n: int) -> None:
    # bool is an int to Python, but True is not a number anyone wants spelled.
    if isinstance(n, bool) or not isinstance(n, int):
        raise UsageError(f"{n!r} is not a whole number", fix="give an int from 0 to 999999")
    if not 0 <= n < LIMIT:
        raise UsageError(f"{n} cannot be spelled", fix="give a number from 0 to 999999")
