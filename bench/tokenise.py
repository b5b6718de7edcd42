"""Tokenising 200,000 short texts: dsrun against `datasets.map(batched=True, num_proc=2)` with the same tokenizer.

Both read the same JSON lines with everything imported before, in turn, each in a process of its own. What counts is CPU
time, user and system seconds of all processes, and the peak of the proportional set sizes (PSS) of all processes beyond
what there was after the imports. The ids must be the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from bench.cpu_clock import cpu_seconds
from bench.processes import HOUR_S, LimitedProcess

TEXTS, ROUNDS = 200_000, 2
FASTER, LESS = 1.3, 0.5
SAMPLE_S = 0.1
END = "</s>"
SIDES = ("map", "dsrun")


@dataclass(frozen=True)
class Cost:
    cpu_s: float
    wall_s: float
    memory: int
    digest: str


def main() -> bool:
    """Print both sides; whether the goals are met and the ids the same."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    costs: dict[str, list[Cost]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="dsrun-tokenise-") as name:
        folder = Path(name)
        make_data(folder / "train.jsonl")
        make_tokenizer(folder)
        for number in range(ROUNDS):
            for side in SIDES:
                costs[side].append(measure(side, folder, number))
    plain, own = (
        [median(getattr(cost, what) for cost in costs[side]) for what in ("cpu_s", "wall_s", "memory")]
        for side in SIDES
    )
    for side, (cpu, wall, memory) in zip(SIDES, (plain, own), strict=True):
        print(f"{side:6} {TEXTS / cpu:10,.0f} texts per CPU second, {wall:5.1f} s, {memory / 2**20:6.0f} MiB")
    same = len({cost.digest for found in costs.values() for cost in found}) == 1
    speed, memory = plain[0] / own[0], own[2] / plain[2]
    print(f"ids: {'the same' if same else 'DIFFERENT'}")
    print(f"{speed:.2f} × as fast; goal {FASTER:g} ×: {'met' if speed >= FASTER else 'MISSED'}")
    print(f"{memory:.2f} × the memory; goal {LESS:g} ×: {'met' if memory <= LESS else 'MISSED'}")
    return same and speed >= FASTER and memory <= LESS


def make_data(file: Path) -> None:
    """Texts of 5 to 40 words out of 20,000, the frequent ones more often."""
    chance = random.Random(0)
    letters = "etaoinshrdlucmfw"
    words = ["".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(20_000)]
    with file.open("w", encoding="utf-8") as lines:
        for _ in range(TEXTS):
            text = " ".join(words[int(20_000 * chance.random() ** 3)] for _ in range(chance.randint(5, 40)))
            lines.write(json.dumps({"text": text}) + "\n")


def make_tokenizer(folder: Path) -> None:
    """A byte-level BPE of 8,000 tokens, trained on the texts, which ends each with its end token; with a config."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import LlamaConfig, PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=8000, special_tokens=["<pad>", END], show_progress=False)
    texts = (json.loads(line)["text"] for line in (folder / "train.jsonl").open(encoding="utf-8"))
    core.train_from_iterator((text for _, text in zip(range(20_000), texts, strict=False)), trainer)
    core.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 1)])
    model = folder / "model"
    PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token=END).save_pretrained(model)
    LlamaConfig(vocab_size=core.get_vocab_size(), max_position_embeddings=512).save_pretrained(model)


def measure(side: str, folder: Path, number: int) -> Cost:
    """Run one side. RuntimeError when it fails."""
    cache = folder / f"{side}-{number}"
    env = {**os.environ, "DSRUN_CACHE": str(cache), "HF_HOME": str(cache), "OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = str(Path(__file__).parents[1])
    command = [sys.executable, "-m", "bench.tokenise", side, str(folder), str(cache)]
    with (folder / f"{side}.log").open("wb") as log:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, "text": True}
        process = LimitedProcess(command, what=side, limit_s=HOUR_S, env=env, **pipes)
    with process:
        process.line("stdout")
        cpu, peak, begin = cpu_seconds(process.pid), 0, time.monotonic()
        before = pss(process.pid)
        done = folder / f"{side}.done"
        done.unlink(missing_ok=True)
        process.write(f"{done}\n")
        while not done.exists() and process.poll() is None:
            process.check()
            peak = max(peak, pss(process.pid))
            time.sleep(SAMPLE_S)
        wall, cpu = time.monotonic() - begin, cpu_seconds(process.pid) - cpu
        digest, _ = process.finish()
    if process.returncode:
        raise RuntimeError(f"{side} failed: {(folder / f'{side}.log').read_text()[-2000:]}")
    return Cost(cpu, wall, peak - before, digest)


def pss(pid: int) -> int:
    """Bytes that a process and its descendants hold, shared ones in equal parts."""
    total = 0
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                total += process.memory_full_info().pss
    return total


def child(side: str, folder: Path, cache: Path) -> None:
    """One side, in its own process: import, wait for the word, tokenise, say when it is done, print a digest."""
    import numpy as np

    ids = {"map": with_map, "dsrun": with_dsrun}[side](folder, cache)
    next(ids)
    print("ready", flush=True)
    done = Path(input())
    next(ids)
    done.touch()
    # While this process is measured nothing else happens here; the digest comes after.
    flat = np.ascontiguousarray(next(ids), "<i4")
    print(len(flat), hashlib.sha256(flat.data).hexdigest())


def with_map(folder: Path, cache: Path) -> Iterator[Any]:
    import numpy as np
    import torch  # noqa: F401  # which a training script has, too
    from datasets import load_dataset
    from transformers import AutoTokenizer

    yield
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    rows = load_dataset("json", data_files=str(folder / "train.jsonl"), split="train", cache_dir=str(cache))
    rows = rows.map(lambda batch: tokenizer(batch["text"]), batched=True, num_proc=2, remove_columns=["text"])
    yield
    yield np.concatenate([chunk.flatten().to_numpy() for chunk in rows.data.column("input_ids").chunks])


def with_dsrun(folder: Path, _cache: Path) -> Iterator[Any]:
    from dsrun.recipe.resolve import resolve
    from dsrun.train.data.data_request import data_request
    from dsrun.train.data.encoding.tokenizer import load_tokenizer
    from dsrun.train.data.prepare import prepare_data
    from dsrun.train.model import load as models

    yield
    flags = ["--validation-split-percentage", "0", "--max-length", "128", "--do-train", "true"]
    recipe = resolve(["--model", str(folder / "model"), "--train-file", str(folder / "train.jsonl"), *flags], folder)
    config, tokenizer = models.load_config(recipe.spec), load_tokenizer(recipe.spec)
    task = models.decide_task(config, recipe.spec.task, recipe.spec.model)
    request = data_request(recipe, config, task, tokens=len(tokenizer), plugin=None)
    data = prepare_data(request, tokenizer, notify=lambda line: None, progress=lambda *_: None)
    yield
    yield data.train._tokens()


if __name__ == "__main__":
    if len(sys.argv) == 4:
        child(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        sys.exit(0 if main() else 1)
