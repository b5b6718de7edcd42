"""Verdicts of certify: what they come to, and how they are kept and found again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsrun.certify import verdict as verdicts
from dsrun.certify.verdict import config_hash, from_dict, record, recorded
from dsrun.datafiles import toml_beside
from tests.unit.certify.verdicts import LLAMA, check_row, verdict

AVOID = ("--packing off", "--zero 2")


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DSRUN_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    "other",
    [
        {"transformers_version": "4.1", "dtype": "bfloat16", "torch_dtype": "float16", "use_cache": False},
        {"_name_or_path": "me/mine", "id2label": {"0": "x"}},
        {"rope_parameters": {"rope_theta": 1e4, "dtype": "float32"}},
    ],
)
def test_what_does_not_make_the_model_does_not_count(other):
    assert config_hash({**LLAMA, **other}) == config_hash(dict(reversed(LLAMA.items())))


@pytest.mark.parametrize(
    "other", [{"hidden_size": 65}, {"model_type": "llama2"}, {"rope_parameters": {"rope_theta": 2e4}}, {"new": None}]
)
def test_what_makes_the_model_counts(other):
    assert config_hash({**LLAMA, **other}) != config_hash(LLAMA)


def broken_row(code, how):
    """Of a check that came to no result."""
    row = check_row(code, "warning")
    return row | {"findings": [row["findings"][0] | {"code": f"{code}_{how}"}]}


@pytest.mark.parametrize(
    ("rows", "asked", "kind", "avoid"),
    [
        ([check_row("one_loss"), check_row("tied", "")], {}, "yes", ()),
        ([check_row("half", "warning")], {}, "yes", ()),
        ([check_row("one_loss")], {"quick": True}, "quick", ()),
        ([check_row("packed", "error", avoid=AVOID), check_row("one_loss")], {}, "avoid", AVOID),
        ([check_row("packed", "error", avoid=AVOID), check_row("ids", "error")], {}, "fails", AVOID),
        ([check_row("unknown_to_this_version", "error")], {}, "fails", ()),
        ([check_row("one_loss"), broken_row("chat", "hangs")], {}, "partly", ()),
        ([check_row("one_loss"), broken_row("chat", "crashed")], {"quick": True}, "partly", ()),
        ([check_row("packed", "error", avoid=AVOID), broken_row("chat", "crashed")], {}, "avoid", AVOID),
        ([check_row("ids", "error"), broken_row("chat", "crashed")], {}, "fails", ()),
    ],
)
def test_what_a_verdict_comes_to(rows, asked, kind, avoid):
    made = verdict(*rows, **asked)
    assert made.sentence.template == toml_beside(str(TEXTS))["certified"][kind]
    assert made.avoid == avoid
    assert "{" not in made.sentence


def test_flag_that_avoids_one_error_of_two_is_not_enough():
    row = check_row("final", "error", avoid=["--zero 2"])
    row["findings"] *= 2
    made = verdict(row)
    assert (made.remaining, made.avoid) == (["final"], ("--zero 2",))
    row["avoid"] *= 2
    assert verdict(row).remaining == []


def test_verdict_is_the_same_after_json():
    made = verdict(check_row("packed", "error", avoid=AVOID), check_row("tied", ""), stages=(2, 3), lora=False)
    again = from_dict(json.loads(json.dumps(made.as_dict())))
    assert again.as_dict() == made.as_dict()
    assert set(made.about) == set(verdicts.FACTS["keys"])


def test_recorded_verdict_is_found_by_its_config_alone(tmp_path):
    assert recorded(LLAMA, "causal-lm") == ("none", None)
    file = record(verdict(check_row("one_loss")))
    assert file.is_relative_to(tmp_path / "cache" / "certify")
    state, found = recorded({**LLAMA, "transformers_version": "5.0"}, "causal-lm")
    assert (state, found.about["model"]) == ("found", "some/llama")
    assert recorded({**LLAMA, "hidden_size": 65}, "causal-lm")[0] == "none"
    assert [each.name for each in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize("name", verdicts.FACTS["packages"])
def test_verdict_of_other_versions_is_told_apart(monkeypatch, name):
    """Each of the packages counts, and the newest of the others is told."""
    record(verdict(check_row("one_loss")))
    installed = verdicts.versions(verdicts.FACTS["packages"])
    monkeypatch.setattr(verdicts, "versions", lambda _: {**installed, name: "99.1"})
    state, found = recorded(LLAMA, "causal-lm")
    assert (state, found.about["versions"]) == ("other", installed)


def test_verdict_of_another_task_and_of_quick_come_last():
    record(verdict(check_row("one_loss"), task="dpo"))
    assert recorded(LLAMA, "causal-lm")[1].about["task"] == "dpo"
    record(verdict(check_row("one_loss")))
    record(verdict(check_row("one_loss"), quick=True))
    about = recorded(LLAMA, "causal-lm")[1].about
    assert (about["task"], about["quick"]) == ("causal-lm", False)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"checks": 3}', b"null"])
def test_damaged_verdict_is_told_and_replaced(content):
    file = record(verdict(check_row("one_loss")))
    file.write_bytes(content)
    assert recorded(LLAMA, "causal-lm") == ("damaged", None)
    record(verdict(check_row("one_loss")))
    assert recorded(LLAMA, "causal-lm")[0] == "found"


@pytest.mark.parametrize("key", verdicts.FACTS["keys"])
def test_verdict_without_a_key_is_damaged(key):
    file = record(verdict(check_row("one_loss")))
    file.write_text(json.dumps({name: value for name, value in json.loads(file.read_bytes()).items() if name != key}))
    assert recorded(LLAMA, "causal-lm")[0] == "damaged"


TEXTS = Path(verdicts.__file__).parents[1] / "findings" / "text" / "certify_verdict"
