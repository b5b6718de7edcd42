"""The two runs that bench/recovery.py kills, their model and their data."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from bench.processes import HOUR_S, LimitedProcess, locks_of
from dsrun.runs.records import read_records

RANKS = 2
BATCH = 16
TOKENS = 128
ROWS = 4096
VOCABULARY = 512
SAVE = 60
ENDLESS = 1_000_000
PLAIN_STEPS = "steps.jsonl"
PATIENCE_S = 180.0


class Run(ABC):
    """A training that goes on until it is ended, and whose ranks can be killed."""

    name: str

    def __init__(self, folder: Path, command: Sequence[str]) -> None:
        self.folder = folder
        folder.mkdir()
        env = {**os.environ, "DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        # With a store shared by all attempts, torch 2.13's second attempt mostly hung in gloo's set-up here, as if it
        # had met the addresses of the first: the rival at its best.
        env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        env["PYTHONPATH"] = str(Path(__file__).parents[1])
        self.log = (folder / "bench.log").open("wb")
        kinds = {"stdout": self.log, "stderr": self.log, "start_new_session": True}
        self.process = LimitedProcess(command, what=self.name, limit_s=HOUR_S, env=env, compiles=True, **kinds)

    @abstractmethod
    def steps(self) -> list[tuple[float, int]]:
        """Every step made so far, also those made again: seconds since the epoch, and its number."""

    @abstractmethod
    def rank_1(self) -> int | None:
        """The process of rank 1."""

    @abstractmethod
    def attempts(self) -> list[float]:
        """When each attempt made its first step."""

    def checkpoint(self) -> int:
        """The newest checkpoint's step; 0 for none."""
        return max((int(path.name.partition("-")[2]) for path in self.folder.glob("checkpoint-*[0-9]")), default=0)

    def wait(self, what: str, condition: Callable[[], object]) -> None:
        """Until `condition()`; ends the benchmark when the run ends or nothing happens."""
        if not self.reaches(condition):
            sys.exit(f"error: {self.missing(what)}")

    def reaches(self, condition: Callable[[], object]) -> bool:
        """Wait until `condition()`; False when the run ends or nothing happens."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            self.process.check()
            if self.process.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def missing(self, what: str) -> str:
        return f"{self.name}: {what} did not come; see {self.log.name}{locks_of(self.process.env)}"

    def kill(self) -> float:
        """Kill rank 1; the moment of it."""
        pid = self.rank_1()
        moment = time.time()
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return moment

    def end(self) -> None:
        """Kill everything at once."""
        self.process.end(grace_s=0)
        self.log.close()


class Dsrun(Run):
    """dsrun train."""

    name = "dsrun"

    def __init__(self, folder: Path, model: Path, data: Path) -> None:
        flags = {
            "model": model, "train-file": data, "max-length": TOKENS, "zero": 0, "nproc": RANKS, "bf16": "false",
            "global-batch-size": BATCH, "learning-rate": 1e-3, "logging-steps": 1, "max-steps": ENDLESS,
            "save-every": SAVE, "validation-split-percentage": 0, "max-restarts": 1000, "output": folder,
        }  # fmt: skip
        words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        super().__init__(folder, [sys.executable, "-m", "dsrun", "train", *words, "--force"])

    def steps(self) -> list[tuple[float, int]]:
        rows = read_records(self.folder / "metrics.jsonl")
        return [(_seconds(row["time"]), row["step"]) for row in rows if "loss" in row]

    def rank_1(self) -> int | None:
        return next((each.pid for each in _children(self.process.pid) if each.name() == "rank-1"), None)

    def attempts(self) -> list[float]:
        begins = [
            _seconds(row["time"]) for row in read_records(self.folder / "events.jsonl") if row["kind"] == "training"
        ]
        times = [moment for moment, _ in self.steps()]
        firsts = [next((moment for moment in times if moment >= begin), None) for begin in begins]
        return [moment for moment in firsts if moment is not None]


class Torchrun(Run):
    """torchrun --max-restarts with a plain script."""

    name = "torchrun"

    def __init__(self, folder: Path, model: Path, data: Path) -> None:
        del data  # it makes its own, as long
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            f"--nproc-per-node={RANKS}",
            "--max-restarts=1000",
        ]
        command += ["--standalone", "--module", "--", "bench.recovery_plain"]
        super().__init__(folder, [*command, str(folder), str(model), str(ENDLESS), str(SAVE)])

    def _rows(self) -> list[dict[str, Any]]:
        return read_records(self.folder / PLAIN_STEPS)

    def steps(self) -> list[tuple[float, int]]:
        return [(row["time"], row["step"]) for row in self._rows()]

    def rank_1(self) -> int | None:
        file = self.folder / "rank-1.pid"
        return int(file.read_text()) if file.exists() else None

    def attempts(self) -> list[float]:
        firsts: dict[int, float] = {}
        for row in self._rows():
            firsts.setdefault(row["pid"], row["time"])
        return list(firsts.values())


def make_model(folder: Path) -> Path:
    """A Llama of half a million weights and its tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["<pad>", "</s>", "<unk>", *(f"w{n}" for n in range(VOCABULARY - 3))]
    core = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=TOKENS
    ).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=96, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
        max_position_embeddings=TOKENS, pad_token_id=0, bos_token_id=1, eos_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def make_data(file: Path) -> Path:
    """As many rows and tokens as the plain script has."""
    rows = (
        " ".join(f"w{(row * 31 + place * place * 7) % (VOCABULARY - 3)}" for place in range(TOKENS))
        for row in range(ROWS)
    )
    file.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return file


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()
