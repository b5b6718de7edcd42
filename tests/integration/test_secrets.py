"""Access tokens given on the command line stay out of every file, stream and other process's command line of a run."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dsrun.system.net import free_port, port_is_free
from tests.forkserver.client import HEAVY
from tests.integration.conftest import SHORT

pytestmark = [pytest.mark.train, pytest.mark.exhaustive]

ROOT = Path(__file__).parents[2]
CANARIES = ("hf_canaryCANARY0123456789", "sesame-1234", "comet-5678")


def test_tokens_stay_out_of_files_streams_and_command_lines(tiny, pairs, tmp_path, tmp_path_factory):
    """Two nodes over ssh train with both tokens and a key in DeepSpeed's JSON: only what the user wrote has them."""
    config = tmp_path_factory.mktemp("config") / "ds.json"
    config.write_text(json.dumps({
        "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
        "zero_optimization": {"stage": 2}, "comet": {"enabled": False, "api_key": CANARIES[2]},
    }))  # fmt: skip
    (tmp_path / "hosts").write_text("alpha slots=1\nbeta slots=1\n")
    while not port_is_free((port := free_port()) + 1):
        pass
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{ROOT / 'tests' / 'fakes'}:{os.environ['PATH']}"}
    with (tmp_path / "output").open("wb") as output:
        child = HEAVY.popen(
            [sys.executable, "-m", "dsrun", "launch", "--hostfile", "hosts", "--master-addr", "127.0.0.1",
             "--master-port", str(port), "--output", str(tmp_path / "run"), "--", "dsrun", "train",
             "--model", tiny["t5"], "--train-file", pairs["train"], "--max-steps", "2", *SHORT,
             "--deepspeed", str(config), "--token", CANARIES[0], f"--hub_token={CANARIES[1]}"],
            cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    seen = set()
    while child.poll() is None:
        seen |= _command_lines()
        time.sleep(0.05)
    said = (tmp_path / "output").read_text(errors="replace")
    assert child.returncode == 0, said
    assert any("ssh" in line and "alpha" in line for line in seen)
    assert (tmp_path / "run" / "model").is_dir()
    files = [path.read_bytes().decode(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    for canary in CANARIES:
        assert not [line for line in seen if canary in line]
        assert not [text for text in files if canary in text]


def _command_lines() -> set[str]:
    """The command lines of what works for the run, but for the command that the user typed, and its forks before they
    become something else."""
    lines = {" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])}
    return {line for line in lines if ("dsrun" in line or "ssh" in line) and "--hostfile hosts" not in line}
