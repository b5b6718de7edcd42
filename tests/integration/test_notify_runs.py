"""Runs that tell what happens to them: messages at a real server, and stderr as JSON lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.ecs import parsed
from tests.forkserver.client import HEAVY
from tests.integration.conftest import SHORT
from tests.webhook import webhook

pytestmark = pytest.mark.train

ROOT = Path(__file__).parents[2]
SECRET = "/services/hunter2"


def run(folder: Path, hook, *args: str) -> tuple[int, list[dict], set[str]]:
    """A command with --log-format json and a target in a variable: its exit code, what stderr had, and the command
    lines of its processes while it ran."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "CHAT": f"json+{hook.url}{SECRET}", "no_proxy": "127.0.0.1"}
    command, *rest = args
    words = [command, "--log-format", "json", "--notify", "env:CHAT", "--output", str(folder / "run"), *rest]
    with (folder / "err").open("wb") as err:
        child = HEAVY.popen(
            [sys.executable, "-m", "dsrun", *words],
            cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err,
        )  # fmt: skip
    seen: set[str] = set()
    while child.poll() is None:
        seen |= {" ".join(each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"])}
        time.sleep(0.05)
    lines = (folder / "err").read_text().splitlines(keepends=True)
    return child.returncode, [parsed(line) for line in lines], seen


def assert_no_secret(folder: Path, seen: set[str]) -> None:
    assert any("dsrun.notifications.follow" in line for line in seen)
    assert not [line for line in seen if "hunter2" in line]
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in files if b"hunter2" in path.read_bytes()]


def test_program_that_crashes_once_and_then_fails(tmp_path):
    """A restart and the end are told, with the cause, and what the program prints are JSON lines too."""
    text = "import os, sys\nprint('attempt', os.environ['DSRUN_ATTEMPT'])\n"
    text += "sys.exit('RuntimeError: No space left on device' if os.environ['DSRUN_ATTEMPT'] == '1' else 9)\n"
    (tmp_path / "my_train.py").write_text(text)
    with webhook() as hook:
        code, lines, seen = run(tmp_path, hook, "launch", "--max-restarts", "2", "--nproc", "1", "--", "my_train.py")
    assert code == 1
    restart, failure = hook.bodies
    assert (restart["kind"], restart["attempt"], restart["rank"], restart["exit_code"]) == ("restart", 1, 0, 9)
    assert (failure["kind"], failure["cause"]["code"], failure["exit_code"]) == ("failure", "disk_full", 1)
    assert failure["name"] == "my_train"
    assert failure["next"] == f"dsrun diagnose {tmp_path / 'run'}"
    said = [line["message"] for line in lines if line["event.action"] == "output"]
    assert {"attempt 0", "attempt 1"} <= set(said)
    assert [line["event.action"] for line in lines if line["event.dataset"] == "dsrun.events"] == [
        "start", "failing", "failure", "restart", "start", "failing", "failure",
    ]  # fmt: skip
    # The first is written before there is a folder.
    assert {line["labels.run"] for line in lines[1:]} == {str(tmp_path / "run")}
    assert_no_secret(tmp_path, seen)


def test_training_that_finishes(tiny, pairs, tmp_path):
    """Step and loss are in the message; each logged step is a metric, each event a line."""
    flags = ["--model", tiny["t5"], "--train-file", pairs["train"], *SHORT, "--max-steps", "3", "--nproc", "1"]
    with webhook() as hook:
        code, lines, seen = run(tmp_path, hook, "train", *flags)
    assert code == 0, lines
    (message,) = hook.bodies
    assert (message["kind"], message["step"], message["max_steps"]) == ("finish", 3, 3)
    steps = [line for line in lines if line["event.kind"] == "metric"]
    assert [line["dsrun.step"] for line in steps] == [1, 2, 3]
    assert message["loss"] == steps[-1]["dsrun.loss"]
    actions = [line["event.action"] for line in lines]
    assert [each for each in actions if each in ("start", "training", "end")] == ["start", "training", "end"]
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["values"]["notify"] == ["env:CHAT"]
    assert_no_secret(tmp_path, seen)
