"""What commands print on a terminal fits it; elsewhere an item is a line."""

from __future__ import annotations

import json
import re

import pytest

from dsrun.system.terminal.display import cells

CHECKED = {"zero_optimization": {"stage": 5, "foo": 1}, "train_batch_size": 7, "gradient_accumulation_steps": 2}
COMMANDS = {
    "plan": ("plan", "--model", "./llama", "--count", "shapes", "--gpus", "a100-80:8"),
    "config check": ("config", "check", "ds.json"),
    "explain": ("train", "--explain", "--model", "demo-t5", "--use-cpu", "--nproc", "2"),
    "doctor": ("doctor", "--only", "shm", "--only", "torch_driver", "--only", "versions", "--only", "cores"),
    "init": ("init", "--yes", "--model", "demo-t5"),
    "bare train": ("train",),
}
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
}  # fmt: skip
# Longer ones than the narrowest terminal: a name, a path.
WORD = re.compile(r"\s*\S+")


@pytest.fixture
def stage(here, environ):
    (here / "llama").mkdir()
    (here / "llama" / "config.json").write_text(json.dumps(LLAMA))
    (here / "ds.json").write_text(json.dumps(CHECKED))
    environ["NO_COLOR"] = "1"
    return environ


def without_layout(text: str) -> str:
    return re.sub(r"[\s\\#,]|\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize("columns", [80, 60, 40])
@pytest.mark.parametrize("command", COMMANDS)
def test_lines_fit_the_terminal(on_terminal, stage, command, columns):
    stage["COLUMNS"] = str(columns)
    lines = on_terminal(*COMMANDS[command]).replace("\x1b[0m", "").splitlines()
    assert lines
    assert [line for line in lines if cells(line) > columns and not WORD.fullmatch(line)] == []


def test_findings_are_the_same_on_a_terminal_and_in_a_pipe(dsrun, on_terminal, stage):
    stage["COLUMNS"] = "60"
    piped = dsrun(*COMMANDS["config check"]).stdout
    assert without_layout(on_terminal(*COMMANDS["config check"])) == without_layout(piped)
    assert max(map(cells, piped.splitlines())) > 60
