"""What a run says of its model's verdict, and which flags that avoid its faults it misses."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from dsrun.certify.checks import CHECK_FACTS
from dsrun.certify.verdict import record
from dsrun.findings.finding import text_table
from dsrun.recipe.resolve import resolve
from dsrun.runs.folder import RunFolder
from dsrun.train import begin
from dsrun.train.base.plan import NOTHING, Given
from dsrun.train.begin import certify_facts
from dsrun.train.certify.runs import RUNS
from tests.unit.certify.verdicts import LLAMA, check_row, verdict


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("DSRUN_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "a model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**LLAMA, "transformers_version": "5.1"}))
    return str(folder)


def plan(model, *flags, stage=0, given=NOTHING, title="some/llama"):
    recipe = resolve([*(["--model", model] if model else []), *flags], None)
    deepspeed = {"zero_optimization": {"stage": stage}}
    precision = "bf16" if "--bf16" in flags and "--bf16 false" not in " ".join(flags) else "fp32"
    about = {"task": "causal-lm", "deepspeed": deepspeed, "precision": precision}
    return SimpleNamespace(recipe=recipe, given=given, title=title, **about)


@pytest.mark.parametrize("state", ["none", "found", "damaged"])
def test_state_of_the_verdict(model, state):
    file = record(verdict(check_row("one_loss"))) if state != "none" else None
    if state == "damaged":
        file.write_text("{")
    facts = certify_facts(plan(model))
    assert (facts["state"], facts["failed"], facts["missing"]) == (state, [], {})
    assert (f"`dsrun certify '{model}'`" in facts["sentence"]) == (state != "found")
    assert "{" not in facts["sentence"]


def test_verdict_of_the_task_that_is_trained(model):
    record(verdict(check_row("one_loss")))
    record(verdict(check_row("one_loss", "error"), task="dpo"))
    assert certify_facts(plan(model))["failed"] == []
    assert certify_facts(plan(model, "--task", "dpo", "--train-file", "p.jsonl"))["failed"] == ["one_loss"]


@pytest.mark.parametrize(
    "asked",
    [
        {"model": None, "flags": ["--model-type", "llama"]},
        {"title": "demo-llama"},
        {"given": Given(config=object())},
        {"model": "not/on-this-machine"},
        {"flags": ["--config-override", "num_hidden_layers=1"]},
        {"flags": ["--config-name", "."]},
    ],
)
def test_model_that_has_no_verdict(model, asked):
    """A type of models alone, a demo, a script's own model, one whose config is not here or changed."""
    flags = asked.pop("flags", [])
    assert certify_facts(plan(asked.pop("model", model), *flags, **asked)) is None


@pytest.mark.parametrize(
    ("avoid", "flags", "stage", "missing"),
    [
        (["--packing off"], [], 2, ["--packing off"]),
        (["--packing off"], ["--packing", "off"], 2, []),
        (["--zero 2"], [], 3, ["--zero 2"]),
        (["--zero 2"], [], 2, []),
        (["--zero 2"], [], 0, []),
        (["--gradient_checkpointing false"], [], 2, []),
        (["--gradient_checkpointing false"], ["--gradient_checkpointing"], 2, ["--gradient_checkpointing false"]),
        (["--bf16"], [], 2, ["--bf16"]),
        (["--bf16 false"], [], 2, []),
        (["--bf16 false"], ["--bf16"], 2, ["--bf16 false"]),
    ],
)
def test_flags_that_are_missing(model, avoid, flags, stage, missing):
    record(verdict(check_row("packed", "error", avoid=avoid)))
    assert certify_facts(plan(model, *flags, stage=stage))["missing"] == dict.fromkeys(missing, "packed")


@pytest.mark.parametrize(("code", "of_files"), [("stored", True), ("ids", True), ("chat", True), ("one_loss", False)])
def test_files_of_one_copy_say_nothing_of_another(model, code, of_files):
    """Which has weights, a tokenizer and a template of its own."""
    record(verdict(check_row(code, "error"), given=model))
    assert certify_facts(plan(model))["failed"] == [code]
    record(verdict(check_row(code, "error"), given=f"{model}-2"))
    facts = certify_facts(plan(model))
    assert facts["failed"] == ([] if of_files else [code])
    assert (code in facts["sentence"]) is not of_files


def test_flags_of_every_check_can_be_compared(model):
    """Those of checks and of runs are flags of `dsrun train`, each with its value."""
    flags = [facts["avoid"] for facts in (*CHECK_FACTS.values(), *RUNS.values()) if "avoid" in facts]
    assert flags
    record(verdict(check_row("packed", "error", avoid=flags)))
    words = " ".join(flags).split()
    assert certify_facts(plan(model, *words))["missing"] == {}


@pytest.mark.parametrize(
    ("asked", "flags", "stage", "narrow"),
    [
        ({"stages": (0, 2)}, [], 3, True),
        ({"stages": (0, 2)}, [], 2, False),
        ({"stages": (0, 2)}, [], 1, False),
        ({"stages": (0, 1)}, [], 1, False),
        ({"stages": (0, 3)}, [], 2, True),
        ({"stages": (2, 3)}, [], 0, True),
        ({"lora": False}, ["--lora", "8"], 2, True),
        ({"lora": False}, [], 2, False),
        ({}, ["--lora", "8"], 3, False),
    ],
)
def test_verdict_that_did_not_try_this_does_not_certify_it(model, asked, flags, stage, narrow):
    record(verdict(check_row("one_loss"), **asked))
    facts = certify_facts(plan(model, *flags, stage=stage))
    assert facts["state"] == "found"
    assert (facts["sentence"].template == text_table("certified")["narrow"]) == narrow


def said(tmp_path, facts):
    notes = []
    run = SimpleNamespace(folder=RunFolder(tmp_path), console=SimpleNamespace(notice=notes.append))
    return begin._verdict_row(run, facts), len(notes)


def test_line_stands_once_in_a_run_folder(tmp_path, monkeypatch):
    facts = {"state": "found", "sentence": "certified", "failed": ["packed"], "missing": {"--packing off": "packed"}}
    assert said(tmp_path, None) == ([], 0)
    assert said(tmp_path, facts) == ([("verdict", "certified")], 1)
    (tmp_path / "run.json").write_text(json.dumps({"certified": facts}))
    assert said(tmp_path, facts) == ([], 1)
    assert said(tmp_path, facts | {"sentence": "another", "missing": {}}) == ([("verdict", "another")], 0)
    monkeypatch.setenv("DSRUN_ATTEMPT", "1")
    assert said(tmp_path, facts) == ([], 0)
