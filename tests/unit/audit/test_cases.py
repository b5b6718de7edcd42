"""Runs that others left behind: which facts they are affected by, and what cannot be told."""

from pathlib import Path

import pytest

from dsrun.audit.evidence import evidence_of, runs_in
from dsrun.audit.judge import answers, audit_facts, audited
from dsrun.datafiles import read_toml
from tests.unit.audit.left_behind import leave_behind

DATA = Path(__file__).parents[2] / "data" / "audit"
CASES = read_toml(DATA / "cases.toml")


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    run = leave_behind(tmp_path / "run", case)
    assert runs_in(run) in ([run], [run / "train.log"])
    found = answers(audited(evidence_of(runs_in(run)[0])))
    assert [code for code, answer in found.items() if answer == "affected"] == case["affected"]
    assert {code: found[code] for code in case.get("open", ())} == dict.fromkeys(case.get("open", ()), "cannot tell")


def test_every_fact_affects_a_case() -> None:
    """Or leaves open what no record tells."""
    told = {code for case in CASES.values() for code in case["affected"]}
    untold = {code for code, fact in audit_facts().items() if fact["unsure"] == "True"}
    assert told == audit_facts().keys() - untold
    assert untold <= {code for case in CASES.values() for code in case.get("open", ())}
    assert len(audit_facts()) >= 25
    assert sum(bool(case["affected"]) for case in CASES.values()) >= 40
