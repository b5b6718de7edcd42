"""docs/tutorial.md: its commands on one machine in turn, on a training that is told to stop and resumed."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsrun.runs.records import read_records
from tests.forkserver.client import HEAVY
from tools.pictures.job import TRAIN

pytestmark = pytest.mark.train

ROOT = Path(__file__).parents[2]
# A sixth of the steps.
SHORTER = ["--max_steps", "40"]
LIMIT_S = 300
CODES = {"diagnose": 3}


def commands() -> list[list[str]]:
    """The words behind the prompts of the page, up to the cluster."""
    page = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8").partition("\n## 9. ")[0]
    blocks = re.findall(r"^```console\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [shlex.split(line[2:]) for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def run(*words: str, folder: Path, code: int = 0) -> str:
    done = HEAVY.run(
        [sys.executable, *words], cwd=folder, text=True, stdin=subprocess.DEVNULL, capture_output=True,
    )  # fmt: skip
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stderr}"
    return done.stdout


def begun(words: list[str], folder: Path) -> "subprocess.Popen[str]":
    """The training after its fifth step."""
    argv = [sys.executable, "-m", "dsrun", *words, *SHORTER]
    training = HEAVY.popen(argv, cwd=folder, stdin=subprocess.DEVNULL)
    ledger, deadline = folder / "runs/numbers/metrics.jsonl", time.monotonic() + LIMIT_S
    while not ledger.exists() or max((row.get("step", 0) for row in read_records(ledger)), default=0) < 5:
        assert training.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return training


def test_tutorial_commands_on_one_machine(tmp_path):
    training = None
    trained = 0
    for program, *words in commands():
        if program == "python":
            run(str(ROOT / words[0]), folder=tmp_path)
        elif program == "pkill":
            training.send_signal(signal.SIGTERM)
            assert training.wait(LIMIT_S) == 75
        elif program == "dsrun" and words[0] == "train" and "--dry-run" not in words:
            trained += 1
            if trained == 1:
                training = begun(words, tmp_path)
            else:
                run("-m", "dsrun", *words, *SHORTER, folder=tmp_path, code=1 if "1e8" in words else 0)
        elif program == "dsrun":
            once = ["--once"] if words[0] == "monitor" else []
            run("-m", "dsrun", *words, *once, folder=tmp_path, code=CODES.get(words[0], 0))
    assert trained == 3
    events = [row["kind"] for row in read_records(tmp_path / "runs/numbers/events.jsonl")]
    assert {"signal", "resume"} <= set(events)
    assert max(row["step"] for row in read_records(tmp_path / "runs/numbers/metrics.jsonl")) == 40
    assert json.loads((tmp_path / "numbers-model/config.json").read_text())["model_type"] == "t5"
    assert (tmp_path / "plots/loss.png").exists()
    assert (tmp_path / "runs/numbers/report.html").exists()


def test_pictures_are_of_the_tutorials_training():
    assert [["dsrun", *TRAIN]] * 2 == [words for words in commands() if "--eval_strategy" in words]
