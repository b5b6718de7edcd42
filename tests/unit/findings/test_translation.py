"""The language that the environment asks for, and what is printed in it."""

from __future__ import annotations

import io

import pytest

from dsrun.findings.translation import language, language_named, translated
from dsrun.messages import Message, joined
from dsrun.system.terminal.display import counted

OOM = Message("GPU memory exhausted")
LOCALES = ("DSRUN_LANG", "LC_ALL", "LC_MESSAGES", "LANG")


@pytest.fixture
def chinese(monkeypatch):
    for name in LOCALES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DSRUN_LANG", "zh")


@pytest.mark.parametrize(
    ("environ", "chosen"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_TW"}, "zh"),
        ({"LANG": "zh"}, "zh"),
        ({"LANG": "C"}, "en"),
        ({"LANG": "POSIX"}, "en"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LANG": "zhx_CN"}, "en"),
        ({"LC_ALL": "C.UTF-8", "LANG": "zh_CN.UTF-8"}, "en"),
        ({"LC_ALL": "", "LC_MESSAGES": "zh_CN.GB18030", "LANG": "en_US.UTF-8"}, "zh"),
        ({"LC_MESSAGES": "en_US.UTF-8", "LANG": "zh_CN.UTF-8"}, "en"),
        ({"LC_CTYPE": "zh_CN.UTF-8"}, "en"),
        ({"DSRUN_LANG": "zh", "LC_ALL": "C"}, "zh"),
        ({"DSRUN_LANG": "zh-Hans", "LC_ALL": "C"}, "zh"),
        ({"DSRUN_LANG": "en", "LC_ALL": "zh_CN.UTF-8"}, "en"),
        ({"DSRUN_LANG": "", "LANG": "zh_CN.UTF-8"}, "zh"),
        ({"DSRUN_LANG": "klingon", "LANG": "zh_CN.UTF-8"}, "en"),
    ],
)
def test_language_of_environment(environ, chosen):
    """DSRUN_LANG, then LC_ALL, LC_MESSAGES and LANG: the first that is not empty."""
    assert language(environ) == chosen


def test_unknown_language_has_no_name():
    assert (language_named("EN_us"), language_named("fr_FR.UTF-8")) == ("en", None)


def test_text_is_translated_with_its_values(chinese):
    assert translated(OOM) == "显存不足"
    assert translated("GPU memory exhausted") == "显存不足"
    assert translated(Message("{title} (likely)", title=OOM)) == "显存不足（可能）"
    assert translated(counted(1, "error")) == translated(Message("{number:,} errors", number=1)) == "1 个错误"
    assert translated(joined("; ", [OOM, OOM])) == "显存不足；显存不足"


def test_values_that_are_plain_text_stay(chinese):
    """A file of the name of a text is not translated."""
    assert translated(Message("{name}: {problem}", name="healthy", problem=OOM)) == "healthy: 显存不足"


def test_text_without_translation_stays_english(chinese):
    assert translated("never heard of") == "never heard of"
    assert translated(Message("{title} of old", title=OOM)) == "显存不足 of old"
    assert translated("") == translated(Message("")) == ""


def test_text_in_english_is_the_plain_text(monkeypatch):
    monkeypatch.setenv("DSRUN_LANG", "en")
    assert type(translated(OOM)) is str
    assert translated(OOM) == "GPU memory exhausted"


@pytest.mark.parametrize(("encoding", "text"), [("gb18030", "显存不足"), ("iso-8859-1", "GPU memory exhausted")])
def test_text_that_stdout_cannot_encode_is_english(chinese, monkeypatch, encoding, text):
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    assert translated(OOM) == text
