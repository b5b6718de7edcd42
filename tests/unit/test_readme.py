"""README's length and figures; what pages name in the checkout: the tree, modules and functions; where tests are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Made by work in a checkout, not part of it; .gitignore names both.
MADE = {"runs", "dist"}
INDENT = 2


def named_paths() -> list[str]:
    """Every path in the block under "## The tree"; a line is indented by two spaces per level."""
    section = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").partition("\n## The tree\n")[2]
    block = re.search(r"```text\n(.*?)```", section, re.DOTALL)
    assert block
    parents: list[str] = []
    found = []
    for line in block[1].splitlines():
        depth = (len(line) - len(line.lstrip())) // INDENT
        parents = [*parents[:depth], line.split()[0]]
        found.append("".join(parents))
    return found


def test_tree_paths_exist():
    paths = named_paths()
    assert "dsrun/recipe/recipe_spec.py" in paths
    wrong = [path for path in paths if not (ROOT / path).exists() or path.endswith("/") != (ROOT / path).is_dir()]
    assert wrong == []


def test_tree_lists_top_level_folders():
    there = {entry.name for entry in ROOT.iterdir() if entry.is_dir() and not entry.name.startswith((".", "_"))}
    assert {path for path in named_paths() if path.count("/") == 1 and path.endswith("/")} == {
        f"{name}/" for name in {*there, ".ci"} - MADE
    }


def test_tree_lists_packages():
    packages = {*ROOT.glob("dsrun/*/__init__.py"), *ROOT.glob("dsrun/*/*/__init__.py")}
    assert {f"{entry.parent.relative_to(ROOT)}/" for entry in packages} <= set(named_paths())


def test_readme_is_short():
    """Words of prose and code alike."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 1_300


def test_readme_begins_with_a_picture_and_the_lines_to_copy():
    first = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## ")[0]
    assert re.search(r"^!\[[^\]]+\]\(docs/images/[\w-]+\.(?:svg|png)\)$", first, re.MULTILINE)
    lines = [line.partition("  ")[0] for line in re.findall(r"^\$ (.*)$", first, re.MULTILINE)]
    assert lines == [
        "make demo",
        "make test",
        'pip install "$(dsrun build-wheel --arch auto)"',
        "dsrun render-slurm --nodes 4 | sbatch",
        "dsrun train --zero 2 --model t5-large",
    ]


def test_readme_figures_stand_where_they_were_measured():
    """Each figure of "What it is better at" is in the section that its row links to."""
    part = (
        (ROOT / "README.md")
        .read_text(encoding="utf-8")
        .partition("\n## What it is better at\n")[2]
        .partition("\n## ")[0]
    )
    rows = [line for line in part.splitlines() if re.match(r"\| [^-|\s]", line)]
    assert len(rows) >= 5
    for row in rows:
        _, ours, theirs, link = (cell.strip() for cell in row.strip("|").split("|"))
        page, _, anchor = re.search(r"\]\(([^)]+)\)", link)[1].partition("#")
        sections = re.split(r"^## ", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
        titles = {re.sub(r"[^\w -]", "", each.partition("\n")[0].lower()).replace(" ", "-"): each for each in sections}
        measured = set(re.findall(r"\d[\d,.]*\d|\d", titles[anchor]))
        shown = set(re.findall(r"\d[\d,.]*\d|\d", f"{ours} {re.sub(r'`[^`]*`', '', theirs)}"))
        assert shown
        assert shown - measured == set(), row


def test_readme_links_lead_to_files():
    targets = re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert "docs/train.md" in targets
    assert [target for target in targets if not (ROOT / target).is_file()] == []


def test_documentation_names_modules_that_exist():
    """Paths in code quotes, from the root, from dsrun/ or from the page's own folder."""
    folders = [folder for folder in ROOT.glob("[a-z]*/") if folder.name not in MADE]
    pages = [*ROOT.glob("*.md"), *(page for folder in folders for page in folder.rglob("*.md"))]
    assert ROOT / "docs/architecture.md" in pages
    wrong = [
        (page.name, path)
        for page in pages
        for path in re.findall(r"`([\w./*-]+/[\w.*-]+\.(?:py|toml))`", page.read_text(encoding="utf-8"))
        if not any(any(folder.glob(path)) for folder in (ROOT, ROOT / "dsrun", page.parent))
    ]
    assert wrong == []


def test_unit_tests_mirror_packages():
    """CONTRIBUTING's rule, so that nobody has to look tests up in a list."""
    packages = {each.parent.name for each in ROOT.glob("dsrun/*/__init__.py")}
    folders = {each.parent.name for each in ROOT.glob("tests/unit/*/test_*.py")}
    assert packages - folders == set()
    # Folders of the checkout.
    assert folders - packages == {"bench", "faults", "tools"}


def test_integration_tests_name_their_subject():
    files = ROOT.glob("tests/integration/test_*.py")
    assert [each.name for each in files if not ast.get_docstring(ast.parse(each.read_text(encoding="utf-8")))] == []


def test_contributing_is_one_page():
    assert len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split()) <= 900


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_paths_and_functions_named_for_contributors_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:[\w.]+/)+[\w.*]*)`", text))
    assert [path for path in paths if not any([*ROOT.glob(path), *ROOT.glob(f"dsrun/{path}")])] == []
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "dsrun").rglob("*.py"))
    functions = set(re.findall(r"`([a-zA-Z_]\w+)`", text.partition("## Two paths")[2])) - {"signal"}
    assert [name for name in functions if not re.search(rf"(?:def|class) {name}\b", code)] == []
