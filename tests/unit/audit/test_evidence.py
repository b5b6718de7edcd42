"""What is read of folders and logs that nobody tidied: nested, half written, compressed, of Windows, hostile."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from dsrun.audit.evidence import evidence_of, runs_in
from dsrun.audit.judge import answers, audited
from dsrun.errors import UsageError
from tests.unit.audit.left_behind import leave_behind

LOG = """***** Running training *****
  Gradient Accumulation steps = 4
{'loss': 2.1, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.1}
{'loss': nan, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.2}
Some weights of L were not initialized from the model checkpoint and are newly initialized: ['model.a.weight']
"""


def affected(path: Path) -> list[str]:
    return [code for code, answer in answers(audited(evidence_of(path))).items() if answer == "affected"]


@pytest.mark.parametrize(
    "written",
    [
        LOG.encode(),
        gzip.compress(LOG.encode()),
        LOG.replace("\n", "\r\n").encode("utf-16"),
        b"x\n" * 3_000_000 + LOG.encode(),
    ],
    ids=["plain", "gzip", "windows", "long"],
)
def test_a_log_of_any_kind_tells_the_same(written: bytes, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(written)
    assert affected(log) == ["missing_weights", "not_finite", "nan_steps"]
    assert evidence_of(log)["log"]["log_accumulation"] == 4


@pytest.mark.parametrize("row", ["{'loss': 0.0, 'grad_norm': nan}", "{'loss': '0', 'grad_norm': 'nan', 'epoch': '1'}"])
def test_loss_of_0_that_stands_for_nan_in_a_log(row: str, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"***** Running training *****\n{row}\n{row}\n")
    assert affected(log) == ["not_finite", "nan_steps"]
    log.write_text("***** Running training *****\n{'loss': 0.0, 'grad_norm': 0.0}\n{'loss': 0.0, 'grad_norm': 0.1}\n")
    assert affected(log) == []


def test_signs_at_the_borders_of_pieces_are_found(tmp_path: Path) -> None:
    """Logs are read in pieces of megabytes, and the last value counts."""
    log = tmp_path / "train.log"
    line = "  Gradient Accumulation steps = {}\n"
    log.write_text("".join(line.format(number) + "y" * 1_000 + "\n" for number in range(9_000)) + LOG)
    assert evidence_of(log)["log"]["log_accumulation"] == 4


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\x1f\x8b\x08half", b"\x7fELF\0\0"])
def test_a_log_that_cannot_be_read(content: bytes, tmp_path: Path) -> None:
    """Named, it is an error; in a run's folder it tells nothing, and the other records do."""
    run = leave_behind(tmp_path / "run", {"state": {"log_history": [{"loss": 0.0, "grad_norm": float("nan")}]}})
    (run / "train.log").write_bytes(content)
    with pytest.raises(UsageError):
        evidence_of(run / "train.log")
    found = answers(audited(evidence_of(run)))
    assert (found["nan_steps"], found["missing_weights"]) == ("affected", "cannot tell")


def test_runs_at_several_depths_are_all_found(tmp_path: Path) -> None:
    for place in ("one", "group/two", "group/2026/three", "one/checkpoint-5"):
        leave_behind(tmp_path / place, {"state": {"global_step": 1}})
    assert [str(each.relative_to(tmp_path)) for each in runs_in(tmp_path)] == ["group/2026/three", "group/two", "one"]


@pytest.mark.parametrize(
    "case",
    [
        {"args": {"deepspeed": json.dumps({"zero_optimization": {"stage": 2}, "x": "y" * 300})}},
        {"args": {"deepspeed": "C:\\configs\\ds.json", "deepspeed_plugin": 3}},
        {"args": {"deepspeed": "a\0b"}},
        {"state": {"global_step": "x", "log_history": 7}},
        {"state": {"log_history": {"loss": 1}}, "freeze": "\0\1\2" * 100},
    ],
    ids=["inline", "windows", "zero", "state", "freeze"],
)
def test_records_that_nobody_expects(case: dict[str, Any], tmp_path: Path) -> None:
    run = leave_behind(tmp_path / "run", case)
    leave_behind(run / "checkpoint-2", {"state": {"global_step": 2}})
    (run / "train.txt").symlink_to(run / "train.txt")
    os.mkfifo(run / "requirements-2.txt")
    assert affected(run) == []
