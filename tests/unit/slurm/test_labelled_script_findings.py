"""What `dsrun check-slurm` finds in labelled scripts: the one fault at its line, and nothing in those without."""

from __future__ import annotations

import subprocess

import pytest

from dsrun.slurm.lint.script_check import check_script
from tests.script_corpus import BROKEN, HEALTHY, LabelledScript


def findings(text: str) -> list[tuple[str, int, str]]:
    """Code, line and level of each."""
    return [
        (each.code.removeprefix("script_"), int(each.where.rpartition(":")[2]), str(each.level))
        for each in check_script(text, "job.sh")
    ]


def lines_of(script: LabelledScript) -> set[int]:
    """Those that may be named: for what bash cannot read, also the line at which it gives up."""
    lines = {script.line, *script.or_lines}
    if script.code == "shell_syntax":
        lines |= set(range(script.line, script.text.count("\n") + 2))
    return lines


@pytest.mark.parametrize("script", BROKEN, ids=lambda script: script.name)
def test_fault_is_found_at_its_line_and_no_other_error(script):
    found = findings(script.text)
    assert {line for code, line, _ in found if code == script.code} & lines_of(script)
    assert [each for each in found if each[0] != script.code and each[2] == "error"] == []


@pytest.mark.parametrize("script", HEALTHY, ids=lambda script: script.name)
def test_healthy_script_has_no_finding(script):
    assert [each for each in findings(script.text) if each[2] in ("error", "warning")] == []


@pytest.mark.parametrize("script", BROKEN, ids=lambda script: script.name)
def test_mended_script_has_no_error(script):
    assert [each for each in findings(script.mended_text) if each[2] == "error" or each[0] == script.code] == []


@pytest.mark.parametrize("script", [*HEALTHY, *BROKEN], ids=lambda script: script.name)
def test_bash_can_read_all_but_what_is_labelled_so(script):
    for text in (script.text, script.mended_text):
        done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
        assert (done.returncode == 0) == (script.code != "shell_syntax" or text == script.mended_text)


@pytest.mark.parametrize("name", ["key-of-the-tracker", "token-at-login"])
def test_finding_of_a_secret_does_not_tell_it(name):
    [script] = [script for script in BROKEN if script.name == name]
    said = str(check_script(script.text, "job.sh"))
    assert "NotAReal" not in said
    assert "0123456789abcdef" not in said
