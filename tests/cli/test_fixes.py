"""The fix of an error or a finding works to the letter: tests/fixes has the mistakes, and this test runs the mends."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from dsrun.datafiles import read_toml
from tests.cli.conftest import Dsrun
from tests.fixes.named import NamedFix, coded, commands, fixes, wrong_names
from tests.fixes.other_tools import AnsweredFlag, answered_flags
from tests.slurm_recordings import stand_in_cluster

FIXES = Path(__file__).parents[1] / "fixes"
ROWS = read_toml(FIXES / "rows.toml")
UNTRIED = read_toml(FIXES / "untried.toml")
DRY = ("train", "launch")
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 1000, "max_position_embeddings": 2048,
}  # fmt: skip
FILES = {
    "train.jsonl": '{"source": "a", "target": "b"}\n',
    "data/train.jsonl": '{"source": "a", "target": "b"}\n',
    "text.jsonl": '{"text": "a"}\n',
    "preferences.jsonl": '{"prompt": "a", "chosen": "b", "rejected": "c"}\n',
    "chats.jsonl": '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n',
    "prompts.txt": "a\n",
    "mix.yaml": "sets: {a: {train_file: train.jsonl}}\n",
    "run.yaml": "train: {model: demo-t5}\n",
    "ds.json": '{"zero_optimization": {"stage": 2}}',
    "my.py": "",
    "model/config.json": json.dumps(LLAMA),
    "model/model.safetensors": "",
    "shapes/config.json": json.dumps(LLAMA),  # without weights the planner counts it by itself
    "folder/.keep": "",
}


@pytest.fixture(autouse=True)
def mistakes(here: Path, nowhere: Path, environ: dict[str, str], tmp_path: Path) -> Path:
    """The files that mistakes name, on a machine without SLURM, and without models of the Hub."""
    environ["HF_HOME"] = str(tmp_path / "no-cache")
    put(here, FILES)
    return here


def put(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def dry(line: str) -> list[str]:
    """The words of a line, which starts nothing."""
    command, *words = shlex.split(line)
    return [command, *(["--dry-run"] if command in DRY and "--help" not in words else []), *words]


@pytest.mark.parametrize("name", ROWS)
def test_fix_works(name: str, dsrun: Dsrun, mistakes: Path, programs: Path) -> None:
    row = ROWS[name]
    if row.get("cluster"):
        stand_in_cluster(programs)
    put(mistakes, row.get("files", {}))
    wrong = dsrun(*dry(row["run"]))
    said = wrong.stdout + wrong.stderr
    assert wrong.returncode == row.get("exit", 2), said
    assert row["says"] in said
    right = dsrun(*dry(row["then"]))
    if gone := row.get("gone"):
        assert f"[{gone}]" in said
        assert f"[{gone}]" not in right.stdout + right.stderr
    else:
        assert right.returncode == 0, right.stdout + right.stderr


def with_data(words: Sequence[str]) -> list[str]:
    """`words` with the data that they are about."""
    file = "preferences.jsonl" if "dpo" in words else "train.jsonl"
    others = ["--train-file", file] if {"--validation-file", "--test-file"} & set(words) else []
    return [*others, *(file if word == "train.jsonl" else word for word in words)]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "flag", [each for each in answered_flags() if each.words is not None], ids=lambda flag: flag.name
)
def test_answer_to_a_flag_of_another_tool_works(flag: AnsweredFlag, dsrun: Dsrun) -> None:
    wrong = dsrun("train", "--dry-run", "--model", "demo-t5", f"--{flag.name}", "1")
    assert wrong.returncode == 2
    assert flag.words is not None
    for word in flag.words:
        assert not word.startswith("--") or word in wrong.stderr
    right = dsrun("train", "--dry-run", "--model", "demo-t5", *with_data(flag.words))
    assert right.returncode == 0, right.stderr


def test_every_code_with_a_fix_is_tried_or_says_why_not() -> None:
    untried = [code for group in UNTRIED["untried"] for code in group["codes"]]
    assert len(untried) == len(set(untried))
    named = set(coded())
    assert named - set(ROWS) - set(untried) == set(), "add it to tests/fixes/rows.toml, or say why not in untried.toml"
    assert set(untried) - named == set()
    assert set(untried) & set(ROWS) == set()
    assert all(group["reason"] for group in UNTRIED["untried"])


def test_answers_that_are_no_line_are_few() -> None:
    """The others say that something is always so, or name a variable or another command."""
    flags = answered_flags()
    assert len([each for each in flags if each.words is not None]) >= 215
    assert len(ROWS) >= 130


def test_fixes_name_commands_and_flags_that_are_there() -> None:
    known = commands()
    assert [(fix, name) for fix in fixes() for name in wrong_names(fix, known)] == []


def test_fixes_of_all_tables_are_read() -> None:
    assert {"cli/slurm/jobs.toml", "recipe/preflight/elastic.toml"} <= {fix.place for fix in fixes()}


@pytest.mark.parametrize(
    ("place", "text", "wrong"),
    [
        ("slurm/render/spec.py", "use --global-batch-sizes 32", ["--global-batch-sizes"]),
        ("kubernetes/spec.py", "add --partition gpu", ["--partition"]),
        ("diagnosis: x", "with dsrun train: --shm-size", ["--shm-size"]),
        ("diagnosis: x", "docker run --shm-size=8g, or --dataloader-num-workers 0", []),
        ("errors.py", "`dsrun raport RUN`", ["dsrun raport"]),
        ("errors.py", "a run of dsrun saves by itself", []),
    ],
)
def test_wrong_names_in_a_fix_are_found(place: str, text: str, wrong: list[str]) -> None:
    assert list(wrong_names(NamedFix(place, text), commands())) == wrong
