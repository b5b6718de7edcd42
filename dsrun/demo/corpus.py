"""Demo data made by rule: number phrases in two languages, and the Python documentation on this machine.

Nothing is downloaded.  The number phrases are the same on every machine; the documentation texts are those of the
Python that runs dsrun, so they change with its version."""

import ast
import hashlib
import random
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from dsrun.datafiles import toml_beside
from dsrun.errors import MissingError

CorpusRow = Mapping[str, Any]

ALWAYS_TRAINED: Final = 100
"""Numbers below this are only in the training split: "zero", for one, occurs in no other phrase."""

# Percent of a split per count of digits.  Drawn evenly, three-digit numbers would be one in a
# thousand, and the model would rarely see a phrase that ends that early.
_SHARE_BY_DIGITS: Final = {3: 2, 4: 8, 5: 30, 6: 60}

_SHORTEST_TEXT: Final = 80
_LONGEST_TEXT: Final = 4000
_FEWEST_TRAINING_TEXTS: Final = 200

LIMIT: Final = 1_000_000
"""One more than the largest number that can be spelled."""

_WORDS: Final = toml_beside(__file__)
_EN: list[str] = _WORDS["english"].split()
_RO: list[str] = _WORDS["romanian"].split()
_RO_FEMININE: dict[int, str] = {int(n): word for n, word in _WORDS["feminine"].items()}


@dataclass(frozen=True)
class CorpusSplits:
    """Rows for training, for validation while training, and for the final test."""

    train: list[CorpusRow]
    validation: list[CorpusRow]
    test: list[CorpusRow]


def number_phrases(
    *, train: int = 20_000, validation: int = 512, test: int = 1_024, seed: int = 20_240_101
) -> CorpusSplits:
    """English and Romanian phrases for numbers 0..999_999, no number in two splits.

    Rows are ``{"translation": {"en": ..., "ro": ...}}``. The numbers 0..99 come on top of the `train` rows; the other
    splits have none below 100. The same seed gives the same rows on every machine."""
    rng = random.Random(seed)
    taken = set(range(ALWAYS_TRAINED))

    def rows(numbers: list[int]) -> list[CorpusRow]:
        return [{"translation": {"en": english(n), "ro": romanian(n)}} for n in numbers]

    # The small splits draw first, so that the number of training rows does not change the test set.
    test_rows, validation_rows = rows(_draw(test, taken, rng)), rows(_draw(validation, taken, rng))
    return CorpusSplits(rows([*_draw(train, taken, rng), *range(ALWAYS_TRAINED)]), validation_rows, test_rows)


def python_docs() -> CorpusSplits:
    """Documentation texts of this Python: its help topics and the docstrings of its library.

    A document is one help topic or one module; all its texts go to the same split.  Which split that is follows from a
    hash of the document's name, so most documents keep theirs from one Python version to the next.  A text met a second
    time is dropped, whichever document it is in. Raises MissingError where this Python comes without its library's
    source files."""
    splits = CorpusSplits([], [], [])
    seen: set[str] = set()
    for name, texts in _documents():
        bucket = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) % 100
        rows = splits.train if bucket < 90 else splits.validation if bucket < 95 else splits.test
        for text in texts:
            content = " ".join(text.partition("\n\n")[2].split())
            if content not in seen:
                seen.add(content)
                rows.append({"text": text})
    if len(splits.train) < _FEWEST_TRAINING_TEXTS or not splits.validation or not splits.test:
        what = f"this Python has only {len(splits.train)} documentation texts"
        raise MissingError(what, fix="install its full standard library, or give --train-file")
    return splits


def _draw(count: int, taken: set[int], rng: random.Random) -> list[int]:
    """Draw ``count`` numbers that are not in ``taken``, and add them to it."""
    lengths = list(_SHARE_BY_DIGITS)
    quota = {digits: count * share // 100 for digits, share in _SHARE_BY_DIGITS.items()}
    # At most a third of the 900 three-digit numbers per split, so that all splits get theirs.
    quota[3] = min(quota[3], 300)
    quota[lengths[-1]] += count - sum(quota.values())
    numbers: list[int] = []
    for digits in lengths:
        low = 10 ** (digits - 1)
        wanted = len(numbers) + quota[digits]
        while len(numbers) < wanted:
            # random() is the one method whose sequence Python promises to keep for a given seed.
            n = low + int(rng.random() * 9 * low)
            if n not in taken:
                taken.add(n)
                numbers.append(n)
    return numbers


def _documents() -> Iterator[tuple[str, list[str]]]:
    """Yield (name of the document, its texts), in the same order every time."""
    topics: Mapping[str, str] = {}
    with suppress(ImportError):  # some distributions leave it out; the docstrings alone still make a corpus
        topics = import_module("pydoc_data.topics").topics
    for topic, text in sorted(topics.items()):
        yield f"topic {topic}", _passages(f"help: {topic}", text)
    root = Path(sysconfig.get_path("stdlib"))
    for file in sorted(root.rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        if not {*_WORDS["skipped"]}.intersection(parts) and not parts[0].startswith("config-"):
            module = ".".join(parts).removesuffix(".__init__")
            with suppress(OSError, SyntaxError, ValueError):
                yield f"module {module}", _collect(ast.parse(file.read_bytes()), module)


def _collect(node: Any, name: str) -> list[str]:
    """The passages of ``node``'s docstring, then of what is defined directly in it."""
    docstring = ast.get_docstring(node)
    texts = _passages(name, docstring) if docstring else []
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            texts += _collect(child, f"{name}.{child.name}")
    return texts


def _passages(title: str, text: str) -> list[str]:
    """Cut ``text`` at blank lines into pieces of at most about 4000 characters, each under the title."""
    pieces: list[str] = []
    current = ""
    for paragraph in text.strip().split("\n\n"):
        if current and len(current) + len(paragraph) > _LONGEST_TEXT:
            pieces.append(current)
            current = ""
        current = f"{current}\n\n{paragraph}" if current else paragraph
    pieces.append(current)
    return [f"{title}\n\n{piece}" for piece in pieces if len(piece) >= _SHORTEST_TEXT]


def english(n: int) -> str:
    """Spell 0 <= n < LIMIT in English, American style: hyphenated tens, no "and", no commas."""
    if n >= 1000:
        rest = f" {english(n % 1000)}" if n % 1000 else ""
        return f"{english(n // 1000)} thousand{rest}"
    if n >= 100:
        return f"{_EN[n // 100]} hundred" + (f" {english(n % 100)}" if n % 100 else "")
    if n >= 20:
        return _EN[18 + n // 10] + (f"-{_EN[n % 10]}" if n % 10 else "")
    return _EN[n]


def romanian(n: int, *, feminine: bool = False) -> str:
    """Spell 0 <= n < LIMIT in Romanian, which num2words gets wrong: it counts thousands with masculine forms, and puts
    "de" after 101..119 as well. ("De" follows a count unless its last two digits are 01..19.)"""
    if n >= 1000:
        thousands = n // 1000
        link = "mii" if 1 <= thousands % 100 <= 19 else "de mii"
        head = "o mie" if thousands == 1 else f"{romanian(thousands, feminine=True)} {link}"
    elif n >= 100:
        head = "o sută" if n < 200 else f"{romanian(n // 100, feminine=True)} sute"
    elif n >= 20:
        return _RO[18 + n // 10] + (f" și {romanian(n % 10, feminine=feminine)}" if n % 10 else "")
    else:
        return _RO_FEMININE.get(n, _RO[n]) if feminine else _RO[n]
    rest = n % (1000 if n >= 1000 else 100)
    return f"{head} {romanian(rest, feminine=feminine)}" if rest else head
