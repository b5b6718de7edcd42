"""The generated parts of docs/ and ds_configs/ and the code say the same."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from dsrun.diagnosis.rules import causes
from dsrun.hardware.gpu_facts import gpu_table
from dsrun.kubernetes.options import KubernetesSpec
from dsrun.launch.program import train_program
from dsrun.options import flag_of
from dsrun.recipe.compat.removed import removed_flags
from dsrun.recipe.flags import hf_flags, own_flags
from dsrun.slurm.render.job_script import completed, context
from dsrun.slurm.render.options import options as slurm_options
from dsrun.slurm.render.site import ClusterSite
from dsrun.wheel.platform.gpu_target import product_lines
from dsrun.zero.generate.spec import options as config_options
from dsrun.zero.rules import rules
from tests.unit.slurm.stand_ins import spec_of
from tools.docs import options, table, wheels
from tools.docs.pages import BEGIN, CHECKOUT, END, PAGES, diagnose, ds_configs, updated, write_all


@pytest.mark.parametrize("name", PAGES)
def test_docs_page_is_up_to_date(name):
    page = (CHECKOUT / "docs" / name).read_text(encoding="utf-8")
    assert updated(page, PAGES[name]()) == page


def test_ds_configs_are_up_to_date():
    found = {path.name: path.read_text(encoding="utf-8") for path in (CHECKOUT / "ds_configs").iterdir()}
    assert found == ds_configs()


def test_make_docs_writes_every_page(tmp_path):
    (tmp_path / "docs" / "zh").mkdir(parents=True)
    (tmp_path / "ds_configs").mkdir()
    for name in PAGES:
        (tmp_path / "docs" / name).write_text(f"Before ă.\n{BEGIN}\nold\n{END}\nAfter.\n", encoding="utf-8")
    write_all(tmp_path)
    for name, made in PAGES.items():
        written = (tmp_path / "docs" / name).read_text(encoding="utf-8")
        assert written == f"Before ă.\n{BEGIN}\n\n{made()}\n{END}\nAfter.\n"
    assert {path.name for path in (tmp_path / "ds_configs").iterdir()} == set(ds_configs())


@pytest.mark.parametrize("page", ["words", f"{BEGIN} words", f"{END} words {BEGIN}"])
def test_docs_page_without_markers_rejected(page):
    with pytest.raises(ValueError, match="no generated part"):
        updated(page, "new")


@pytest.mark.parametrize("name", PAGES)
def test_docs_table_rows_match_header(name):
    """Every row of a table has as many columns as its header."""
    columns = None
    for line in PAGES[name]().splitlines():
        cells = line.replace("\\|", "").count("|") if line.startswith("|") else None
        assert cells is None or columns in (None, cells), line
        columns = cells


def test_docs_table_escapes_pipe():
    """A bar within a cell does not end the cell."""
    assert table(("flag", "value"), [("`--a`", "`x|y`")]) == ("| flag | value |\n| --- | --- |\n| `--a` | `x\\|y` |")


def test_train_page_lists_every_flag():
    text = options.train()
    for flag in own_flags().values():
        assert f"| `{flag.shown}` | " in text
        for alias in flag.aliases:
            assert f"`--{alias}`" in text
    for flag in hf_flags().values():
        assert f"`{flag.shown}`" in text
    for name in removed_flags():
        assert f"| `--{name}` | " in text


def test_config_page_lists_every_option_and_rule():
    text = options.config()
    assert [name for name, each in config_options().items() if f"| `{flag_of(each)}` | " not in text] == []
    assert all(rule.source in text for rule in rules())
    assert "{" not in text.replace("{…}", "").replace('{"', "")


def test_diagnose_page_lists_every_cause():
    rows = [line.split(" | ")[0] for line in diagnose().splitlines()[2:]]
    assert rows == [f"| `{code}`" for code in causes() if code not in ("none", "running")]


def test_slurm_page_lists_every_option():
    text = options.slurm()
    assert [name for name, each in slurm_options().items() if f"| `{flag_of(each)}`" not in text] == []


def test_kubernetes_page_lists_every_option():
    text = options.kubernetes()
    assert [each.name for each in fields(KubernetesSpec) if f"| `{flag_of(each)}`" not in text] == []


def test_wheels_page_lists_every_gpu_by_capability():
    first = wheels.markdown().partition("### By torch release")[0]
    rows = [line.split(" | ") for line in first.splitlines() if line.startswith("| ")]
    listed = {row[0].removeprefix("| "): set(row[1].split(", ")) for row in rows}
    for gpu in gpu_table():
        names = listed[f"{gpu.capability[0]}.{gpu.capability[1]}"]
        assert any(gpu.name.startswith(name.partition(" Active")[0]) for name in names), gpu.name
    assert product_lines((9, 0))[0] == "H100"


@pytest.mark.parametrize(
    "row",
    [
        "| 6.0 | Tesla P100, Quadro GP100 | up to 12.9 | up to 2.7 (12.6) |",
        "| 10.0 | B200, GB200, B100 | 12.8 and later | 2.8 (12.8) and later |",
        "| 3.7 | Tesla K80 | up to 11.8 | none |",
        "| 2.13 | 13.0 | 7.5, 8.0, 8.6, 9.0, 10.0, 12.0 |",
    ],
)
def test_wheels_page_table_rows(row):
    assert row in wheels.markdown().splitlines()


def test_template_readme_names_every_template_variable():
    """slurm/README.md names exactly what a template can use."""
    text = (CHECKOUT / "slurm" / "README.md").read_text(encoding="utf-8")
    first_cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    named = {word for cell in first_cells for word in re.findall(r"`(\w+)`", cell)}
    program = train_program([])
    assert named == set(context(completed(spec_of(), program, ClusterSite()), program, ClusterSite()))
