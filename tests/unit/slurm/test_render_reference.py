"""docs/slurm.md, slurm/README.md and the code say the same."""

from __future__ import annotations

import re
from pathlib import Path

from dsrun.options import flag_of
from dsrun.slurm.reference import PART, markdown
from dsrun.slurm.render.options import options
from dsrun.slurm.render.program import Site, train_program
from dsrun.slurm.render.script import completed, context
from tests.unit.slurm.stand_ins import spec_of

CHECKOUT = Path(__file__).parents[3]
PAGE = CHECKOUT / "docs" / "slurm.md"


def test_slurm_docs_page_is_up_to_date():
    """The table in docs/slurm.md is up to date."""
    text = PAGE.read_text(encoding="utf-8")
    assert PART.inserted(text) == text


def test_slurm_reference_names_every_option():
    """Every option is in the reference."""
    text = markdown()
    assert [name for name, each in options().items() if f"| `{flag_of(each)}`" not in text] == []


def test_slurm_reference_table_rows_match_header():
    """Every row of a table has as many columns as its header."""
    columns = None
    for line in markdown().splitlines():
        cells = line.replace("\\|", "").count("|") if line.startswith("|") else None
        assert cells is None or columns in (None, cells), line
        columns = cells


def test_template_readme_names_every_template_variable():
    """slurm/README.md names exactly what a template can use."""
    text = (CHECKOUT / "slurm" / "README.md").read_text(encoding="utf-8")
    first_cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    named = {word for cell in first_cells for word in re.findall(r"`(\w+)`", cell)}
    program = train_program([])
    assert named == set(context(completed(spec_of(), program, Site()), program, Site()))
