"""`dsrun certify` around its program, which is replaced: what is asked, printed, kept and written."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from unittest.mock import Mock

import click
import pytest
from click.testing import CliRunner

from dsrun.certify.checks import CHECK_FACTS
from dsrun.certify.verdict import recorded
from dsrun.cli.certify import run as certify
from dsrun.cli.options import declared_in
from dsrun.errors import DsrunError, MissingError, ToolError, UsageError
from tests.unit.certify.verdicts import LLAMA, answer, check_row
from tests.unit.report.pages import Page

command = declared_in("certify/command.toml")

HOSTILE = "</script><img src=x onerror=alert(2)>\"'"
PROGRAM = """
import json, os, sys, time
print("training", file=sys.stderr)
{body}
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DSRUN_CACHE", str(tmp_path / "cache"))
    for name in ("PYTHONPATH", "DS_ACCELERATOR", "CUDA_VISIBLE_DEVICES", "PATH"):  # which the command changes
        monkeypatch.setenv(name, os.environ.get(name, ""))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return str(folder)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str):
    """Have a program of this body started instead."""

    def write(body: str) -> None:
        (tmp_path / "certify_stand_in.py").write_text(PROGRAM.format(body=body))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(certify, "PROGRAM", "certify_stand_in")

    return write


def answers(*rows: dict) -> str:
    return f"print(json.dumps({answer(*rows)!r} | {{'device': sys.argv[1]}}))"


def call(*args: str):
    done = CliRunner().invoke(command, args, standalone_mode=False)
    if done.exception:
        raise done.exception
    return done


def test_verdict_is_printed_and_kept(program, model, capfd):
    program(answers(check_row("one_loss"), check_row("tied", "")))
    done = call(model, "--zero", "3,0", "--no-lora", "--limit", "7")
    assert done.return_value == 0
    row, _, total, last = done.output.splitlines()
    assert row.startswith("PASS  ")
    assert "1 passed" in total
    assert last.startswith("certified with transformers ")
    assert capfd.readouterr().err == "training\n"
    state, verdict = recorded(LLAMA, "causal-lm")
    assert state == "found"
    asked = json.loads(verdict.about["device"])
    assert (asked["model"], asked["stages"], asked["lora"], asked["limit_s"]) == (model, [0, 3], False, 7)
    assert verdict.about["model"] == model


@pytest.mark.parametrize("way", ["{folder}", "{folder}/config.json", "./model"])
def test_files_are_those_of_the_folder_however_it_is_named(program, model, monkeypatch, way):
    monkeypatch.chdir(Path(model).parent)
    program(answers(check_row("chat", "error")))
    given = way.format(folder=model)
    found = json.loads(call(given, "--format", "json").output)
    assert (found["model"], found["folder"]) == (given, model)


def test_failure_gives_exit_code_3_and_its_flags(program, model):
    program(answers(check_row("packed", "error", avoid=("--packing off", "--zero 2"))))
    done = call(model)
    assert done.return_value == 3
    assert done.output.splitlines()[-1].startswith("train with --packing off --zero 2")
    assert call(model, "--format", "json").return_value == 3


def test_json_is_one_object_of_version_1(program, model):
    program(answers(check_row("one_loss"), check_row("half", "warning")))
    found = json.loads(call(model, "--format", "json").output)
    assert found["version"] == 1
    assert (found["passed"], found["warned"], found["failed"], found["skipped"]) == (1, 1, 0, 0)
    assert found["avoid"] == []


def test_every_check_is_listed_with_all(program, model):
    program(answers(check_row("one_loss"), check_row("tied", "")))
    assert "SKIP" not in call(model).output
    assert "SKIP" in call(model, "--all").output


@pytest.mark.parametrize("code", [1, 2, 4])
def test_what_the_program_refuses_is_its_exit_code(program, model, code):
    program(f"sys.exit({code})")
    assert call(model).return_value == code
    assert recorded(LLAMA, "causal-lm")[0] == "none"


@pytest.mark.parametrize("body", ["", "sys.exit(7)", "os.kill(os.getpid(), 9)", "print('no JSON')", "print('[3]')"])
def test_program_without_a_verdict_is_an_error(program, model, body):
    program(body)
    with pytest.raises(ToolError):
        call(model)


def test_lists_may_have_spaces(program, model):
    program(answers(check_row("tied")))
    found = json.loads(call(model, "--zero", " 3, 0", "--only", "tied, loaded", "--format", "json").output)
    asked = json.loads(found["device"])
    assert (asked["stages"], asked["only"]) == ([0, 3], ["tied", "loaded"])


@pytest.mark.parametrize("debug", [False, True])
def test_debug_shows_the_logs_that_are_removed(program, model, monkeypatch, capsys, debug):
    monkeypatch.setattr(sys, "argv", ["dsrun", "certify", *["--debug"] * debug])
    program("open(sys.argv[2] + '/certify.log', 'w').write('Traceback of a rank'); sys.exit(1)")
    assert ("Traceback of a rank" in call(model).stderr) is debug


def test_program_that_hangs_is_ended(program, model, monkeypatch):
    monkeypatch.setattr(certify, "_MOST_STEPS", 1)
    program("time.sleep(600)")
    with pytest.raises(ToolError):
        call(model, "--limit", "1")


def test_program_on_the_cpu_sees_no_gpu(program, model):
    program("print(json.dumps(" + repr(answer()) + " | {'device': os.environ['DS_ACCELERATOR']}))")
    assert json.loads(call(model, "--format", "json", "--gpus", "0").output)["device"] == "cpu"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_verdict_that_cannot_be_kept_is_shown(program, model, tmp_path):
    (tmp_path / "cache").write_text("a file")
    program(answers(check_row("one_loss")))
    done = call(model)
    assert (done.return_value, done.stderr[:6]) == (0, "note: ")
    assert done.stdout.startswith("PASS")


@pytest.mark.parametrize(
    ("args", "kind"),
    [
        (["--zero", "4"], UsageError),
        (["--zero", ""], UsageError),
        (["--zero", "0,,2"], UsageError),
        (["--only", "tied,"], UsageError),
        (["--limit", "nan"], click.BadParameter),
        (["--limit", "inf"], click.BadParameter),
        (["--gpus", "1000"], MissingError),
        (["-o", "/nowhere/page.html"], UsageError),
    ],
)
def test_wrong_options_are_refused_before_any_work(model, monkeypatch, args, kind):
    monkeypatch.setattr(certify, "run_foreground", pytest.fail)
    with pytest.raises(kind):
        call(model, *args)


@pytest.mark.parametrize("name", ["llama", "no/such-model", "./nowhere"])
def test_model_must_have_a_config(name, model, monkeypatch):
    """Also a type of models alone is none."""
    monkeypatch.setattr(certify, "run_foreground", pytest.fail)
    with pytest.raises(DsrunError):
        call(name)


def test_demo_is_a_model(program, model):
    program(answers(check_row("one_loss")))
    found = json.loads(call("demo-t5", "--format", "json").output)
    assert (found["model"], found["model_type"]) == ("demo-t5", "t5")


def test_page_has_the_whole_verdict(program, model, tmp_path, monkeypatch):
    facts = {"title": "one", "finds": "a loss that differs", "field": "in <the> field", "avoid": "--packing off"}
    monkeypatch.setitem(CHECK_FACTS, "one_loss", facts)
    rows = [
        check_row("one_loss"),
        check_row("broken", "error", HOSTILE, avoid=("--zero 2",)),
        check_row("fatal", "error"),
        check_row("half", "warning"),
        check_row("tied", ""),
    ]
    program(answers(*rows))
    file = tmp_path / "page.html"
    assert call(model, "-o", str(file)).return_value == 3
    html = file.read_text(encoding="utf-8")
    page = Page(html)
    assert (page.unbalanced, page.open) == ([], [])
    assert len(page.ids()) == len(set(page.ids()))
    assert not page.tags() & {"link", "img", "script", "iframe", "object", "form"}
    assert "http" not in html.replace("http-equiv", "")
    assert {attrs["href"] for _, attrs in page.elements if attrs.get("href")} <= {f"#{each}" for each in page.ids()}
    for row in rows:
        assert row["title"] in page.text
        assert {f"check-{row['check']}", f"field-{row['check']}"} <= {*page.ids()}
    for text in (
        HOSTILE,
        "a loss that differs",
        "in <the> field Avoided by --packing off",
        "avoided by --zero 2",
        "✕ not certified",
        "largest difference 3e-7",
        "a fix",
    ):
        assert text in page.text
    with pytest.raises(UsageError):
        call(model, "-o", str(file))
    assert call(model, "-o", str(file), "--force").return_value == 3


@pytest.mark.parametrize(("avoid", "pill"), [((), "✕ not certified"), (("--zero 2",), "! with flags")])
def test_page_tells_what_flags_avoid(program, model, tmp_path, avoid, pill):
    program(answers(check_row("broken", "error", avoid=avoid)))
    call(model, "-o", str(tmp_path / "page.html"))
    assert pill in Page((tmp_path / "page.html").read_text(encoding="utf-8")).text


@pytest.mark.parametrize(("level", "pill"), [("info", "✓ passes"), ("error", "✕ fails")])
def test_page_of_some_checks_certifies_nothing(program, model, tmp_path, level, pill):
    program(answers(check_row("one_loss", level)))
    call(model, "--only", "one_loss", "-o", str(tmp_path / "page.html"))
    text = Page((tmp_path / "page.html").read_text(encoding="utf-8")).text
    assert pill in text
    assert "ertified with" not in text


def test_page_that_cannot_be_written_loses_no_results(program, model, tmp_path, monkeypatch):
    program(answers(check_row("one_loss")))
    monkeypatch.setattr(certify, "write_file", Mock(side_effect=UsageError("no space")))
    done = CliRunner().invoke(command, [model, "--format", "json", "-o", str(tmp_path / "page.html")])
    assert json.loads(done.stdout)["passed"] == 1
    assert isinstance(done.exception, UsageError)
