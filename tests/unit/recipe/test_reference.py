import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsrun.docpage import END
from dsrun.recipe.flags import CHOSEN, hf_flags, own_flags
from dsrun.recipe.reference import PART, default_text, help_text, markdown
from dsrun.recipe.removed import table

PAGE = Path(__file__).parents[3] / "docs" / "train.md"


def test_flag_reference_page_up_to_date():
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition(PART.begin)[2].partition(END)[0].strip() == markdown().strip()
    assert PART.inserted(text) == text


def test_flag_reference_lists_every_flag():
    text = markdown()
    for flag in own_flags().values():
        assert f"| `{flag.shown}` | " in text
        for alias in flag.aliases:
            assert f"`--{alias}`" in text
    for flag in hf_flags().values():
        assert f"`{flag.shown}`" in text
    for name in table():
        assert f"| `--{name}` | " in text


def test_flag_reference_table_columns():
    """Every row of a table has the columns of its head."""
    columns = None
    for line in markdown().splitlines():
        cells = line.replace("\\|", "").count("|") if line.startswith("|") else None
        assert cells is None or columns in (None, cells), line
        columns = cells


@pytest.mark.parametrize("width", [60, 80, 120])
def test_help_names_every_flag_within_its_width(width):
    text = help_text(width)
    words = set(text.split())
    for flag in (*own_flags().values(), *hf_flags().values()):
        assert flag.shown in words
    assert max(map(len, text.splitlines())) <= width


def test_flag_reference_command_prints_without_page():
    command = [sys.executable, "-m", "dsrun.recipe.reference"]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert found.stdout == markdown()


def test_flag_reference_words_for_run_time_defaults():
    """Defaults that are chosen when a run starts are told in words."""
    assert default_text(own_flags()["zero"]).startswith("2, unless")
    assert "[runs/<model>-<time>]" in help_text()
    assert all(default_text(own_flags()[name]) for name in CHOSEN if name in own_flags())
