"""A training names the verdict of `dsrun certify` on its model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsrun.certify.verdict import record, recorded
from tests.integration.conftest import dsrun
from tests.unit.certify.verdicts import check_row, verdict

pytestmark = pytest.mark.train


def test_training_names_the_verdict_once(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("DSRUN_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "d.jsonl"
    data.write_text('{"text": "w1 w2 w3"}\n' * 4)

    def train(steps):
        flags = ["--train-file", data, "--max-steps", steps, "--save-steps", 1, "--use-cpu"]
        flags += ["--validation-split-percentage", 0]
        done = dsrun("--model", tiny["llama"], *flags, output=tmp_path / "run")
        assert done.code == 0, done.err
        facts = json.loads((tmp_path / "run" / "run.json").read_bytes())["certified"]
        return done.err, facts["state"], facts["missing"]

    line = f"verdict    not certified: `dsrun certify {tiny['llama']}`"
    err, *facts = train(1)
    assert line in err
    assert facts == ["none", {}]
    err, *_ = train(2)
    assert "verdict" not in err
    config = json.loads((Path(tiny["llama"]) / "config.json").read_bytes())
    record(verdict(check_row("packed", "error", avoid=["--packing off"]), config=config))
    assert recorded(config, "causal-lm")[0] == "found"
    err, *facts = train(3)
    assert "verdict    train with --packing off" in err
    assert "packed [certified] (train with --packing off)" in err
    assert facts == ["found", {"--packing off": "packed"}]
