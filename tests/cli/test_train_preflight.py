"""`dsrun train`: invalid settings are rejected in one line before a worker starts."""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_ports

PAIRS = [{"source": "one", "target": "unu"}, {"source": "two", "target": "doi"}]


HOLD_THE_FOLDER = """
import sys
from dsrun.runs.folder import RunFolder
with RunFolder.create("busy").acquire():
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def pairs(here: Path) -> str:
    """A good training file."""
    (here / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS))
    return "pairs.jsonl"


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which somebody listens, with the next one free."""
    with socket.create_server(("127.0.0.1", free_ports(11))) as server:
        yield server.getsockname()[1]


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture
def refused(dsrun, here):
    """Call `dsrun train …`, check all that holds for every refusal, and return what the line says."""

    def call(*args: str) -> str:
        before = tree(here)
        done = dsrun("train", *args)
        assert (done.returncode, done.stdout) == (2, ""), done
        line = re.fullmatch(r"error: ([^\n]+)\n", done.stderr)
        assert line, done.stderr
        assert tree(here) == before
        return line[1]

    return call


def test_model_path_that_does_not_exist(refused):
    assert "./nope does not exist" in refused("--model", "./nope")


def test_model_path_typo_suggests_nearest(refused, here):
    (here / "my-model").mkdir()
    assert "did you mean my-model?" in refused("--model", "./my-modle")


def test_model_folder_without_config(refused, here):
    (here / "photos").mkdir()
    (here / "photos" / "cat.jpg").write_bytes(b"\xff\xd8")
    assert "--model ./photos is not a model: it contains no config.json" in refused("--model", "./photos")


def test_model_that_is_a_file(refused, pairs):
    assert "--model ./pairs.jsonl is a file" in refused("--model", f"./{pairs}")


def test_model_without_weights(refused, here):
    (here / "bare").mkdir()
    (here / "bare" / "config.json").write_text('{"model_type": "t5"}')
    assert "no weights (--from-scratch" in refused("--model", "./bare")


def test_no_model_at_all(refused):
    assert refused("--zero", "2").startswith("no model to train (")


def test_train_file_that_does_not_exist(refused, pairs):
    message = refused("--model", "demo-t5", "--train-file", "pair.jsonl")
    assert message == f"--train-file pair.jsonl does not exist (did you mean {pairs}?)"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.jsonl", b"", "empty.jsonl is empty"),
        ("blank.txt", b" \n\n", "blank.txt is empty"),
        ("headed.csv", b"source,target\n", "headed.csv is empty"),
        ("words.json", b"one two\n", "words.json, line 1: not JSON"),
        ("cut.jsonl", b'{"source": 1, "b"\n{"source": 2, "target": 3}\n', "1 of 2 rows cannot be used"),
        ("table.parquet", b"a,b\n1,2\n", "table.parquet is not a Parquet file"),
        ("table.csv", b"PAR1....PAR1", "table.csv is a Parquet file, not csv as its suffix says"),
        ("picture.txt", b"\x89PNG\r\n\x1a\n\0\0", "picture.txt, line 1: not UTF-8 text"),
        ("odd.bin", b"abc", "odd.bin contains 3 bytes"),
        ("pairs.docx", b"PK\x03\x04", "pairs.docx: the suffix .docx says nothing about the data"),
    ],
)
def test_train_file_with_invalid_contents(refused, here, name, content, message):
    (here / name).write_bytes(content)
    assert refused("--model", "demo-t5", "--train-file", name).startswith(message)


UNKNOWN_COLUMNS = (
    "error: odd.jsonl: cannot tell source and target; columns found: english, romanian "
    "(add `--text-column english --summary-column romanian`)\n"
)


@pytest.mark.parametrize(
    "command",
    [
        ("train",),
        ("train", "--dry-run"),
        ("prepare",),
        ("prepare", "--dry-run"),
        ("render-slurm", "--", "train"),
        ("launch", "--dry-run", "--", "dsrun", "train"),
    ],
    ids=" ".join,
)
def test_unknown_columns_named_before_torch_loads(dsrun, here, command):
    """By every command that reads the recipe of a training, and nothing is written."""
    (here / "odd.jsonl").write_text('{"english": "one", "romanian": "unu"}\n')
    done = dsrun(*command, "--model", "demo-t5", "--train-file", "odd.jsonl", python=("-X", "importtime"))
    assert (done.returncode, done.stdout) == (2, "")
    assert [line for line in done.stderr.splitlines(keepends=True) if line.startswith("error")] == [UNKNOWN_COLUMNS]
    assert not re.search(r"\| +(torch|transformers|datasets|numpy)$", done.stderr, re.MULTILINE)
    assert tree(here) == ["odd.jsonl"]


@pytest.mark.parametrize("flags", [(), ("--dry-run",), ("--nproc", "2")])
def test_missing_validation_data_named_first(refused, pairs, flags):
    message = refused("--model", "demo-t5", "--train-file", pairs, "--load_best_model_at_end", *flags)
    assert message.endswith("(--validation-file FILE)")


def test_rows_of_a_folder(dsrun, here, pairs):
    (here / "data").mkdir()
    (here / pairs).rename(here / "data" / pairs)
    done = dsrun("train", "--model", "demo-t5", "--train-file", "data", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("flags", [(), ("--dry-run",)])
def test_checkpoint_that_does_not_exist(refused, here, flags):
    """Those that do are named; the newest is the mend."""
    for name in ("checkpoint-2", "checkpoint-10", "checkpoint-12"):
        (here / "run" / name).mkdir(parents=True)
        if name != "checkpoint-12":
            (here / "run" / name / "trainer_state.json").write_text("{}")
    (here / "run" / "run.json").write_text("{}")
    message = refused("--model", "demo-t5", "--output", "run", "--resume", "checkpoint-99", *flags)
    assert message == (
        "--resume checkpoint-99 does not exist; run has checkpoint-10, checkpoint-2 (--resume run/checkpoint-10)"
    )


def test_checkpoint_without_any_beside_it(refused, here):
    assert "--resume auto" in refused("--model", "demo-t5", "--resume", "checkpoint-99")


def test_later_attempt_needs_no_given_checkpoint(dsrun, environ):
    """It has its own, and rotation may have deleted that one."""
    environ |= {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}
    done = dsrun("train", "--model", "demo-t5", "--resume", "checkpoint-99", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--zero", "4"], "--zero: '4' is not one of 0, 1, 2, 3"),
        (["--max-length", "0"], "--max-length: 0 is not from 1 to 9999999"),
        (["--max_length", "many"], "--max_length"),
        (["--learning_rat", "1e-4"], "did you mean --learning_rate?"),
        (["--frobnicate"], "--frobnicate"),
        (["--zero", "2", "--offload", "nvme"], "--offload nvme needs --zero 3"),
        (["--zero", "3", "--offload", "nvme"], "--offload nvme needs a folder (add --nvme-path"),
        (["--offload", "cpu", "--zero", "0"], "--offload cpu needs ZeRO"),
        (["--offload", "gpu"], "--offload"),
        (["--bf16", "--fp16"], "--bf16 and --fp16 exclude each other"),
        (["--nproc", "0"], "--nproc: 0 is not at least 1"),
        (["--config", "nope.yaml"], "nope.yaml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_train_invalid_flags(refused, args, message):
    assert message in refused("--model", "demo-t5", *args)


def test_unknown_key_of_the_run_file(refused, here):
    (here / "run.yaml").write_text("train:\n  modle: demo-t5\n")
    message = refused("--config", "run.yaml")
    assert "run.yaml" in message
    assert "modle" in message
    assert "model" in message.replace("modle", "")


def test_global_batch_must_divide_by_ranks(refused):
    message = refused(*("--model", "demo-t5", "--global-batch-size", "7", "--micro-batch-size", "2", "--nproc", "2"))
    assert message.startswith("global batch 7 does not divide by 2 × 2 ranks (use --global-batch-size 4 or 8")


def test_master_port_in_use(dsrun, taken):
    done = dsrun("train", "--model", "demo-t5", "--master-port", str(taken))
    assert (done.returncode, done.stdout) == (2, "")
    _starting, message = done.stderr.splitlines()
    assert f"port {taken} is taken" in message
    following = re.search(r"the next free one is (\d+)", message)
    assert following
    assert taken < int(following[1]) <= taken + 10
    assert "--find-port" in message


def test_find_port_takes_the_next_one(dsrun, taken):
    done = dsrun("train", "--model", "demo-t5", "--master-port", str(taken), "--find-port", "--dry-run")
    assert done.returncode == 0
    port = re.search(r"--master-port=(\d+)", done.stdout)
    assert port
    assert taken < int(port[1]) <= taken + 10


def test_output_that_is_a_file(refused, pairs):
    assert f"output {pairs} is a file" in refused("--model", "demo-t5", "--output", pairs)


def test_output_that_is_a_foreign_folder(refused, here):
    (here / "thesis").mkdir()
    (here / "thesis" / "chapter-1.tex").write_text("In the beginning")
    message = refused("--model", "demo-t5", "--output", "thesis")
    assert "thesis is not a run folder and contains chapter-1.tex" in message


def test_output_in_use_by_a_living_process(refused, here):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_THE_FOLDER],
        cwd=here,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        message = refused("--model", "demo-t5", "--output", "busy")
        assert f"output folder busy is in use by process {other.pid} " in message
        other.communicate("")


@pytest.mark.parametrize("variables", [{"RANK": "0"}, {"RANK": "2", "WORLD_SIZE": "2"}])
def test_half_set_worker_variables(refused, environ, variables):
    environ.update(variables)
    assert "RANK" in refused("--model", "demo-t5")


def test_train_dry_run_prints_command_and_environment(dsrun, here):
    """Dry run prints the command and the environment, and does nothing."""
    done = dsrun("train", "--dry-run", "--model", "demo-t5", "--zero", "2", "--nproc", "2", "--output", "a b")
    assert (done.returncode, done.stderr) == (0, "")
    *exports, command = done.stdout.splitlines()
    argv = shlex.split(command)
    assert argv[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert "--nproc-per-node=2" in argv
    module, *flags = argv[argv.index("--") + 1 :]
    assert module == "dsrun.train"
    assert flags == ["--model", "demo-t5", "--zero", "2", "--nproc", "2", "--output", "a b"], (
        "it would start nothing again"
    )
    assert "export DS_ACCELERATOR=cpu" in exports
    assert "export DSRUN_OUTPUT='a b'" in exports
    assert tree(here) == []


def test_train_dry_run_shows_unset_variables(dsrun, environ):
    environ["ACCELERATE_USE_CPU"] = "true"
    done = dsrun("train", "--dry-run", "--model", "demo-t5")
    assert "unset ACCELERATE_USE_CPU" in done.stdout.splitlines()


def test_renamed_flag_note_goes_to_stderr(dsrun):
    done = dsrun("train", "--dry-run", "--model", "demo-t5", "--evaluation_strategy", "no")
    assert done.returncode == 0
    assert re.fullmatch(r"note: [^\n]*evaluation_strategy[^\n]*\n", done.stderr)
    assert "note:" not in done.stdout


def test_train_explain_shows_value_and_source(dsrun, here, pairs):
    (here / "run.yaml").write_text(f"train:\n  model: demo-t5\n  train_file: {pairs}\n  max_length: 64\n")
    done = dsrun("train", "--explain", "--config", "run.yaml", "--max-length", "32", "--token", "hf_secret")
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    rows = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert re.fullmatch(r"  --max-length +32 +command line", rows["--max-length"])
    assert re.fullmatch(r"  --model +demo-t5 +run\.yaml.*", rows["--model"])
    assert re.fullmatch(r"  --learning_rate +0\.004 +demo-t5", rows["--learning_rate"])
    assert "--task" not in rows, "nobody has set it"
    assert len(rows) < 35
    assert "hf_secret" not in done.stdout
    assert tree(here) == ["pairs.jsonl", "run.yaml"]


@pytest.mark.parametrize(
    ("flags", "batch"),
    [
        ((), "256 = 128 × 2 CPU ranks × 1 step"),
        (("--global-batch-size", "32"), "32 = 8 × 2 CPU ranks × 2 steps"),
        (("--micro-batch-size", "4", "--gradient-accumulation-steps", "3"), "24 = 4 × 2 CPU ranks × 3 steps"),
        (("--micro-batch-size", "auto", "--global-batch-size", "64"), "64 = 32 × 2 CPU ranks × 1 step"),
    ],
)
def test_train_explain_has_accumulation_of_the_run(dsrun, flags, batch):
    done = dsrun("train", "--explain", "--model", "demo-t5", "--use-cpu", "--nproc", "2", *flags)
    assert re.search(r"^  batch +(.*)$", done.stdout, re.MULTILINE)[1] == batch
    assert re.search(r"^  parallel +ZeRO-2 on 2 CPU ranks", done.stdout, re.MULTILINE)


def test_train_explain_all_has_defaults_too(dsrun):
    done = dsrun("train", "--explain", "--all", "--model", "demo-t5", "--max-length", "32")
    assert (done.returncode, done.stderr) == (0, "")
    rows = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert re.fullmatch(r"max_length +32 +command line", rows["max_length"])
    assert re.fullmatch(r"task +'auto' +default", rows["task"])
    assert len(rows) > 200


def test_train_explain_needs_neither_model_nor_data(dsrun):
    done = dsrun("train", "--explain", "--model", "./nope")
    assert done.returncode == 0


def test_prepare_explain_and_dry_run_do_nothing(dsrun, here, pairs):
    flags = ["--model", "demo-t5", "--train-file", pairs, "--max-length", "32"]
    before = tree(here)
    explained = dsrun("prepare", *flags, "--explain")
    assert explained.returncode == 0
    assert re.search(r"^  --max-length +32 +command line$", explained.stdout, re.MULTILINE)
    shown = dsrun("prepare", *flags, "--dry_run")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shlex.split(shown.stdout)[1:] == ["-m", "dsrun.train.prepare", *flags]
    assert tree(here) == before


MISSPELLED = {"zero_optimization": {"stage": 2, "overlap_com": True}}


@pytest.mark.parametrize("flags", [(), ("--dry-run",), ("--explain",), ("--nproc", "2")])
def test_deepspeed_file_is_linted_first(refused, here, flags):
    """Before data and model, whose preparation would be for nothing."""
    (here / "ds.json").write_text(json.dumps(MISSPELLED))
    said = refused("--model", "demo-t5", "--deepspeed", "ds.json", *flags)
    assert "zero_optimization.overlap_com (ds.json:1)" in said
    assert said.endswith("(did you mean overlap_comm?)")


@pytest.mark.parametrize("flags", [(), ("--dry-run",), ("--explain",)])
def test_deepspeed_file_that_does_not_exist(refused, flags):
    assert refused("--model", "demo-t5", "--deepspeed", "nope.json", *flags) == (
        "--deepspeed nope.json: No such file or directory"
    )


def test_deepspeed_file_is_checked_for_these_ranks(refused, here):
    (here / "ds.json").write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 2}}')
    said = refused("--model", "demo-t5", "--deepspeed", "ds.json", "--nproc", "3", "--dry-run")
    assert said.startswith("ds.json: global batch 8 does not divide by 3 ranks")


@pytest.mark.parametrize(
    "command",
    [("prepare",), ("render-slurm", "--", "train"), ("launch", "--dry-run", "--", "dsrun", "train")],
    ids=lambda command: command[0],
)
def test_other_commands_lint_the_deepspeed_file(dsrun, here, command):
    (here / "ds.json").write_text(json.dumps(MISSPELLED))
    done = dsrun(*command, "--model", "demo-t5", "--deepspeed", "ds.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean overlap_comm?" in done.stderr


def test_requeued_job_does_not_lint_an_edited_file(dsrun, here, environ):
    """It goes on by the settings that it started with."""
    (here / "ds.json").write_text(json.dumps(MISSPELLED))
    environ |= {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}
    done = dsrun("train", "--model", "demo-t5", "--deepspeed", "ds.json", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
