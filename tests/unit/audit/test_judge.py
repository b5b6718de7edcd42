"""Conditions of three values, and facts that a reader can trust: their names, sources and dates."""

import ast
import datetime
import re
from typing import Any

import pytest

from dsrun.audit import judge
from dsrun.audit.evidence import LOG_PATTERNS
from dsrun.audit.judge import FactNames, FactTruth, audit_facts, audited
from dsrun.datafiles import toml_beside

FILE = toml_beside(judge.__file__, "facts.toml")
NOTHING: dict[str, Any] = {
    **{key: {} for key in ("run", "args", "state", "config", "adapter_config", "deepspeed_json", "versions", "log")},
    "steps": (), "weights": None, "zero_adapters": None, "causes": None, "counts": lambda _: [],
}  # fmt: skip
"""Evidence of a run that left nothing."""


def truth(condition: str, **evidence: Any) -> bool | None:
    return FactNames(NOTHING | evidence).truth(condition).holds


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("fp16", None),
        ("bf16", True),
        ("not bf16", False),
        ("not fp16", None),
        ("fp16 and bf16", None),
        ("fp16 and not bf16", False),
        ("fp16 or bf16", True),
        ("fp16 or not bf16", None),
        ("fp16 and (ranks > 1 and not bf16)", False),
        ("within(trl, '>=1')", None),
    ],
)
def test_unknown_names_leave_unknown_only_what_depends_on_them(condition: str, holds: bool | None) -> None:
    assert truth(condition, args={"bf16": True}) is holds


def test_a_truth_names_what_it_is_so_by() -> None:
    names = FactNames(NOTHING | {"args": {"bf16": True, "gradient_accumulation_steps": 1}})
    assert names.truth("fp16 and ranks > 1") == FactTruth(None, ("fp16", "ranks"))
    assert names.truth("bf16 and accumulation > 1") == FactTruth(False, ("accumulation",))


@pytest.mark.parametrize("version", ["not a version", "", "5.x"])
def test_a_version_that_is_none_is_unknown(version: str) -> None:
    assert truth("within(transformers, '>=5')", versions={"transformers": version}) is None


@pytest.mark.parametrize("strange", [7, "x", [1], None, {"a": 1}, float("nan")])
def test_strange_files_end_no_audit(strange: Any) -> None:
    """Whatever values another program has written, each fact has an answer."""
    keys = (
        "zero_stage",
        "world_size",
        "batch",
        "precision",
        "specs",
        "gradient_accumulation_steps",
        "deepspeed",
        "bf16",
    )
    odd = dict.fromkeys((*keys, "model_type", "learning_rate", "optim", "packing", "label_smoothing_factor"), strange)
    step = {"loss": strange, "grad_norm": strange, "learning_rate": strange}
    evidence = {"run": odd, "args": odd, "config": odd, "deepspeed_json": odd, "steps": [step] * 12, "state": odd}
    results = audited(NOTHING | evidence)
    assert len(results) == len(audit_facts())


def test_nothing_is_affected_without_evidence() -> None:
    assert {each.status for each in audited(NOTHING)} == {"open"}


def test_conditions_use_names_that_are_there() -> None:
    known = {*FILE["names"], *FILE["terms"], *LOG_PATTERNS, "within", "overflows", "len", "min", "max"}
    conditions = [fact[key] for fact in audit_facts().values() for key in ("applies", "when", "unsure")]
    used = {
        node.id
        for condition in (*conditions, *FILE["terms"].values())
        for node in ast.walk(ast.parse(condition, mode="eval"))
        if isinstance(node, ast.Name)
    }
    assert used - known == set()
    private = {name for name in LOG_PATTERNS if name not in used}
    values = " ".join(each["value"] for each in FILE["names"].values())
    assert [name for name in private if name not in values] == []
    assert [name for name in FILE["names"] if name not in used] == []


@pytest.mark.parametrize("code", audit_facts())
def test_fact_has_date_and_source(code: str) -> None:
    fact = audit_facts()[code]
    assert datetime.date.fromisoformat(fact["date"]) <= datetime.date(2026, 11, 28)
    assert re.search(r"https://|\.py|\.json|\.toml|transformers|deepspeed|DeepSpeed|accelerate", fact["source"])
    assert fact["level"] in ("error", "warning")
    assert fact["fix"]
