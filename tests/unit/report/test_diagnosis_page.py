"""The page of `dsrun diagnose -o`: well formed, escaped, offline, with a timeline of ranks."""

import re

from dsrun.diagnosis.candidates import LogLine
from dsrun.diagnosis.diagnose import RunVerdict, of_logs
from dsrun.report.diagnosis_page import failure_timeline, render_diagnosis
from tests.unit.report.pages import Page

OOM = "[rank{}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"


def page_of(**verdicts: RunVerdict) -> Page:
    """The page, which is well formed and loads nothing."""
    html = render_diagnosis(verdicts)
    page = Page(html)
    assert (page.unbalanced, page.open) == ([], [])
    assert len(page.ids()) == len(set(page.ids()))
    assert not page.tags() & {"link", "img", "iframe", "object", "embed", "base", "form", "script"}
    links = {attrs["href"] or "" for tag, attrs in page.elements if tag == "a"}
    assert links <= {f"#{name}" for name in page.ids()}
    assert not re.search(r"@import|url\(|https?:|src=", html)
    assert html.startswith("<!DOCTYPE html>")
    assert '<meta charset="utf-8">' in html
    assert "prefers-color-scheme: dark" in html
    return page


def verdict_on(text: str, **others: str) -> RunVerdict:
    return of_logs({name: content.encode() for name, content in {"a.log": text, **others}.items()})


def marks(page: Page) -> list[str]:
    """The classes of the timeline's marks."""
    large = [attrs for tag, attrs in page.elements if tag == "circle" and attrs.get("r") == "6"]
    return [attrs["class"] or "" for attrs in large if "cy" in attrs and attrs["cx"] != "6"]


def test_page_has_sections_of_verdict_timeline_candidates_and_logs() -> None:
    page = page_of(one=verdict_on(OOM.format(1) + "[rank0]: RuntimeError: Connection closed by peer [1.2.3.4]:5\n"))
    assert {"verdict-1", "timeline-1", "candidates-1", "findings-1", "logs-1", "candidate-1-1"} <= set(page.ids())
    assert "excerpt-1" in page.ids()
    assert "cuda_oom" in page.text
    assert "rank 1" in page.text


def test_timeline_is_by_line_where_lines_have_no_time() -> None:
    """It says so, and marks the first failure."""
    verdict = verdict_on("start\n" + OOM.format(2) + "[rank0]: KeyError: 'x'\n" + "x\n")
    found = failure_timeline(verdict)
    assert found.ticks == []
    assert [(rank, marks[0][1]) for rank, _, marks in found.rows] == [(2, 0.5), (0, 0.75)]
    page = page_of(one=verdict)
    assert "first failure: line 2" in page.text
    assert "rank 0 rank 2" in page.text  # the labels of the rows
    assert "ring" in {attrs.get("class") for _, attrs in page.elements}
    assert sorted(marks(page)) == ["w-root", "w-unknown", "w-unknown out"]


def test_timeline_is_by_time_where_all_lines_have_one() -> None:
    late = "2026-11-21 12:14:10,000 ERROR x\n" + OOM.format(1)
    early = "2026-11-21 12:14:00,000 ERROR x\nOSError: [Errno 28] No space left on device\n"
    verdict = verdict_on(late, **{"b.log": early})
    found = failure_timeline(verdict)
    rows = {(rank, log): {mark[1] for mark in each} for rank, log, each in found.rows}
    assert rows == {(-1, "b.log"): {0.0}, (1, ""): {1.0}}
    assert [text for _, text in found.ticks] == ["0", "2 s", "4 s", "6 s", "8 s", "10 s"]
    assert "2026-11-21 12:14:00 on" in page_of(one=verdict).text


def test_log_that_tells_of_nothing_has_a_row() -> None:
    """The rank that the others wait for may be the silent one."""
    verdict = verdict_on(OOM.format(1), **{"rank_2.log": "start\n"})
    assert [row[:2] for row in failure_timeline(verdict).rows] == [(1, ""), (-1, "rank_2.log")]
    assert "rank_2.log rank 1" in page_of(one=verdict).text


def test_timeline_of_very_many_ranks_is_cut() -> None:
    """The page shows the ranks that count most, and says how many it leaves to the table."""
    logs = {f"r{rank}.log": OOM.format(rank) for rank in range(1, 70)}
    page = page_of(one=verdict_on(OOM.format(0), **logs))
    assert "6 more ranks or logs" in page.text
    assert len(marks(page)) == 128  # of each rank one that counts, and one that does not


def test_text_of_a_log_is_escaped() -> None:
    text = "KeyError: '<script>alert(1)</script> & \"x\"'\n"
    html = render_diagnosis({"<b>": verdict_on(text)})
    assert "<script" not in html
    assert "<b>" not in html.replace("<b>+", "")
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; " in html
    page = page_of(one=verdict_on(text))
    assert "<script>alert(1)</script>" in page.text


def test_page_of_several_jobs_has_a_section_each() -> None:
    page = page_of(first=verdict_on(OOM.format(0)), second=verdict_on("{'train_runtime': 12.0}\n"))
    assert {"job-1", "job-2", "verdict-1", "verdict-2", "timeline-1"} <= set(page.ids())
    assert "timeline-2" not in page.ids()


def test_page_shows_excerpt_with_line_numbers() -> None:
    verdict = verdict_on("x\n" + OOM.format(0))
    lines = (LogLine("a.log", 1, "x <y>"), LogLine("a.log", 2, OOM.format(0)))
    page = page_of(one=RunVerdict(**{**vars(verdict), "excerpt": lines}))
    assert "excerpt-1" in page.ids()
    assert "1 x <y>" in page.text
    hits = [attrs for tag, attrs in page.elements if tag == "li" and attrs.get("class") == "hit"]
    assert len(hits) == 1
