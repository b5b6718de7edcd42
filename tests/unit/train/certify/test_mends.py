"""Each failing row of certify names what mends it, or says that nothing is known."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dsrun.certify.request import CertifyRequest
from dsrun.findings.finding import finding_of, text_of
from dsrun.train.certify import certify
from dsrun.train.certify.look import CHECKS
from dsrun.train.certify.subject import SmallRun

BY_CODE = {check.code: check for check in CHECKS}


@pytest.mark.parametrize(
    ("code", "found", "fix"),
    [
        ("stages", finding_of("run_failed", prefix="stages_", where="zero3", run="r", error="e"), "--zero 2"),
        ("packed", finding_of("run_failed", prefix="packed_", run="r", error="e"), "--packing off"),
        ("final", finding_of("final.missing", where="zero3", number=1, first="x"), "--zero 2"),
        ("final", finding_of("final.missing", where="reference", number=1, first="x"), text_of("certified.unknown")),
        ("causal", finding_of("causal_later", name="x", percent=1), finding_of("causal_later").fix),
        ("causal", finding_of("causal", name="x", percent=0), ""),
        ("causal", BY_CODE["causal"].broken("hangs", seconds=60), text_of("certified.longer", seconds="180")),
    ],
)
def test_row_has_its_mend(code, found, fix):
    assert certify._with_mend(BY_CODE[code], found, CertifyRequest(model="m", limit_s=60)).fix == fix


def test_error_of_a_run_stands_once_and_other_checks_cannot_tell(tmp_path):
    run = SmallRun("lora", "LoRA", tmp_path, error="no such layer")
    subject = SimpleNamespace(runs={"lora": run}, request=CertifyRequest(model="m"), small=tmp_path)
    blamed = set()
    found = [certify._result(BY_CODE[code], subject, blamed, tmp_path / "log") for code in ("resumed", "adapter")]
    assert [each.status for each in found] == ["fail", "open"]
