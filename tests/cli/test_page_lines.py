"""The command lines of the READMEs and of docs/ run, each with what makes it end and start nothing; others parse."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from dsrun.cli.main import cli
from tests.run_folders import finished_run, write_run

ROOT = Path(__file__).parents[2]
CHINESE = ROOT / "docs" / "zh"
PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "README.md",
    ROOT / "README.zh.md",
    *sorted(CHINESE.glob("*.md")),
]
# What is added to a command line so that it ends soon, asks nothing and starts nothing.
ENDING = {
    "train": ["--dry-run"],
    "prepare": ["--dry-run"],
    "data": ["--dry-run"],
    "launch": ["--dry-run"],
    "init": ["--yes", "--force", "--dry-run"],
    "import": ["--force"],
    "monitor": ["--once"],
    "plan": ["--count", "shapes"],
    "exporter": ["--once", "--textfile", "metrics.prom"],
    "doctor": ["--only", "run_folder"],
}
# These would train, or need a cluster, machines, a compiler, a running job, weights or a checkpoint: they are parsed.
PARSED = (
    *("jobs", "cluster", "stacks", "export ", "wheel", "build-wheel", "verify-wheel"),
    *("checkpoint verify", "certify", "doctor --nodes", "doctor --ranks", "init --slurm", "plan --measure"),
)
# A page shows how it is refused.
REFUSED = "--notify https:"
SUBMITTING = {"--follow", "--submit", "--test-only"}
# Where one command ends and another one or a file begins.
BETWEEN = {"|", "||", "&&", ";", "&", ">", ">>", "2>", "2>>", "2>&1"}


def console_lines(page: Path) -> Iterator[str]:
    """What follows the prompts in a page's console blocks, continuation lines joined; of a Chinese page also commands
    with -- in its tables and sentences."""
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            prompt = re.match(r"[\w-]*\$ ", line)
            if prompt:
                yield line[prompt.end() :]
    if page.parent == CHINESE:
        yield from re.findall(r"`(dsrun \S[^`\n]* -- [^`\n]+)`", text)


def plain_lines(page: Path) -> Iterator[str]:
    """The lines of a page's other blocks that begin with dsrun, without a prompt."""
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        if kind != "console":
            lines = block.replace("\\\n", " ").splitlines()
            yield from (line for line in lines if re.match(r"(?:\w+=\S+ )?dsrun [a-z]", line))


def dsrun_commands(line: str) -> Iterator[list[str]]:
    """The words behind each `dsrun` that begins a command of `line`, also in $(…), behind srun, nohup and torchrun."""
    for inner in re.findall(r"\$\(dsrun ([^)]*)\)", line):
        yield shlex.split(inner)
    command: list[str] = []
    for word in [*shlex.split(line, comments=True), ";"]:
        if word not in BETWEEN:
            command.append(word)
            continue
        if "dsrun" in command and command[0] not in ("pip", "which", "mkdir"):
            yield [each for each in command[command.index("dsrun") + 1 :] if each != "…"]
        command = []


LINES = {line: page.name for page in PAGES for line in console_lines(page)}
COMMANDS = {tuple(words): page for line, page in LINES.items() if REFUSED not in line for words in dsrun_commands(line)}
WITHOUT_PROMPT = {
    tuple(words): page.name for page in PAGES for line in plain_lines(page) for words in dsrun_commands(line)
}


def cases(*, parsed: bool) -> list[Any]:
    """The commands that run, or those that are `parsed`, each with its page."""
    found = [(page, words) for words, page in COMMANDS.items() if " ".join(words).startswith(PARSED) == parsed]
    if parsed:
        found += [(page, words) for words, page in WITHOUT_PROMPT.items() if words not in COMMANDS]
    return [pytest.param(page, words, id=" ".join(words)[:60]) for page, words in found]


LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 1000, "max_position_embeddings": 2048,
}  # fmt: skip


@pytest.fixture
def stage(here: Path) -> Path:
    """The folder of a reader who has the files that the pages name."""
    chat = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    rows = {
        "train.jsonl": {"source": "a", "target": "b"},
        "dev.jsonl": {"source": "a", "target": "b"},
        "chats.jsonl": chat,
        "preferences.jsonl": {"prompt": "a", "chosen": "b", "rejected": "c"},
        "notes.jsonl": {"text": "a"},
    }
    for name, row in rows.items():
        (here / name).write_text(json.dumps(row) + "\n")
    for name in ("notes.txt", "my_train.py", "FILE.whl"):
        (here / name).write_text("x = 1\n")
    (here / "mine.py").write_text("class ZLoss:\n    pass\n")
    for name in ("my-llama", "my-model", "qwen", "Llama-3.1-8B", "runs/qwen/model", "runs/sft/model"):
        (here / name).mkdir(parents=True)
        (here / name / "config.json").write_text(json.dumps(LLAMA))
        (here / name / "model.safetensors").write_bytes(b"")
    run = "train: {model: t5-large, train_file: train.jsonl, global_batch_size: 64, learning_rate: 1e-4}\n"
    (here / "run.yaml").write_text(run + "zero: {stage: 2}\nlaunch: {nproc: 4}\n")
    (here / "accelerate.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_machines: 1\n"
        "num_processes: 2\nuse_cpu: false\ndeepspeed_config:\n  gradient_accumulation_steps: 4\n  zero_stage: 2\n"
    )
    theirs = {
        "axolotl.yml": {"base_model": "m", "datasets": [{"path": "chats.jsonl"}]},
        "llama3_lora_sft.yaml": {"model_name_or_path": "m", "stage": "sft"},
        "config.yml": {"base_model": "m"},
        "config.yaml": {"model_name_or_path": "m"},
    }
    for name, content in theirs.items():
        (here / name).write_text(json.dumps(content))
    for name in ("ds_config.json", "ds.json"):
        (here / name).write_text('{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}')
    (here / "hosts").write_text("node1 slots=8\nnode2 slots=8\n")
    for name in ("my.sbatch", "job.sh"):
        (here / name).write_text("#!/bin/bash\n#SBATCH --nodes=1\nsrun python my_train.py\n")
    for name in ("train.log", "slurm-71233.out"):
        (here / name).write_text("{'loss': 2.5}\n")
    for name in ("en-ro", "qwen", "numbers", "too-fast"):
        finished_run(here / "runs" / name)
    write_run(here / "runs" / "t5", events=[])
    return here


def test_lines_of_pages_are_shell():
    """bash can read every line."""
    for line, page in LINES.items():
        done = subprocess.run(["bash", "-n", "-c", line], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), (page, line)


@pytest.mark.parametrize(("page", "words"), cases(parsed=False))
def test_command_lines_of_pages_run(dsrun, stage, environ, page, words):
    """0, 3 where something is found, or 4 for a model on the Hub: neither a usage error nor one of dsrun's own."""
    environ["HF_HUB_OFFLINE"] = "1"
    name, *rest = (word for word in words if word not in SUBMITTING)
    if "-o" in rest:  # what it writes is not there yet
        (stage / rest[rest.index("-o") + 1]).unlink(missing_ok=True)
    end = rest.index("--") if "--" in rest else len(rest)
    ending = (
        [] if {"--explain", "--textfile"} & set(rest) else [word for word in ENDING.get(name, []) if word not in rest]
    )
    done = dsrun(name, *rest[:end], *ending, *rest[end:])
    assert done.returncode in (0, 3, 4), (page, done.stderr)


@pytest.mark.parametrize(("page", "words"), cases(parsed=True))
def test_options_of_page_lines_parse(stage, monkeypatch, page, words):
    monkeypatch.chdir(stage)
    command: click.Command = cli
    rest = list(words)
    context = None
    while isinstance(command, click.Group):
        context = command.make_context(command.name, rest, parent=context)
        _, found, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert found, page
        command = found
    command.make_context(command.name, rest, parent=context)


def test_other_programs_of_pages_are_there():
    """make's targets and the extras that pip installs."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    text = "\n".join(LINES)
    targets, named = re.findall(r"^make ([\w-]+)", text, re.MULTILINE), re.findall(r"\[([\w,]+)\]'", text)
    assert "demo" in targets
    assert "train" in named
    assert [name for name in targets if not re.search(rf"^{name}:", makefile, re.MULTILINE)] == []
    assert {extra for name in named for extra in name.split(",")} <= set(extras)
