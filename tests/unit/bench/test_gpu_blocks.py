"""bench/gpu without a GPU: blocks that fail, hang or find no time are rows, figures from metrics.jsonl, the table."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from bench.gpu.blocks import LIMIT_S, TIMINGS, Block, blocks
from bench.gpu.few import COMMANDS, DEMOS, DRY, WORK, described
from bench.gpu.run import BAD, Row, run_block, run_blocks
from bench.gpu.table import write_table
from bench.gpu.timing import command, figures
from bench.gpu.wheel import wait
from bench.mfu import causal_flops
from dsrun.machine.gpus import LocalGpu
from dsrun.recipe.resolve import resolve
from tests.processes import left_of

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def builds(tmp_path, monkeypatch):
    """No locks of the user's are looked at, or removed before a block."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "torch_extensions"))


def block(code, name="one", **more):
    return Block(name=name, argv=("-c", code), **more)


def test_blocks_are_short_and_begin_what_they_name():
    found = blocks(Path("scratch"))
    assert all(each.limit_s <= LIMIT_S < 480 for each in found)
    assert all(each.least_s < each.limit_s for each in found)
    assert len({each.name for each in found}) == len(found)
    few = [each.argv[2:] for each in found if each.argv[1] == "bench.gpu.few"]
    assert {words[0] for words in few} == set(COMMANDS)
    assert {words[1] for words in few if words[0] == "demo"} | {"offload3", "fused"} == set(DEMOS)
    assert {each.name for each in TIMINGS} < {each.name for each in found}
    files = {file.name for file in (ROOT / "tests" / "gpu").glob("test_*.py")}
    assert files == {"test_gpu_memory.py", "test_gpu_ops.py", "test_gpu_packing.py", "test_gpu_training.py"}


def test_most_valuable_blocks_fit_ten_minutes():
    """By what they took on an H100 (docs/benchmarks.md), each within its limit."""
    took = {"facts": 5, "t5": 58, "llama": 26, "tests": 88, "wheel": 0, "verify": 65, "offload": 46, "Llama 1B": 84,
            "Trainer, Llama 1B": 106, "memory": 81, "kill": 26}  # fmt: skip
    first = [each for each in blocks(Path("scratch")) if not each.full][: len(took)]
    assert [each.name for each in first] == list(took)
    assert all(took[each.name] < each.limit_s for each in first)
    assert sum(took.values()) < 600


def test_every_block_becomes_a_row(tmp_path):
    """One fails, one hangs with a child in a session of its own, one misses its limit, one lacks a package; the one
    after them still runs."""
    pid = tmp_path / "pid"
    child = f"open({str(pid)!r}, 'w').write(str(subprocess.Popen(['sleep', '999'], start_new_session=True).pid))"
    given = [
        block("raise ValueError('broken')"),
        block(f"import subprocess, time; {child}; print('=> begun'); time.sleep(99)", name="hangs", limit_s=2),
        block("import sys; print('within 2 s: NO'); sys.exit(1)"),
        block("import sys; print('it is not installed'); sys.exit(4)"),
        block("print('=> 3 tokens/s')"),
    ]
    seen = []
    rows = run_blocks(given, tmp_path, budget_s=None, done=lambda rows: seen.append([row.status for row in rows]))
    assert [row.status for row in rows] == ["failed", "timeout", "missed", "skipped", "ok"]
    assert rows[0].detail == "exit code 1: ValueError: broken"
    assert rows[1].detail == "begun; after its limit of 2 s: => begun"
    assert rows[3].detail == "exit code 4: it is not installed"
    assert rows[4].detail == "3 tokens/s"
    assert seen[0] == ["failed", *["to come"] * 4]
    with suppress(psutil.NoSuchProcess):
        assert not left_of([psutil.Process(int(pid.read_text()))])


def test_blocks_stay_within_the_time_for_all(tmp_path):
    """The last that is begun is ended in time, and what would not be worth beginning is a row that says so."""
    given = [block("import time; time.sleep(99)", limit_s=90), block("pass", least_s=60), block("pass")]
    rows = run_blocks(given, tmp_path, budget_s=6, done=lambda _: None)
    assert [row.status for row in rows] == ["timeout", "skipped", "skipped"]
    assert rows[0].detail.startswith("after its limit of 2 s" if rows[0].seconds >= 2 else "after its limit of 1 s")
    assert rows[1].detail.endswith("s were left of 6")


def test_mfu_below_goal_is_missed(tmp_path):
    result = tmp_path / "figures.json"
    code = f"open({str(result)!r}, 'w').write('{{\"mfu\": 0.4, \"goal\": 0.5}}')"
    assert run_block(block(code, result=result), tmp_path / "log").status == "missed"
    assert "missed" in BAD


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
    h100 = LocalGpu(index=0, name="NVIDIA H100", uuid="", memory_total=80 * 2**30, capability=(9, 0))
    words = command(timing, tmp_path, tmp_path / "run", [h100])
    assert words[:4] == [sys.executable, "-m", "dsrun", "train"]
    recipe = resolve(words[4:], tmp_path)
    assert recipe.spec.from_scratch
    assert recipe.hf["optim"] == ("sgd" if timing.name == "Llama 8B" else "adamw_torch_fused")


@pytest.mark.parametrize("name", DEMOS)
def test_flags_of_short_runs_are_accepted(name, tmp_path):
    recipe = resolve([*DEMOS[name], *([] if "--model" in DEMOS[name] else ["--model", "demo-llama"])], tmp_path)
    assert recipe.spec.model


def test_table_is_json_and_markdown(tmp_path):
    facts = {"date": "2026-11-24", "gpus": ["NVIDIA H100"], "versions": {"torch": "2.13.0"}}
    figured = {"tokens_per_s": 12345.6, "mfu": 0.512, "goal": 0.5, "gpu_memory_peak": 2**30}
    rows = [Row("verify", "failed", 12.2, "exit code 1: a|b"), Row("Llama 1B", "ok", 99.9, "", figured)]
    write_table([*rows, Row("kill", "to come")], facts, tmp_path)
    lines = (tmp_path / "bench-gpu.md").read_text().splitlines()
    assert lines[0] == "2026-11-24, 1 × NVIDIA H100; torch 2.13.0"
    assert "| verify | failed | 12 |  |  |  |  | exit code 1: a\\|b |" in lines
    assert "| Llama 1B | ok | 100 | 12,346 | 51.2% | 50% | 1.0 |  |" in lines
    assert "| kill | to come |  |  |  |  |  |  |" in lines
    found = json.loads((tmp_path / "bench-gpu.json").read_text())["blocks"]
    assert [row["name"] for row in found] == ["verify", "Llama 1B", "kill"]


def test_records_of_a_run_become_a_line(tmp_path):
    rows = [
        {"step": 1, "loss": 5.0, "tokens_per_s": 9000.0, "gpu_memory_peak": 2**29},
        {"step": 2, "loss": 4.0, "tokens_per_s": 8000.0, "gpu_memory_peak": 2**30},
        {"step": 2, "eval_exact_match": 96.68},
    ]
    assert described(tmp_path) == "no step"
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "run.json").write_text(json.dumps({"packing": {"batches": "budget", "reason": "it mixes"}}))
    steps, after = described(tmp_path).split(", exact match ")
    assert steps == "NOT FINISHED, 2 steps, loss 5.000 to 4.000, 9,000 tokens/s, 1.00 GiB"
    assert after == "96.7%, batches budget: it mixes"


@pytest.mark.train
def test_dry_run_tries_blocks_on_the_cpu(tmp_path):
    """The command line itself, with blocks whose programs are real: facts, and a timing's command."""
    argv = ["-m", "bench.gpu", "--dry", "--output", str(tmp_path), "--steps", "facts", "Llama 1B", "wheel"]
    env = {name: value for name, value in os.environ.items() if name not in (WORK, DRY)}
    done = subprocess.run([sys.executable, *argv], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    rows = {row["name"]: row for row in json.loads((tmp_path / "bench-gpu.json").read_text())["blocks"]}
    assert {row["status"] for row in rows.values()} == {"ok"}
    assert "--micro-batch-size 4" in rows["Llama 1B"]["detail"]


@pytest.mark.train
def test_end_of_the_command_ends_its_block(tmp_path):
    """Also by SIGTERM, as of `timeout`: the block has a session of its own."""
    argv = ["-m", "bench.gpu", "--dry", "--output", str(tmp_path), "--steps", "t5"]
    process = subprocess.Popen([sys.executable, *argv], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (blocks_of := psutil.Process(process.pid).children()) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM
    assert blocks_of
    assert not left_of(blocks_of)


@pytest.mark.parametrize("code", [0, 1, 4])
def test_row_of_the_wheel_has_the_code_of_its_build(code, tmp_path):
    """4, something missing, is a block left out."""
    (tmp_path / "build.log").write_text("")
    (tmp_path / "wheel.json").write_text(json.dumps({"path": "", "code": code, "seconds": 1.0}))
    assert wait(tmp_path) == code
