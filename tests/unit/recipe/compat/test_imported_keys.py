"""Every key of 50 public configurations of other tools is translated, named or refused when their file is imported."""

from pathlib import Path

import pytest

from dsrun.datafiles import read_toml
from dsrun.errors import UsageError
from dsrun.recipe.compat import imported_values
from dsrun.recipe.compat.imported_run import TOOLS, ImportedRun, import_run, tool_of
from dsrun.recipe.compat.removed import OUTCOMES, row_of, tables, vocabulary

PUBLIC = read_toml(Path(__file__).parents[3] / "data/imported/keys.toml")
FILES = [(tool, name) for tool, facts in PUBLIC.items() for name in facts["files"]]
MISTYPED = {"test_value", "context_parapllel_size"}
"""Keys in public files that their own tool does not know."""
UNKNOWN = "does not know this key"


def imported(tool: str, config: dict, folder: Path = Path()) -> ImportedRun:
    return import_run(ImportedRun(tool, config, folder, tool, "f.yml: "), 1)


def test_the_list_is_of_at_least_30_configurations():
    assert len(FILES) >= 30
    assert PUBLIC.keys() == TOOLS.keys()


@pytest.mark.parametrize(("tool", "name"), FILES, ids=lambda text: text)
def test_every_key_of_a_public_configuration_is_known(tool, name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    facts = PUBLIC[tool]
    config = {key: facts["values"].get(key) for key in facts["files"][name] if key not in MISTYPED}
    assert tool_of(config, name) == tool
    found = imported(tool, config)
    assert [line for line in found.notes if UNKNOWN in line and "datasets[" not in line] == []


@pytest.mark.parametrize("tool", PUBLIC)
def test_no_key_with_a_value_passes_in_silence_by_accident(tool, monkeypatch, tmp_path):
    """What neither translates, nor is named or refused, has a case for its value in the table."""
    monkeypatch.chdir(tmp_path)
    silent = []
    for key, value in PUBLIC[tool]["values"].items():
        part = ImportedRun(tool, {}, Path(), tool).read({key: value})
        if not (part.values or part.notes or part.refused or part.sets or part.kinds) and value:
            silent.append(key)
    rows = {key: [row_of(table, key) or {} for table in tables().values()] for key in silent}
    assert {key for key, found in rows.items() if not any({"cases", "by"} & row.keys() for row in found)} == set()


@pytest.mark.parametrize("tool", PUBLIC)
def test_no_number_or_switch_becomes_a_text(tool, monkeypatch, tmp_path):
    """Such as the name of a file, which an answer to the flag may speak of."""
    monkeypatch.chdir(tmp_path)
    for key, value in PUBLIC[tool]["values"].items():
        if isinstance(value, bool | int | float):
            given = ImportedRun(tool, {}, Path(), tool).read({key: value}).values
            assert not {str(value), str(value).lower()} & {each for each in given.values() if isinstance(each, str)}, (
                key
            )


@pytest.mark.parametrize("tool", PUBLIC)
def test_unknown_key_gets_a_line(tool):
    found = ImportedRun(tool, {}, Path(), tool, "f.yml:").read({"brand_new_key": 1, "another": None})
    assert len(found.notes) == 1
    assert "brand_new_key" in found.notes[0]
    assert UNKNOWN in found.notes[0]


def test_rows_name_flags_functions_and_tables_that_exist():
    known = vocabulary().keys()
    for rows in tables().values():
        for name, row in rows.items():
            for case in (row, *row.get("cases", ())):
                assert case.keys() <= OUTCOMES | {"answer", "why", "each", "is", "like"}, name
                assert {*case.get("set", ()), *([case["to"]] if "to" in case else [])} <= known, name
                assert not case.get("by") or callable(getattr(imported_values, case["by"])), name
                assert case.get("table", name) in {*tables(), name}, name


def test_no_row_says_what_is_known_without_it():
    """From a pattern of the same table, or because dsrun calls the key so too."""
    for tool, rows in tables().items():
        for name, row in rows.items():
            others = {key: each for key, each in rows.items() if "*" in key and key != name}
            assert row_of(others, name) != row, f"{tool} {name}"
            assert "'" in tool or row != {"to": name} or name not in vocabulary(), f"{tool} {name}"


@pytest.mark.parametrize("tool", TOOLS)
def test_defaults_are_of_flags_that_exist(tool):
    facts = TOOLS[tool]
    named = [each for key, value in facts.items() if key.startswith("defaults") for each in value]
    assert {*named, *facts["instead"], *facts["lora"].get("defaults", {})} <= vocabulary().keys()
    assert facts["why"].keys() <= {*named, *facts["lora"].get("defaults", {})}


@pytest.mark.parametrize("config", [{}, {"lr": 1}, {"base_model": "m", "model_name_or_path": "m", "stage": "sft"}])
def test_file_of_no_tool_or_of_two(config):
    with pytest.raises(UsageError, match="--from"):
        tool_of(config, "f.yml")
