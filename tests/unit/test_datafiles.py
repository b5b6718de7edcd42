"""What is kept of dsrun's own files between its processes: right after every change, and never a reason to fail."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from dsrun.datafiles import kept, read_toml, toml_beside


@pytest.fixture(autouse=True)
def _bytecode(monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)


@pytest.fixture
def facts(tmp_path):
    file = tmp_path / "facts.toml"
    file.write_text('a = 1\n[table]\nb = ["x", 2.5, true]\n')
    return file


def text_of(content: bytes) -> str:
    return content.decode()


def must_not_run(_content: bytes) -> str:
    raise AssertionError


def test_toml_is_parsed_once(facts, monkeypatch):
    """The second time the parser is not even there."""
    expected = {"a": 1, "table": {"b": ["x", 2.5, True]}}
    assert read_toml(facts) == expected
    monkeypatch.setitem(sys.modules, "tomllib", None)
    assert read_toml(facts) == expected
    assert toml_beside(str(facts.with_suffix(".py"))) == expected
    assert toml_beside(str(facts.with_name("module.py")), "facts.toml") == expected


def test_each_reader_has_its_own_content(facts):
    read_toml(facts)
    read_toml(facts)["table"]["b"].append("changed")
    assert read_toml(facts)["table"]["b"] == ["x", 2.5, True]


@pytest.mark.parametrize("change", ["size", "time", "version"])
def test_kept_result_follows_file(facts, change):
    assert kept(facts, text_of, "1") == facts.read_text()
    stat = facts.stat()
    if change == "size":
        facts.write_text("a = 10\n")
        os.utime(facts, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    elif change == "time":
        facts.write_text(facts.read_text().replace("1", "2"))
        os.utime(facts, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    made = kept(facts, lambda content: f"again {content.decode()}", "2" if change == "version" else "1")
    assert made == f"again {facts.read_text()}"


@pytest.mark.parametrize("damage", [b"", b"x", b"\x00" * 50, b"i\x01\x00\x00\x00", b"[\x02\x00\x00\x00"])
def test_damaged_result_is_made_again(facts, damage):
    kept(facts, text_of)
    (file,) = (facts.parent / "__pycache__").iterdir()
    file.write_bytes(damage)
    assert kept(facts, text_of) == facts.read_text()
    assert kept(facts, must_not_run) == facts.read_text()


def test_folder_that_cannot_be_written_is_no_error(facts):
    (facts.parent / "__pycache__").write_text("a file in its place")
    assert [kept(facts, text_of) for _ in range(2)] == [facts.read_text()] * 2


def test_nothing_is_written_without_bytecode(facts, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    kept(facts, text_of)
    assert [each.name for each in facts.parent.iterdir()] == ["facts.toml"]


def test_results_are_kept_under_pycache_prefix(facts, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "prefix"))
    kept(facts, text_of)
    (file,) = Path(f"{tmp_path}/prefix{facts.parent}").iterdir()
    assert file.name == f"facts.toml.{sys.implementation.cache_tag}"
    assert not (facts.parent / "__pycache__").exists()
