"""The two trainings that bench/translation.py compares: their model, and one recipe as two command lines."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.cpu_clock import CpuClock
from bench.processes import HOUR_S, LimitedProcess
from dsrun.runs.records import read_records

SAMPLE_S = 1.0
SILENCE_S = 2 * HOUR_S
"""Between two lines of metrics.jsonl, and for evaluation and predictions."""
VOCABULARY = 5000
LONGEST = 64
"""Tokens of a source or a target, its end included."""


@dataclass(frozen=True)
class Recipe:
    """What both train with; `arguments` are those of transformers, and flags of `dsrun train`, under the same names."""

    model: str
    train: str
    test: str
    output: str
    arguments: dict[str, Any]
    max_length: int = LONGEST


@dataclass
class Run:
    """A training in progress: its processes' CPU seconds (user + system) so far, sampled every SAMPLE_S."""

    name: str
    recipe: Recipe
    process: LimitedProcess
    clock: CpuClock = field(init=False)
    began: float = field(default_factory=time.time)
    wall_s: float = 0.0
    written: int = 0

    def __post_init__(self) -> None:
        self.clock = CpuClock(self.process.pid)

    def sample(self) -> bool:
        """Take a sample; False when the run has ended."""
        if self.process.poll() is not None:
            self.wall_s = self.wall_s or time.time() - self.began
            return False
        self.clock.sample()
        metrics = Path(self.recipe.output, "metrics.jsonl")
        if metrics.exists() and (written := metrics.stat().st_size) != self.written:
            self.written = written
            self.process.renew()
        return True

    @property
    def cpu_s(self) -> float:
        """CPU seconds of the whole run."""
        return self.clock.samples[-1][1]

    def steps(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl that have a training loss."""
        return [row for row in read_records(Path(self.recipe.output, "metrics.jsonl")) if "loss" in row]

    def cpu_per_step(self) -> float:
        """CPU seconds of a step, from the first log line to the last: without start-up, evaluation and export."""
        first, *_, last = self.steps()
        begin, end = (self.clock.at(datetime.fromisoformat(row["time"]).timestamp()) for row in (first, last))
        return (end - begin) / int(last["step"] - first["step"])


def side_by_side(runs: Iterable[tuple[str, Recipe, Sequence[str]]]) -> list[Run]:
    """Start all runs at once, one thread each, and wait. RuntimeError when one fails."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    started: list[Run] = []
    try:
        for name, recipe, command in runs:
            with _log(recipe).open("wb") as log:
                kinds = {"env": env, "compiles": True, "stdout": log, "stderr": log}
                process = LimitedProcess(command, what=name, limit_s=SILENCE_S, **kinds)
            started.append(Run(name, recipe, process))
        running = started
        while running:
            time.sleep(SAMPLE_S)
            running = [run for run in running if run.sample()]
            for run in started:
                if run in running:
                    run.process.check()
                if run.process.returncode:
                    raise RuntimeError(f"{run.name} failed; see {_log(run.recipe)}")
    finally:
        for run in started:
            run.process.end()
    return started


def _log(recipe: Recipe) -> Path:
    return Path(recipe.output).with_suffix(".log")


def dsrun_command(recipe: Recipe, *, zero: int) -> list[str]:
    """`dsrun train`, as a user would write it."""
    flags = {
        "model": recipe.model, "train-file": recipe.train, "test-file": recipe.test, "output": recipe.output,
        "do-train": "true", "do-predict": "true", "zero": zero, "max-source-length": recipe.max_length,
        "max-target-length": recipe.max_length, "save-strategy": "no", **recipe.arguments,
    }  # fmt: skip
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-m", "dsrun", "train", *words]


def plain_command(recipe: Recipe) -> list[str]:
    """The script beside this file."""
    folder = Path(recipe.output)
    folder.mkdir(parents=True)
    file = folder / "recipe.json"
    file.write_text(json.dumps(asdict(recipe), indent=2), encoding="utf-8")
    return [sys.executable, "-m", "bench.translation_plain", str(file)]


def make_model(train_file: Path, folder: Path, seed: int) -> int:
    """Write config, tokenizer and freshly initialised weights to `folder`; the number of parameters. Both rivals load
    these weights, so that they begin alike."""
    import torch
    from tokenizers import SentencePieceBPETokenizer, processors
    from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    core = SentencePieceBPETokenizer()
    core.train_from_iterator(
        _texts(train_file), VOCABULARY, special_tokens=[*special.values()], limit_alphabet=200, show_progress=False
    )
    core.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core._tokenizer, model_max_length=LONGEST, **special)
    tokenizer.save_pretrained(folder)
    config = T5Config(
        vocab_size=VOCABULARY, d_model=160, d_kv=40, d_ff=640, num_layers=2, num_decoder_layers=2, num_heads=4,
        dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = T5ForConditionalGeneration(config)
    model.save_pretrained(folder)
    return int(model.num_parameters())


def _texts(train_file: Path) -> Iterator[str]:
    with train_file.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield row["source"]
            yield row["target"]
