"""Run folders made of lines, as `dsrun train` and `dsrun launch` leave them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dsrun.runs.records import plain

Lines = Iterable[Mapping[str, Any]]
RUN: Mapping[str, Any] = {
    "version": 1,
    "time": "2026-11-25T10:00:00.000Z",
    "command": ["dsrun", "train", "--model", "t5-small"],
    "model": "t5-small",
    "model_type": "t5",
    "parameters": 60_506_624,
    "task": "seq2seq",
    "precision": "bf16",
    "batch": {"global_batch": 64, "micro_batch": 32, "world_size": 2, "accumulation": 1},
    "deepspeed": {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": 2},
    },
    "specs": {"train": {"model": "t5-small", "learning_rate": 1e-4, "task": "auto", "hub_token": "hunter2"}},
    "sources": {"model": "command line", "learning_rate": "run.yaml", "task": "default"},
    "host": "node1",
    "git_commit": "0123abc-dirty",
    "world_size": 2,
    "zero_stage": 2,
    "gpus": ["NVIDIA H100", "NVIDIA H100"],
    "versions": {"python": "3.11.7", "torch": "2.13.0"},
}


def at(second: float) -> str:
    """The time so many seconds after the start of the runs here."""
    hours, rest = divmod(second, 3600)
    return f"2026-11-25T{10 + int(hours):02}:{int(rest) // 60:02}:{rest % 60:06.3f}Z"


def event(kind: str, second: float = 0.0, **more: Any) -> dict[str, Any]:
    return {"time": at(second), "kind": kind, **more}


def steps(count: int, **more: Any) -> list[dict[str, Any]]:
    """So many logged steps, one a second."""
    return [
        {
            "time": at(step % 30_000), "step": step, "epoch": step / 100, "loss": 5 / step, "lr": 1e-4,
            "grad_norm": 1.0, "tokens": 1000 * step, "tokens_per_s": 1000.0 + step % 7, "padding": 0.1, "mfu": 0.4,
            "gpu_memory": 2**30, "gpu_memory_peak": 2**31, "host_memory": 2**29, "host_memory_peak": 2**29, **more,
        }
        for step in range(1, count + 1)
    ]  # fmt: skip


def write_run(
    path: Path, *, events: Lines = (), metrics: Lines = (), run: Mapping[str, Any] | None = RUN, **files: Lines
) -> Path:
    """A run folder with these records; `files` are further .jsonl files, with - written as _."""
    path.mkdir(parents=True, exist_ok=True)
    for name, lines in {"events": events, "metrics": metrics, **files}.items():
        text = "".join(json.dumps(plain(line)) + "\n" for line in lines)
        (path / f"{name.replace('_', '-')}.jsonl").write_text(text)
    if run is not None:
        (path / "run.json").write_text(json.dumps(run))
    return path


def finished_run(path: Path, count: int = 30, **more: Any) -> Path:
    """A run of so many steps with two evaluations, a checkpoint and sample texts."""
    middle = count // 2
    metrics = steps(count)
    for step, loss in ((middle, 2.0), (count, 1.0)):
        place = next(index for index, record in enumerate(metrics) if record["step"] == step) + 1
        metrics.insert(
            place, {"time": at(step), "step": step, "eval_loss": loss, "eval_bleu": 10 / loss, "eval_seconds": 1}
        )
    events = [
        event("start", world_size=2, attempt=0, starting_s=3.0),
        event("training", 1, step=0, max_steps=count),
        event("evaluate", middle, step=middle, seconds=1.0, metrics={"eval_loss": 2.0, "eval_bleu": 5.0}),
        event("checkpoint_begin", middle, step=middle),
        event("checkpoint_end", middle + 1, step=middle, seconds=1.0, bytes=5 * 2**20),
        event("end", count + 2, step=count, seconds=count, exit_code=0),
    ]
    texts = {
        "samples": [{"step": step, "prompt": "one", "text": f"text {step}"} for step in (middle, count)],
        "predictions_validation": [{"source": "two", "prediction": "doi", "reference": "doi"}],
    }
    write_run(path, **{"events": events, "metrics": metrics, **texts, **more})
    (path / "FINISHED").write_text("{}")
    return path
