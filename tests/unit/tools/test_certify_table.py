"""The record of certified models and the table of docs/models.md; which of them are certified when."""

from __future__ import annotations

import json
from datetime import date, timedelta

import pytest

from dsrun.certify.checks import CHECK_FACTS
from dsrun.certify.verdict import FACTS, config_hash
from tests.unit.certify.verdicts import LLAMA, check_row, verdict
from tools.certify import __main__ as program
from tools.certify import record
from tools.docs import models
from tools.docs.models import anchor, render

TODAY = date(2026, 11, 28)
FINE = (check_row("one_loss"),)


def entry(*rows, config=LLAMA):
    return record.entry_of(config, verdict(*rows).as_dict())


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Three configs and a record of our own."""
    configs = {name: {**LLAMA, "hidden_size": 8 * size} for size, name in enumerate(("a", "b", "c"), 1)}
    (tmp_path / "configs.json").write_text(json.dumps(configs))
    known, defaults = tmp_path / "record.json", (record.read_record, record.write_record, record.configs)
    monkeypatch.setattr(record, "configs", lambda: defaults[2](tmp_path / "configs.json"))
    monkeypatch.setattr(record, "read_record", lambda: defaults[0](known))
    monkeypatch.setattr(record, "write_record", lambda found: defaults[1](found, known))
    return configs


@pytest.fixture
def ask(files, monkeypatch, capsys):
    """Call the program, which is answered by `rows` of each model; those that it certified."""

    def call(*args, rows=FINE, error=""):
        asked = []

        def certified(config, limit_s):
            asked.append(next(name for name, each in files.items() if each == config))
            return (
                {"error": error}
                if error
                else verdict(*(rows if isinstance(rows, (tuple, list)) else next(rows))).as_dict()
            )

        monkeypatch.setattr(program, "certified", certified)
        monkeypatch.setattr("sys.argv", ["certify", *args])
        code = program.main()
        return code, asked

    return call


def test_record_goes_on_where_it_was_stopped(ask):
    assert ask("--minutes", "0") == (0, [])
    assert ask("b") == (0, ["b"])
    assert ask() == (0, ["a", "c"])
    assert ask() == (0, [])
    assert ask("b") == (0, ["b"])
    assert ask("d") == (4, [])


@pytest.mark.parametrize("name", FACTS["packages"])
def test_other_versions_make_a_model_due(ask, monkeypatch, name):
    ask()
    versions = record.installed()
    monkeypatch.setattr(record, "installed", lambda: {**versions, name: "99"})
    assert ask()[1] == ["a", "b", "c"]


def test_another_config_makes_a_model_due(ask, files, monkeypatch):
    ask()
    files["b"]["hidden_size"] = 999
    monkeypatch.setattr(record, "configs", lambda: files)
    assert ask()[1] == ["b"]


def test_tenth_of_a_day_is_compared_and_changes_nothing(ask, monkeypatch):
    monkeypatch.setattr(record, "PARTS", 1)
    ask(rows=[check_row("one_loss"), check_row("packed", "error")])
    before = record.read_record()
    assert ask("--tenth", rows=[check_row("packed", "error")]) == (0, ["a", "b", "c"])
    assert ask("--tenth", rows=[check_row("half", "warning")])[0] == 0
    assert ask("--tenth", rows=[check_row("one_loss", "error")])[0] == 3
    assert ask("--tenth", error="no verdict")[0] == 3
    assert record.read_record() == before


def test_tenth_tries_again_what_is_new(ask, monkeypatch):
    monkeypatch.setattr(record, "PARTS", 1)
    ask("a")
    answers = iter([[check_row("one_loss", "error")], FINE, FINE, FINE])
    code, asked = ask("--tenth", rows=answers)
    assert (code, asked) == (0, ["a", "a", "b", "c"])


def test_every_model_has_its_day():
    names = [str(number) for number in range(105)]
    days = [record.part_of(names, TODAY + timedelta(day)) for day in range(record.PARTS)]
    assert sorted(name for day in days for name in day) == sorted(names)
    assert max(map(len, days)) <= 11


def test_record_is_read_as_it_was_written(tmp_path):
    found = {"b": entry(check_row("one_loss")), "a": entry(check_row("packed", "error", avoid=["--packing off"]))}
    file = tmp_path / "VERDICTS.json"
    record.write_record(found, file)
    assert record.read_record(file) == found
    assert json.loads(file.read_text())["version"] == 1
    assert len(file.read_text().splitlines()) == 2 + len(found)
    assert record.read_record(tmp_path / "none") == {}


def test_table_has_a_column_for_each_check_and_names_what_fails():
    rows = [check_row("one_loss"), check_row("final", "error", "a | b"), check_row("stages", "warning", "near")]
    rows[1]["avoid"] = ["--zero 2"]
    found = {"x-1b": entry(*rows), "y": record.entry_of(LLAMA, {"error": "no verdict within 600 s"})}
    text = render(found)
    head = next(line for line in text.splitlines() if line.startswith("| model | type |"))
    assert head.count("certify.md#") == len(CHECK_FACTS)
    cells = dict(zip([code.split("`")[1] for code in head.split("|")[3:-2]], _cells(text, "x-1b"), strict=True))
    assert (cells["one_loss"], cells["final"], cells["stages"]) == ("✓", "**✕**", "!")
    assert {cells[code] for code in cells.keys() - {"one_loss", "final", "stages"}} == {"?"}
    assert "| x-1b | `final` | a \\| b | `--zero 2` |" in text
    assert "| x-1b | `stages` | near | a fix |" in text
    assert "no verdict within 600 s" in text
    assert text.startswith("2 models, 0 of which")


def _cells(text, name):
    line = next(line for line in text.splitlines() if line.startswith(f"| {name} | llama |"))
    return [cell.strip() for cell in line.split("|")[3:-2]]


def test_recorded_models_are_published_ones():
    """And their configs are those that were certified."""
    configs, found = record.configs(), record.read_record()
    assert set(found) <= set(configs)
    assert {name for name, each in found.items() if each["config"] != config_hash(configs[name])[:16]} == set()
    assert {code for each in found.values() for code in each.get("checks", {})} <= set(CHECK_FACTS)
    assert sum("checks" in each for each in found.values()) >= 60


def test_headings_of_checks_are_where_the_table_leads():
    page = (record.CHECKOUT / "docs" / "certify.md").read_text(encoding="utf-8")
    headings = {anchor(line[4:]) for line in page.splitlines() if line.startswith("### ")}
    assert {anchor(facts["title"]) for facts in CHECK_FACTS.values()} <= headings
    assert all(f"`{code}`" in models.checks() for code in CHECK_FACTS)


def test_documented_keys_are_those_of_a_verdict():
    page = (record.CHECKOUT / "docs" / "certify.md").read_text(encoding="utf-8")
    table = page.partition("## For programs")[2].partition("\n## ")[0]
    keys = {
        word for line in table.splitlines() if line.startswith("| `") for word in line.split("|")[1].split("`")[1::2]
    }
    assert keys == {"version", *verdict(check_row("one_loss")).as_dict()}
