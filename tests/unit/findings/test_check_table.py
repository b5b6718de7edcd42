"""The table of `dsrun doctor`, and the choice of checks."""

import click
import pytest

from dsrun.cli.doctor.local import all_checks, chosen
from dsrun.doctor.registry import CHECKS
from dsrun.errors import UsageError
from dsrun.findings.checks import Check, CheckResult, as_json, result_lines
from dsrun.findings.finding import Finding
from dsrun.system.terminal.display import cells


def result(code, title, *findings, needs=""):
    return CheckResult(check=Check(code, title, lambda *_: (), needs), findings=findings, seconds=0.1)


RESULTS = (
    result("net", "network", Finding(level="info", code="net", message="eth0")),
    result(
        "gpu",
        "GPU memory",
        Finding(level="info", code="gpu", message="beside"),
        Finding(level="warning", code="gpu_w", message="late", fix="wait"),
        Finding(level="error", code="gpu_e", message="full", fix="kill 7"),
    ),
    result("hub", "Hub", needs="needs a job"),
)


def lines(**options):
    return [click.unstyle(each) for each in result_lines(RESULTS, every=False, **options)]


def test_table_shows_errors_first_each_with_its_fix():
    assert lines() == [
        "PASS  network     eth0",
        "FAIL  GPU memory  full",
        "                  -> kill 7",
        "WARN              late",
        "                  -> wait",
        "",
        "1 passed, 1 failure; 1 check not needed here (--all lists them)",
    ]


def test_table_with_all_says_what_checks_need():
    shown = [click.unstyle(each) for each in result_lines(RESULTS, every=True)]
    assert "SKIP  Hub         needs a job" in shown
    assert shown[-1] == "1 passed, 1 failure; 1 check not needed here"


def test_table_wraps_words_in_a_narrow_terminal():
    text = "a message of many words that does not fit into one line of /a/path/that-stays-whole/" + 60 * "x"
    shown = [
        click.unstyle(each)
        for each in result_lines(
            [result("a", "A", Finding(level="error", code="a", message=text, fix=text))], every=False, columns=60
        )
    ]
    assert max(len(each) for each in shown if "xxx" not in each) <= 60
    assert " ".join(" ".join(shown[:-2]).split()) == f"FAIL A {text} -> {text}"


@pytest.mark.parametrize("columns", [80, 60, 40])
def test_text_goes_below_its_title_where_it_has_no_room(columns):
    text = " ".join(f"word{number}" for number in range(20))
    found = result("a", "a title of some thirty letters", Finding(level="info", code="a", message=text))
    shown = [click.unstyle(each) for each in result_lines([found, *RESULTS], every=True, columns=columns)]
    assert max(cells(line) for each in shown for line in each.split("\n")) <= columns
    assert text in " ".join(" ".join(shown).split())
    assert shown[0].endswith("letters") == (columns < 80)


def test_table_makes_control_characters_visible():
    (first, *_) = result_lines(
        [result("a", "A", Finding(level="info", code="a", message="x\x1b]0;title\x07\ny"))], every=False
    )
    assert "\x1b" not in click.unstyle(first)
    assert "\n" not in click.unstyle(first)


def test_words_of_the_table_are_translated_and_aligned(monkeypatch):
    english = [click.unstyle(each) for each in result_lines(RESULTS, every=True)]
    monkeypatch.setenv("DSRUN_LANG", "zh")
    chinese = [click.unstyle(each) for each in result_lines(RESULTS, every=True)]
    words = [row.split()[0] for row in chinese if row and not row.startswith(" ")][:-1]
    assert words == ["通过", "失败", "警告", "跳过"]
    columns = [
        {cells(row[: row.index(text)]) for row in rows for text in ("eth0", "full") if text in row}
        for rows in (english, chinese)
    ]
    assert [len(each) for each in columns] == [1, 1]


def test_json_counts_each_status():
    found = as_json(RESULTS)
    assert {name: found[name] for name in ("passed", "warned", "failed", "skipped")} == {
        "passed": 1, "warned": 0, "failed": 1, "skipped": 1,
    }  # fmt: skip
    assert [each["check"] for each in found["checks"]] == ["net", "gpu", "hub"]
    assert set(found["checks"][0]) == {"check", "title", "status", "seconds", "findings"}


def test_only_and_skip_choose_by_beginning():
    assert [each.code for each in chosen(CHECKS, ["torch", "port"], [])] == ["torch_driver", "port"]
    assert [each.code for each in chosen(CHECKS, ["torch", "port"], ["torch_d"])] == ["port"]
    assert "hub" not in [each.code for each in chosen(CHECKS, [], ["hub"])]


@pytest.mark.parametrize(
    ("only", "skip", "said"),
    [
        (["ports"], [], r"--only ports: there is no such check \(did you mean port\?\)"),
        ([], ["nonsense_"], r"--skip nonsense_: there is no such check \(known: "),
        ([""], [], "--only : there is no such check"),
        (["hub"], ["hub"], "--only and --skip leave no check"),
    ],
)
def test_choice_of_checks_that_is_refused(only, skip, said):
    with pytest.raises(UsageError, match=said):
        chosen(CHECKS, only, skip)


def test_requirements_are_checked_first_where_given():
    assert all_checks(None, None) == CHECKS
    assert all_checks(8, None)[0].code == all_checks(None, 40.0)[0].code == "requirements"


def test_check_that_cannot_tell_is_open():
    """Neither passed nor warned, in the table, its totals and the JSON."""
    results = [result("gap", "a gap", Finding(level="info", code="gap_open", message="look there"))]
    shown = [click.unstyle(each) for each in result_lines(results, every=False)]
    assert shown == ["OPEN  a gap  look there", "", "0 passed, 1 cannot be told"]
    assert as_json(results)["checks"][0]["status"] == "open"
    assert as_json(results)["passed"] == 0
