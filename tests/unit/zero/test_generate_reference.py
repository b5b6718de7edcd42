"""docs/config.md and the code say the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsrun.errors import UsageError
from dsrun.zero.conflicts import RULES
from dsrun.zero.reference import BEGIN, END, inserted, main, markdown
from dsrun.zero.spec import flag_of, options

PAGE = Path(__file__).parents[3] / "docs" / "config.md"


def test_the_page_is_up_to_date():
    text = PAGE.read_text(encoding="utf-8")
    assert inserted(text) == text


def test_every_option_and_every_rule_is_in_the_reference():
    text = markdown()
    assert [name for name in options() if f"| `{flag_of(name)}` | " not in text] == []
    assert all(rule.source in text for rule in RULES)
    assert "{" not in text


def test_every_row_of_a_table_has_the_columns_of_its_head():
    columns = None
    for line in markdown().splitlines():
        cells = line.replace("\\|", "").count("|") if line.startswith("|") else None
        assert cells is None or columns in (None, cells), line
        columns = cells


def test_the_command_brings_a_page_up_to_date(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(f"Before.\n{BEGIN}\nold\n{END}\nAfter.\n", encoding="utf-8")
    main([str(page)])
    assert page.read_text(encoding="utf-8") == f"Before.\n{BEGIN}\n\n{markdown()}\n{END}\nAfter.\n"
    assert list(tmp_path.iterdir()) == [page]
    main([])
    assert capsys.readouterr().out == markdown()


def test_a_page_without_markers_is_refused():
    with pytest.raises(UsageError, match="no generated part"):
        inserted("words")
