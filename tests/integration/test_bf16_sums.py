"""The error of gradients summed in bf16, as dsrun.zero.generate.presets states it, on real engines."""

from __future__ import annotations

import json

import pytest

from dsrun.zero.generate.presets import SUM_ERRORS
from tests.forkserver.ranks import Ranks

pytestmark = [pytest.mark.train, pytest.mark.exhaustive]


def test_stated_error_of_bf16_sums_is_measured(tmp_path):
    """At each stage and offload where dsrun sums in fp32 instead; the longest sum at one of them."""
    places = ((2, False), (3, False), (3, True))
    cases = [
        (*place, steps) for place in places for steps in SUM_ERRORS if steps < max(SUM_ERRORS) or place == places[0]
    ]
    (tmp_path / "cases").write_text(json.dumps(cases))
    args = [tmp_path / "cases", tmp_path / "out"]
    Ranks(tmp_path / "logs", "tests.integration.bf16_sums", args, count=2).wait()
    errors = json.loads((tmp_path / "out-0").read_text())
    stated = [float(SUM_ERRORS[steps].rstrip("%")) / 100 for *_, steps in cases]
    assert errors == pytest.approx(stated, rel=0.1)
