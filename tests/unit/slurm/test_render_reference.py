"""docs/slurm.md, slurm/README.md and the code say the same."""

from __future__ import annotations

import re
from pathlib import Path

from dsrun.slurm.program import train_program
from dsrun.slurm.reference import PART, markdown
from dsrun.slurm.render import completed, context
from dsrun.slurm.site import Site
from dsrun.slurm.spec import flag_of, options
from tests.unit.slurm.stand_ins import spec_of

CHECKOUT = Path(__file__).parents[3]
PAGE = CHECKOUT / "docs" / "slurm.md"


def test_the_page_is_up_to_date():
    text = PAGE.read_text(encoding="utf-8")
    assert PART.inserted(text) == text


def test_every_option_is_in_the_reference():
    text = markdown()
    assert [name for name in options() if f"| `{flag_of(name)}`" not in text] == []


def test_every_row_of_a_table_has_the_columns_of_its_head():
    columns = None
    for line in markdown().splitlines():
        cells = line.replace("\\|", "").count("|") if line.startswith("|") else None
        assert cells is None or columns in (None, cells), line
        columns = cells


def test_the_readme_of_the_templates_names_what_a_template_can_name():
    text = (CHECKOUT / "slurm" / "README.md").read_text(encoding="utf-8")
    first_cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    named = {word for cell in first_cells for word in re.findall(r"`(\w+)`", cell)}
    program = train_program([])
    assert named == set(context(completed(spec_of(), program, Site()), program, Site()))
