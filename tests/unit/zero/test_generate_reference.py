"""docs/config.md and the code say the same."""

from __future__ import annotations

from pathlib import Path

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
