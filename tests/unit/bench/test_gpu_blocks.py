"""bench/gpu without a GPU: blocks that fail or hang are rows, figures from metrics.jsonl, the table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench.gpu.blocks import LIMIT_S, TIMINGS, Block, check_blocks, timing_blocks
from bench.gpu.run import Row, run_block, run_blocks
from bench.gpu.table import write_table
from bench.gpu.timing import command, figures
from bench.mfu import causal_flops
from dsrun.recipe.resolve import resolve
from dsrun.system.gpus import Gpu

ROOT = Path(__file__).parents[3]


def block(code, **more):
    return Block(name="one", argv=("-c", code), part="check", **more)


def test_blocks_are_short_and_checks_are_first():
    blocks = [*check_blocks(ROOT), *timing_blocks(Path("scratch"))]
    assert all(each.limit_s < 480 for each in blocks)
    assert LIMIT_S < 480
    assert [each.name for each in check_blocks(ROOT)] == ["wheel", "memory", "ops", "packing", "training"]
    assert [each.part for each in blocks] == sorted(each.part for each in blocks)
    assert len({each.name for each in blocks}) == len(blocks)


def test_every_block_becomes_a_row(tmp_path):
    """One fails, one hangs with a child of its own, one misses its limit; the one after them still runs."""
    hang = "import subprocess, time; subprocess.Popen(['sleep', '99']); time.sleep(99)"
    blocks = [
        block("raise ValueError('broken')"),
        block(hang, limit_s=1),
        block("import sys; print('within 2 s: NO'); sys.exit(1)"),
        block("pass"),
    ]
    seen = []
    rows = run_blocks(blocks, tmp_path, done=seen.append)
    assert [row.status for row in rows] == ["failed", "timeout", "missed", "ok"]
    assert rows[0].detail == "exit code 1: ValueError: broken"
    assert seen == rows


def test_mfu_below_goal_is_missed(tmp_path):
    result = tmp_path / "figures.json"
    code = f"open({str(result)!r}, 'w').write('{{\"mfu\": 0.4, \"goal\": 0.5}}')"
    assert run_block(block(code, result=result), tmp_path / "log").status == "missed"


def test_figures_leave_the_first_steps_out():
    """16,384 tokens in two seconds on two GPUs with a peak of 100 TFLOP/s."""
    timing = TIMINGS[0]
    rows = [
        {"step": step, "time": f"2026-11-24T00:00:0{step}+00:00", "tokens": 8192 * step, "gpu_memory_peak": 3}
        for step in (2, 4, 6)
    ]
    found = figures(timing, rows, 100.0, 2)
    assert found["tokens_per_s"] == 8192
    assert found["mfu"] == pytest.approx(2 * causal_flops(timing.config, [4096]) / 200e12)
    assert figures(timing, rows, None, 2)["mfu"] is None


@pytest.mark.parametrize("timing", TIMINGS, ids=lambda timing: timing.name)
def test_timed_command_is_accepted(timing, tmp_path, monkeypatch):
    """`dsrun train` resolves every flag of it."""
    monkeypatch.setattr("bench.gpu.timing.SAMPLES", 1)
    h100 = Gpu(index=0, name="NVIDIA H100", uuid="", memory_total=80 * 2**30, capability=(9, 0))
    words = command(timing, tmp_path, tmp_path / "run", [h100])
    assert words[:4] == [sys.executable, "-m", "dsrun", "train"]
    recipe = resolve(words[4:], tmp_path)
    assert recipe.spec.from_scratch
    assert recipe.hf["optim"] == ("sgd" if timing.name == "Llama 8B" else "adamw_torch_fused")


def test_table_is_json_and_markdown(tmp_path):
    facts = {"date": "2026-11-24", "gpus": ["NVIDIA H100"], "versions": {"torch": "2.13.0"}}
    figured = {"tokens_per_s": 12345.6, "mfu": 0.512, "goal": 0.5, "gpu_memory_peak": 2**30}
    rows = [Row("ops", "check", "failed", 12.2, "exit code 1: a|b"), Row("Llama 1B", "timing", "ok", 99.9, "", figured)]
    write_table(rows, facts, tmp_path)
    lines = (tmp_path / "bench-gpu.md").read_text().splitlines()
    assert lines[0] == "2026-11-24, 1 × NVIDIA H100; torch 2.13.0"
    assert "| ops | failed | 12 |  |  |  |  | exit code 1: a\\|b |" in lines
    assert "| Llama 1B | ok | 100 | 12,346 | 51.2% | 50% | 1.0 |  |" in lines
    assert [row["name"] for row in json.loads((tmp_path / "bench-gpu.json").read_text())["blocks"]] == [
        "ops",
        "Llama 1B",
    ]
