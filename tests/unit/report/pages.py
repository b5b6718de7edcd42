"""A report's page as its reader has it, for the tests of reports."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from dsrun.monitoring.comparison import labels
from dsrun.report.data import read_run
from dsrun.report.page import MARKER, ReportPage, render_page, report_of

VOID = {"meta", "input", "br", "link", "img", "hr"}


class Page(HTMLParser):
    """The elements, attributes and text of a page; `unbalanced` are tags that do not match."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.unbalanced: list[str] = []
        self.texts: list[str] = []
        self.script = ""
        self.feed(html)
        self.close()
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"] and data.lstrip().startswith("["):
            self.script += data
        elif not {"script", "style"} & set(self.open):
            self.texts.append(data)

    def tags(self) -> set[str]:
        return {tag for tag, _ in self.elements}

    def ids(self) -> list[str]:
        return [attrs["id"] or "" for _, attrs in self.elements if "id" in attrs]


def report_on(*folders: Path) -> ReportPage:
    return report_of([read_run(path, name) for path, name in zip(folders, labels(folders), strict=True)])


def page_of(*folders: Path) -> Page:
    """The page about these runs, which is well formed and loads nothing."""
    html = render_page(report_on(*folders))
    page = Page(html)
    assert (page.unbalanced, page.open) == ([], [])
    assert len(page.ids()) == len(set(page.ids()))
    assert MARKER in html[:2048]
    loading = {"src", "srcset", "data", "poster", "background", "action", "xlink:href"}
    assert not [attrs for _, attrs in page.elements if loading & set(attrs)]
    assert not page.tags() & {"link", "img", "iframe", "object", "embed", "base", "form"}
    assert {attrs["href"][:1] for _, attrs in page.elements if attrs.get("href")} <= {"#"}
    assert not re.search(r"@import|url\(|https?://(?!www\.w3\.org/2000/svg)", html)
    return page
