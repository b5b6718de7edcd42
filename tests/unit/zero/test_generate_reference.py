"""docs/config.md and the code say the same."""

from __future__ import annotations

import sys
import tomllib
from dataclasses import fields
from pathlib import Path

from dsrun.recipe import recipe
from dsrun.recipe.spec import TrainSpec
from dsrun.zero import rules as rules_module
from dsrun.zero.generate import spec
from dsrun.zero.generate.spec import flag_of, options
from dsrun.zero.reference import PART, markdown
from dsrun.zero.rules import rules

PAGE = Path(__file__).parents[3] / "docs" / "config.md"


def test_config_page_is_up_to_date():
    text = PAGE.read_text(encoding="utf-8")
    assert PART.inserted(text) == text


def test_config_page_lists_every_option_and_rule():
    text = markdown()
    assert [name for name in options() if f"| `{flag_of(name)}` | " not in text] == []
    assert all(rule.source in text for rule in rules())
    assert "{" not in text.replace("{…}", "").replace('{"', "")


def test_config_page_table_columns_match_header():
    columns = None
    for line in markdown().splitlines():
        cells = line.replace("\\|", "").count("|") if line.startswith("|") else None
        assert cells is None or columns in (None, cells), line
        columns = cells


def test_data_files_and_code_name_the_same_things():
    assert spec.WHEN.keys() == rules_module.read_rules("flags").keys()
    assert rules_module.WHEN.keys() == rules_module.read_rules("config").keys()
    for declared in (spec.ZeroSpec, TrainSpec):
        file = Path(sys.modules[declared.__module__].__file__).with_suffix(".toml")
        assert tomllib.loads(file.read_text(encoding="utf-8")).keys() == {each.name for each in fields(declared)}
    checks = Path(recipe.__file__).with_name("checks.toml")
    assert tomllib.loads(checks.read_text(encoding="utf-8"))["checks"].keys() == recipe.WHEN.keys()
