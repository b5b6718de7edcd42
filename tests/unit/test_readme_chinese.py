"""README.zh.md keeps up with README.md; links of the Chinese pages lead somewhere."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENGLISH, CHINESE = ROOT / "README.md", ROOT / "README.zh.md"
PAGES = [ENGLISH, CHINESE, *sorted((ROOT / "docs" / "zh").glob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Behind the first column of a block: a comment, or what a file contains.
REMARK = re.compile(r"(?<=\S)(?: {2,}| +# ).*$", re.MULTILINE)


@dataclass
class Section:
    """What two languages share of a section: all but its sentences."""

    level: int
    title: str
    blocks: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    items: int = 0


def sections(page: Path) -> Iterator[Section]:
    """The sections of a page, the code blocks taken out before headings are looked for."""
    text = page.read_text(encoding="utf-8")
    blocks = [f"{kind}\n{REMARK.sub('', body)}" for kind, body in FENCE.findall(text)]
    prose = FENCE.sub("\0", text)
    for part in re.split(r"^(?=#+ )", prose, flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        marks, _, title = heading.partition(" ")
        section = Section(len(marks), title)
        section.blocks = [blocks.pop(0) for _ in range(body.count("\0"))]
        rows = re.findall(r"^\| (?!---).*", body, re.MULTILINE)
        section.rows = [" ".join(re.findall(r"\d[\d,.]*\d|\d", LINK.sub("", row))) for row in rows]
        section.links = [link for link in LINK.findall(body) if not own(page, link)]
        section.code = re.findall(r"`([^`\n]+)`", body)
        section.items = len(re.findall(r"^- ", body, re.MULTILINE))
        yield section


def own(page: Path, link: str) -> bool:
    """Whether only this language has the link: to the other language, to the Chinese pages."""
    return link.startswith("docs/zh/") or link.partition("#")[0] in {ENGLISH.name, CHINESE.name} - {page.name}


def differences(english: Section, chinese: Section) -> list[str]:
    """What one section has and the other lacks, each in a line."""
    place = f'README.zh.md, section "{chinese.title}" ({english.title})'
    found = []
    matcher = SequenceMatcher(None, english.blocks, chinese.blocks, autojunk=False)
    for _, begin, end, start, stop in (each for each in matcher.get_opcodes() if each[0] != "equal"):
        # A block of a gap that is as long on both sides is another text of the same block.
        same = end - begin == stop - start
        for ours, theirs in zip(english.blocks[begin:end], chinese.blocks[start:stop], strict=False) if same else ():
            lines, others = (Counter(block.splitlines()) for block in (ours, theirs))
            found += [f"{place} lacks the line: {line}" for line in lines - others]
            found += [f"{place} has another line: {line}" for line in others - lines]
            if lines == others:
                found.append(f"{place} has the lines of a block in another order:\n{theirs}")
        if not same:
            found += [f"{place} lacks the block:\n{block}" for block in english.blocks[begin:end]]
            found += [f"{place} has another block:\n{block}" for block in chinese.blocks[start:stop]]
    for what in ("rows", "links", "code"):
        ours, theirs = Counter(getattr(english, what)), Counter(getattr(chinese, what))
        found += [f"{place} lacks of its {what}: {each}" for each in ours - theirs]
        found += [f"{place} has beyond the English {what}: {each}" for each in theirs - ours]
    if english.rows != chinese.rows and not found:
        found.append(f"{place} has the rows in another order")
    if english.items != chinese.items:
        found.append(f"{place} has {chinese.items} list items, the English one {english.items}")
    return found


def test_chinese_readme_has_the_english_structure():
    """Headings, code blocks without their comments, figures of tables, links, code in sentences, list items."""
    english, chinese = list(sections(ENGLISH)), list(sections(CHINESE))
    shown = [[f"{'#' * each.level} {each.title}" for each in page] for page in (english, chinese)]
    assert [each.level for each in english] == [each.level for each in chinese], shown
    found = [line for pair in zip(english, chinese, strict=True) for line in differences(*pair)]
    assert found == [], "\n".join(found)


def test_what_chinese_readme_lacks_is_named():
    """A block's line, a row, a link, code in a sentence and a list item that only README.md has."""
    english = Section(2, "On SLURM", ["console\n$ a\n$ b\n"], ["1.8 8.0"], ["docs/x.md"], ["--x"], 1)
    chinese = Section(2, "SLURM", ["console\n$ a\n"])
    place = 'README.zh.md, section "SLURM" (On SLURM)'
    assert differences(english, chinese) == [
        f"{place} lacks the line: $ b",
        f"{place} lacks of its rows: 1.8 8.0",
        f"{place} lacks of its links: docs/x.md",
        f"{place} lacks of its code: --x",
        f"{place} has 0 list items, the English one 1",
    ]
    assert differences(english, english) == []


def test_readmes_link_to_each_other():
    for page, title, other in ((ENGLISH, "中文", CHINESE), (CHINESE, "English", ENGLISH)):
        assert f"[{title}]({other.name})" in page.read_text(encoding="utf-8").partition("```")[0]


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives the headings of a page."""
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_readmes_and_chinese_pages_resolve(page):
    links = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    assert links
    wrong = []
    for link in links:
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert wrong == []
