"""The catalogue of translations and the code have the same texts, and translations keep what must not be translated."""

from __future__ import annotations

import ast
import re
import shutil

import polib
import pytest

from dsrun.diagnosis.rules import causes
from dsrun.messages import PLACEHOLDER
from dsrun.slurm.lint.launch import rules as script_rules
from dsrun.zero.rules import rules as config_rules
from tools.catalogue.texts import CHECKOUT, literals, texts
from tools.catalogue.update import CATALOGUE, compiled, current, update

ENTRIES = {entry.msgid: entry.msgstr for entry in polib.pofile(str(CATALOGUE))}
# Commands in backticks, quoted values, flags, names with underscores or dots, and variables.
CODE = re.compile(
    r"`[^`]+`|\"[^\"]*\"|(?<![\w-])--?[A-Za-z][\w-]*(?:=[\w./:-]+)?|\b\w+_\w+\b|\b[\w-]+\.(?:md|py|json|yaml|jsonl|log|sh)\b"
)
CODE_ALONE = "tokenizer.pad_token = tokenizer.eos_token"
CHINESE = "\u4e00-\u9fff"


def test_catalogue_is_up_to_date(tmp_path):
    """`make catalogue` would change neither file: no text is missing, none is stale."""
    copy = tmp_path / CATALOGUE.name
    shutil.copy(CATALOGUE, copy)
    assert update(copy) == []
    assert copy.read_text(encoding="utf-8") == CATALOGUE.read_text(encoding="utf-8")
    assert compiled(copy).read_bytes() == compiled(CATALOGUE).read_bytes()


def test_every_text_has_a_translation():
    assert [text for text in texts() if not ENTRIES.get(text)] == []


def test_translations_have_the_placeholders_of_their_texts():
    """Names, conversions and formats; a sentence may use them in another order."""

    def placeholders(text: str) -> set[str]:
        return {found[0] for found in PLACEHOLDER.finditer(text)}

    assert [text for text, said in ENTRIES.items() if placeholders(text) != placeholders(said)] == []


def test_translations_keep_flags_commands_and_names():
    lost = [
        (code, translation)
        for text, translation in ENTRIES.items()
        for code in CODE.findall(text)
        if code not in translation
    ]
    assert lost == []


def test_translations_are_typeset_as_chinese():
    """A space between Chinese and Latin characters, and Chinese punctuation behind Chinese characters."""
    odd = re.compile(rf"[{CHINESE}][A-Za-z0-9`]|[A-Za-z0-9`][{CHINESE}]|[{CHINESE}][,;:!?]|。$")
    assert [translation for translation in ENTRIES.values() if odd.search(translation)] == []


@pytest.mark.parametrize("code", causes())
def test_cause_in_chinese(code):
    """Title, meaning and every fix of a cause."""
    cause = causes()[code]
    signs = [text for sign in cause.signs for text in (sign.means, sign.fix)]
    every = {cause.title, cause.means, cause.fix, cause.other_fix, *signs} - {"", CODE_ALONE}
    assert [text for text in every if not re.search(f"[{CHINESE}]", ENTRIES[text])] == []


def test_findings_of_tables_in_chinese():
    """The message of every rule about configurations and sbatch scripts."""
    messages = [rule.message for rule in config_rules()]
    messages += [rule["message"] for rule in script_rules()["rules"].values()]
    assert [text for text in messages if not re.search(f"[{CHINESE}]", ENTRIES[text])] == []


def test_update_keeps_translations_and_drops_stale_texts(tmp_path):
    copy = tmp_path / CATALOGUE.name
    entries = polib.pofile(str(CATALOGUE))
    removed = entries[0]
    entries.remove(removed)
    entries.append(polib.POEntry(msgid="said by no one", msgstr="无"))
    entries.save(str(copy))
    assert update(copy) == [removed.msgid]
    now = current(copy)
    assert now.find("said by no one") is None
    assert now.find(entries[1].msgid).msgstr == entries[1].msgstr


def test_literals_of_a_module_are_found():
    source = """
a = Message("one {x}", x=1)
b = Message("two" if a else "three")
c = joined("; ", [counted(n, "disk")])
d = translated("four"), message("not this"), Message(variable)
"""
    assert sorted(literals(source)) == ["; ", "four", "one {x}", "three", "two", "{number:,} disks"]


# Functions that make findings, and methods of the report of `dsrun config check`.
MAKERS = {"Finding", "fine", "warning", "failure", "missing", "error"}
REPORTS = {"error", "warning", "info", "add", "at"}
SENTENCE = re.compile(r"^(?!--|(?:mkdir|export|unset|sudo|pip|nvidia-smi|dsrun|echo) ).*\b[a-z]{2,} ")


def plain_sentences(source: str) -> list[int]:
    """Lines on which a finding gets a sentence that is not a Message."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and makes_finding(node.func)]
    given = [[*call.args, *(each.value for each in call.keywords if each.arg in ("message", "fix"))] for call in calls]
    return [value.lineno for values in given for value in values if SENTENCE.search(words_of(value))]


def makes_finding(function: ast.expr) -> bool:
    if isinstance(function, ast.Attribute):
        return function.attr in REPORTS and ast.unparse(function.value) == "report"
    return isinstance(function, ast.Name) and function.id in MAKERS


def words_of(value: ast.expr) -> str:
    """The text that a literal or an f-string has of its own."""
    parts = value.values if isinstance(value, ast.JoinedStr) else [value]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in parts)


@pytest.mark.parametrize("room", ["cli", "diagnosis", "doctor", "monitoring", "runs", "slurm", "wheel", "zero"])
def test_findings_have_no_plain_sentences(room):
    sources = {path: path.read_text(encoding="utf-8") for path in (CHECKOUT / "dsrun" / room).rglob("*.py")}
    found = {path.name: plain_sentences(source) for path, source in sources.items()}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_plain_sentences_are_noticed():
    lines = [
        'fine("c", f"{n} are {m}")',
        'Finding(code="c", fix="write it")',
        'fine("c", Message("it is"))',
        'f("it is")',
    ]
    assert plain_sentences("\n".join(lines)) == [1, 2]
