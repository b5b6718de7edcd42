"""CHANGELOG.md, SECURITY.md and CITATION.cff: their version, their links, and what they name."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from dsrun import __version__
from dsrun.cli.main import COMMANDS
from dsrun.recipe.flags import by_spelling, normalise

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(str(page.relative_to(ROOT)) for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
# SHA-256 of https://www.apache.org/licenses/LICENSE-2.0.txt
APACHE_2 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_changelog_begins_with_this_version():
    first = re.search(r"^## (\S+)", text_of("CHANGELOG.md"), re.MULTILINE)
    assert first
    assert first[1] == __version__ == tomllib.loads(text_of("pyproject.toml"))["project"]["version"]


def test_changelog_names_every_command():
    named = set(re.findall(r"[\w-]+", text_of("CHANGELOG.md")))
    assert set(COMMANDS) - named == set()


def test_citation_is_that_of_this_version():
    """The keys that the format requires (1.2.0), and the version."""
    found = yaml.safe_load(text_of("CITATION.cff"))
    assert {"cff-version", "message", "title", "authors"} <= found.keys()
    assert (found["cff-version"], found["type"], found["title"]) == ("1.2.0", "software", "dsrun")
    assert str(found["version"]) == __version__
    assert all(each.keys() & {"name", "family-names"} for each in found["authors"])


def test_license_is_apache_2_everywhere():
    """The text as apache.org has it, but for the line of the copyright; pyproject.toml and CITATION.cff name it."""
    text = text_of("LICENSE")
    owner = "Copyright 2026 The dsrun authors"
    template = text.replace(owner, "Copyright [yyyy] [name of copyright owner]").encode()
    assert (text.count(owner), hashlib.sha256(template).hexdigest()) == (1, APACHE_2)
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    found = yaml.safe_load(text_of("CITATION.cff"))
    assert project["license"] == found["license"] == "Apache-2.0"
    assert project["authors"] == found["authors"] == [{"name": "The dsrun authors"}]


def test_security_names_flags_of_training_that_exist():
    flags = set(re.findall(r"`(--[\w-]+)`", text_of("SECURITY.md")))
    others = {"--setup", "--template", "--find-links", "--no-prove", "--hostfile", "--address"}
    assert {flag for flag in flags - others if normalise(flag) not in by_spelling()} == set()


def anchors(page: Path) -> set[str]:
    """What links to the headings of a page end with."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", each).lower()) for each in headings)
    return {each.replace(" ", "-") for each in plain}


@pytest.mark.parametrize("name", PAGES)
def test_links_of_page_lead_somewhere(name):
    """Files, and headings in them."""
    page = ROOT / name
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        file = page.parent / path if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            wrong.append(target)
    assert wrong == []
