"""bench/translation_data.py: from catalogues to the three parts. The catalogues are written here, as msgfmt does."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from bench.translation_data import Pair, clean, make_parts, one_per_source, part_of, read_catalogues, write_parts

HEADER = "Content-Type: text/plain; charset=UTF-8\nPlural-Forms: nplurals=2; plural=(n != 1);\n"


def write_catalogue(root: Path, name: str, messages: dict[str, str], language: str = "de") -> None:
    """A .mo file: magic, revision, count, two tables of (length, offset), and the texts, each ended by a zero byte."""
    texts = [part.encode() for pair in sorted({"": HEADER, **messages}.items()) for part in pair]
    sources, targets = texts[::2], texts[1::2]
    count = len(sources)
    offset, tables = 28 + 16 * count, b""
    for text in sources + targets:
        tables += struct.pack("<II", len(text), offset)
        offset += len(text) + 1
    file = root / name / "usr/share/locale" / language / "LC_MESSAGES" / f"{name}.mo"
    file.parent.mkdir(parents=True)
    head = struct.pack("<7I", 0x950412DE, 0, count, 28, 28 + 8 * count, 0, 0)
    file.write_bytes(head + tables + b"".join(text + b"\0" for text in sources + targets))


def test_catalogues_read(tmp_path):
    """The header is there with an empty source; a plural gives its singular, a message with a context its text."""
    messages = {"Open": "Öffnen", "menu\x04Close": "Schließen", "%d file\0%d files": "%d Datei\0%d Dateien"}
    write_catalogue(tmp_path, "b", messages)
    write_catalogue(tmp_path, "a", {"Quit": "Beenden"})
    write_catalogue(tmp_path, "fr", {"Quit": "Quitter"}, language="fr")
    pairs = [(pair.source, pair.target) for pair in read_catalogues(tmp_path) if pair.source]
    assert pairs == [("Quit", "Beenden"), ("%d file", "%d Datei"), ("Open", "Öffnen"), ("Close", "Schließen")]


@pytest.mark.parametrize(
    ("source", "target", "cleaned"),
    [
        ("Save _As…", "Speichern _unter …", ("Save As…", "Speichern unter …")),
        ("E&xit", "&Beenden", ("Exit", "Beenden")),
        ("A &lt; B is wrong", "A &lt; B ist falsch", ("A &lt; B is wrong", "A &lt; B ist falsch")),
        ("one\n  two three", "eins\tzwei drei\n", ("one two three", "eins zwei drei")),
        ("option %s is unknown", "Option %s unbekannt", ("option %s is unknown", "Option %s unbekannt")),
    ],
)
def test_pairs_cleaned(source, target, cleaned):
    assert clean(Pair(source, target)) == Pair(*cleaned)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("", "leer"),
        ("empty", " "),
        ("Version", "VERSION"),
        ("%s: %d", "%s – %d"),
        ("%(name)s {0} <b>&amp;</b>", "%(name)s {1} <b>&amp;</b>"),
        ("long " * 40, "lang " * 40),
        ("short", "eine sehr lange Erklärung, die der Quelle nicht entspricht"),
    ],
)
def test_pairs_left_out(source, target):
    assert clean(Pair(source, target)) is None


def test_one_translation_for_a_source():
    """The most frequent; the first of those that are as frequent."""
    pairs = [Pair("File", "Akte"), Pair("File", "Datei"), Pair("File", "Datei"), Pair("Edit", "B"), Pair("Edit", "C")]
    assert one_per_source(pairs) == [Pair("File", "Datei"), Pair("Edit", "B")]


def test_similar_sources_share_a_part():
    """What differs only in case, digits, punctuation or directives is in one part, for any of the parts."""
    sources = [f"{word} number" for word in map(_word, range(2000))]
    assert {part_of(source) for source in sources} == {"train", "validation", "test"}
    assert all(part_of(source) == part_of(f"{source.upper()}: %s, 12!") for source in sources)


def _word(number: int) -> str:
    """A word for each number: no digits, as they do not count."""
    return "".join(chr(ord("a") + int(digit)) for digit in f"{number:04}")


def test_parts_have_no_source_in_common(tmp_path):
    """Every source once, in one part, whichever order the catalogues are read in; the files the same each time."""
    messages = {f"{_word(number)} words": f"{_word(number)} Wörter" for number in range(3000)}
    write_catalogue(tmp_path / "in", "a", messages)
    write_catalogue(tmp_path / "in", "b", {**messages, "Only here": "Nur hier"})
    counts = make_parts(tmp_path / "in", tmp_path / "out")
    parts = {part: _rows(tmp_path / "out" / f"{part}.jsonl") for part in counts}
    sources = [row["source"] for rows in parts.values() for row in rows]
    assert sorted(sources) == sorted({*messages, "Only here"})
    assert {part: len(rows) for part, rows in parts.items()} == counts
    assert counts["test"] > 0 < counts["validation"] < counts["train"] / 10

    backwards = [Pair(**row) for rows in parts.values() for row in reversed(rows)]
    assert write_parts(backwards, tmp_path / "again") == counts
    for part in counts:
        name = f"{part}.jsonl"
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


def _rows(file: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
