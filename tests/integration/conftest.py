"""Tiny models, tokenizers and data that the tests make; real workers on gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import pytest

from dsrun.runs.records import read_records
from dsrun.wheel.platform.wheel_package import wheel_package
from dsrun.wheel.sdist import fetch_sdist
from tests.forkserver.client import HEAVY
from tests.forkserver.ranks import Ranks
from tests.integration.builder import Builder
from tests.integration.kept import user_cache
from tests.integration.wheel_sources import tiny_tree

FP32 = ["--bf16", "false"]
SHORT = [*FP32, "--global-batch-size", "8", "--logging-steps", "1", "--learning-rate", "0.01"]
WORDS = ["<pad>", "</s>", "<unk>", *(f"w{i}" for i in range(61))]


@pytest.fixture(autouse=True, scope="session")
def caches(tmp_path_factory):
    """Prepared data in a folder of the test session, compiled ops in the user's cache: compiling takes minutes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DSRUN_CACHE", str(tmp_path_factory.getbasetemp() / "dsrun-cache"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Folders of tiny models with weights: `t5` and `llama`."""
    folder = tmp_path_factory.mktemp("models")
    return {name: str(make_model(folder / name, name)) for name in ("t5", "llama")}


def make_model(folder: Path, kind: str) -> Path:
    """A model of a few thousand weights without dropout, and a word-level tokenizer, saved as the Hub holds them."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    ids = {"pad_token_id": 0, "eos_token_id": 1}
    if kind == "t5":
        config = T5Config(
            vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0,
            decoder_start_token_id=0, **ids,
        )  # fmt: skip
        model = T5ForConditionalGeneration(config)
    else:
        config = LlamaConfig(
            vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=64, bos_token_id=1, **ids,
        )  # fmt: skip
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def make_tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=64
    )


def phrase(seed: int, words: int) -> str:
    return " ".join(f"w{(seed * 7 + i * i * 3) % 61}" for i in range(words))


def make_training(folder: Path) -> Path:
    """A folder with a tiny model, t5, and data for it, train.jsonl, that every user may read."""
    make_model(folder / "t5", "t5")
    rows = [(phrase(i, 2 + i % 9), phrase(3 * i, 2 + i % 7)) for i in range(600)]
    lines = (json.dumps({"source": source, "target": target}) + "\n" for source, target in rows)
    (folder / "train.jsonl").write_text("".join(lines))
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


@pytest.fixture(scope="session")
def pairs(tmp_path_factory):
    """Files of source/target pairs of very different lengths: the target is the source backwards."""
    folder = tmp_path_factory.mktemp("pairs")

    def write(name: str, start: int, count: int) -> str:
        sources = [phrase(i, 2 + i % 9) for i in range(start, start + count)]
        rows = [{"source": s, "target": " ".join(reversed(s.split()))} for s in sources]
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(folder / name)

    return {"train": write("train.jsonl", 0, 53), "validation": write("validation.jsonl", 100, 11)}


@pytest.fixture(scope="session")
def preferences(tmp_path_factory):
    """Files of prompts whose better answer is the prompt again: 30 to train on, 7 to evaluate."""
    folder = tmp_path_factory.mktemp("preferences")

    def write(name, start, count):
        rows = [
            {"prompt": phrase(i, 2 + i % 4) + " ", "chosen": phrase(i, 2 + i % 4), "rejected": phrase(i + 7, 2 + i % 6)}
            for i in range(start, start + count)
        ]
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(folder / name)

    return {"train": write("train.jsonl", 0, 30), "validation": write("validation.jsonl", 100, 7)}


class Ran:
    """A finished `dsrun`: exit code, what it printed, and the run folder's records."""

    def __init__(self, done: subprocess.CompletedProcess, output: Path) -> None:
        self.code = done.returncode
        self.out = done.stdout
        self.err = done.stderr
        self.folder = output

    @property
    def losses(self) -> list[float]:
        return [row["loss"] for row in read_records(self.folder / "metrics.jsonl") if "loss" in row]

    @property
    def evaluations(self) -> list[dict]:
        return [row for row in read_records(self.folder / "metrics.jsonl") if "eval_loss" in row]

    @property
    def events(self) -> list[str]:
        return [row["kind"] for row in read_records(self.folder / "events.jsonl")]

    def ok(self) -> Ran:
        logs = "".join(log.read_text()[-3000:] for log in sorted(self.folder.glob("logs/*.log")))
        assert self.code == 0, f"exit {self.code}\n{self.err}\n{logs}"
        return self


def dsrun(*args: object, output: Path, env: dict[str, str] | None = None, python: str = sys.executable) -> Ran:
    """`dsrun train ARGS --output OUTPUT` as a user starts it."""
    argv = [python, "-m", "dsrun", "train", *map(str, args), "--output", str(output)]
    options = {"env": {**os.environ, **(env or {})}, "text": True, "stdin": subprocess.DEVNULL}
    return Ran(HEAVY.run(argv, capture_output=True, **options), output)


def many_runs(runs: list[list[str]], *, ranks: int, scratch: Path) -> None:
    """Run all argument lists on `ranks` workers, started once."""
    folder = Path(tempfile.mkdtemp(prefix="runs-", dir=scratch))
    file = folder / "runs.json"
    file.write_text(json.dumps(runs))
    Ranks(folder / "logs", "tests.integration.many_runs", [file], count=ranks).wait()


def many_engines(
    cases: list[dict], scratch: Path, *, python: str = sys.executable, more: dict[str, str] | None = None
) -> dict[str, dict]:
    """What each case's engine was, once all have run on two ranks of that Python, with `more` in its environment."""
    folder = Path(tempfile.mkdtemp(prefix="engines-", dir=scratch))
    file = folder / "cases.json"
    file.write_text(json.dumps(cases))
    # Muon's Newton-Schulz iteration is the same without the compiler, which takes a minute here.
    env = {"TORCH_COMPILE_DISABLE": "1", **(more or {})}
    # Two releases of ninja take each other's builds for stale, and CPU Adam takes minutes: always our own ninja.
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.environ["PATH"])])
    Ranks(folder / "logs", "tests.integration.many_engines", [file], count=2, env=env, python=python).wait()
    return json.loads(Path(f"{file}.out").read_text())


def without(flags: list[str], name: str) -> list[str]:
    """The flags without this one and its value."""
    place = flags.index(name)
    return flags[:place] + flags[place + 2 :]


def records(folder: Path, key: str) -> list[float]:
    return [row[key] for row in read_records(folder / "metrics.jsonl") if key in row]


@pytest.fixture(scope="session")
def sdist():
    """The source of the DeepSpeed that is installed here, kept in the user's cache."""
    return fetch_sdist(
        version("deepspeed"),
        wheel_package().sdist[version("deepspeed")],
        user_cache() / "sdists",
    )


@pytest.fixture(scope="session")
def tree(sdist, tmp_path_factory):
    """A DeepSpeed whose only operation compiles in a second."""
    return tiny_tree(sdist, tmp_path_factory.mktemp("tree"))


@pytest.fixture
def builder(tmp_path):
    return Builder(tmp_path)
