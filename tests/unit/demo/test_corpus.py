"""The demo data: held out for real, the same every time, and what it claims to be."""

import sys
import types
from collections import Counter
from pathlib import Path

import pytest

from dsrun.demo import corpus
from dsrun.demo.corpus import english, number_phrases, python_docs, romanian
from dsrun.errors import MissingError

SPLITS = ("train", "validation", "test")
FIRST_OF_SEED_7 = [
    "three hundred ninety-one thousand four hundred forty-nine",
    "two hundred thirty-five thousand seven hundred sixty-four",
]


@pytest.fixture(scope="module")
def phrases():
    return number_phrases()


@pytest.fixture(scope="module")
def docs():
    return python_docs()


def test_no_phrase_is_in_two_splits(phrases):
    for language in ("en", "ro"):
        rows = [row["translation"][language] for split in SPLITS for row in getattr(phrases, split)]
        assert len(set(rows)) == len(rows)


def test_phrase_counts(phrases):
    assert (len(phrases.train), len(phrases.validation), len(phrases.test)) == (20_100, 512, 1_024)


def test_translation_rows_pair_same_number(phrases):
    below_1000 = {english(n): romanian(n) for n in range(1000)}
    pairs = [row["translation"] for row in phrases.train if row["translation"]["en"] in below_1000]
    assert len(pairs) == 300 + 100
    assert all(pair["ro"] == below_1000[pair["en"]] for pair in pairs)


def test_held_out_words_occur_in_train_split(phrases):
    """Every word of the held-out phrases is trained."""
    for language in ("en", "ro"):
        trained = Counter(w for row in phrases.train for w in row["translation"][language].split())
        for row in [*phrases.validation, *phrases.test]:
            assert all(w in trained for w in row["translation"][language].split())


def test_small_numbers_in_train_and_test_splits(phrases):
    """Small numbers are trained, and short ones are tested too."""
    trained = {row["translation"]["en"] for row in phrases.train}
    assert {english(n) for n in range(100)} <= trained
    assert any("thousand" not in row["translation"]["en"] for row in phrases.test)


def test_phrases_follow_the_seed():
    first = number_phrases(train=50, validation=20, test=20, seed=1)
    assert first == number_phrases(train=50, validation=20, test=20, seed=1)
    assert first.test != number_phrases(train=50, validation=20, test=20, seed=2).test


def test_seeded_phrases_equal_on_every_machine():
    split = number_phrases(train=2, validation=1, test=2, seed=7)
    assert [row["translation"]["en"] for row in split.test] == FIRST_OF_SEED_7


def test_train_size_does_not_change_test_split():
    """More training rows leave the validation and test rows alone."""
    few, many = number_phrases(train=10), number_phrases(train=30_000)
    assert (few.validation, few.test) == (many.validation, many.test)


def test_no_text_is_in_two_splits(docs):
    texts = [row["text"] for split in SPLITS for row in getattr(docs, split)]
    assert len(set(texts)) == len(texts)
    bodies = [" ".join(text.partition("\n\n")[2].split()) for text in texts]
    assert len(set(bodies)) == len(bodies)


def test_no_module_is_in_two_splits(tmp_path, monkeypatch):
    _write_library(tmp_path, modules=60, per_module=12)
    _pretend_library(monkeypatch, tmp_path)
    splits = python_docs()
    modules = {split: {row["text"].split(".")[0] for row in getattr(splits, split)} for split in SPLITS}
    assert all(modules.values())
    assert sum(map(len, modules.values())) == len(set().union(*modules.values())) == 60


@pytest.mark.exhaustive
def test_docs_are_deterministic(docs):
    assert docs == python_docs()


def test_docs_from_standard_library(docs):
    """The texts come from this Python's own library, without its tests."""
    texts = {row["text"].partition("\n\n")[0] for split in SPLITS for row in getattr(docs, split)}
    assert {"json.dumps", "textwrap.wrap"} <= texts
    assert not any(title.startswith(("test.", "idlelib.", "lib2to3.")) for title in texts)
    assert len(docs.train) > 1000


def test_docs_skip_test_folders_and_broken_files(tmp_path, monkeypatch):
    _write_library(tmp_path, modules=60, per_module=12)
    for folder in ("test", "site-packages"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "secret.py").write_text(f'"""{"Must not be read. " * 10}"""\n')
    (tmp_path / "broken.py").write_text("def (:\n")
    (tmp_path / "latin.py").write_bytes(b'"""\xff\xfe"""\n')
    _pretend_library(monkeypatch, tmp_path)
    splits = python_docs()
    assert not any("Must not" in row["text"] for split in SPLITS for row in getattr(splits, split))


def test_docs_keep_repeated_docstring_once(tmp_path, monkeypatch):
    _write_library(tmp_path, modules=60, per_module=12)
    for i in range(30):
        (tmp_path / f"copy{i}.py").write_text(f'"""{"The same words again. " * 10}"""\n')
    _pretend_library(monkeypatch, tmp_path)
    splits = python_docs()
    assert sum("same words" in row["text"] for split in SPLITS for row in getattr(splits, split)) == 1


def test_long_docs_split_at_blank_lines(docs):
    texts = [row["text"] for row in docs.train]
    assert max(map(len, texts)) < 10_000
    pieces = corpus._passages("t", "\n\n".join(["x" * 1500] * 5))
    assert [len(piece) for piece in pieces] == [len("t\n\n") + 3002, len("t\n\n") + 3002, len("t\n\n") + 1500]


def test_missing_standard_library_reported(tmp_path, monkeypatch):
    _pretend_library(monkeypatch, tmp_path)
    with pytest.raises(MissingError, match="only 0 documentation texts"):
        python_docs()


def test_help_topics_are_optional(tmp_path, monkeypatch):
    _write_library(tmp_path, modules=60, per_module=12)
    _pretend_library(monkeypatch, tmp_path)
    without = python_docs()
    topic = {"zebra": "A topic of its own. " * 10}
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", types.SimpleNamespace(topics=topic))
    assert _size(python_docs()) == _size(without) + 1
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    assert python_docs() == without


def _size(splits) -> int:
    return sum(len(getattr(splits, split)) for split in SPLITS)


def _write_library(root: Path, modules: int, per_module: int) -> None:
    for m in range(modules):
        functions = (
            f'def f{i}():\n    """Function {i} of module {m}: {"long enough to keep, " * 6}."""\n'
            for i in range(per_module)
        )
        (root / f"mod{m}.py").write_text("\n".join(functions))


def _pretend_library(monkeypatch, root: Path) -> None:
    monkeypatch.setattr(corpus.sysconfig, "get_path", lambda _: str(root))
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", types.SimpleNamespace(topics={}))
