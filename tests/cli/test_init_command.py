"""`dsrun init` without a terminal: options and defaults, and the file that they make."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.slurm_recordings import stand_in, stand_in_cluster

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 1000, "max_position_embeddings": 2048,
}  # fmt: skip


@pytest.fixture(autouse=True)
def bare(nowhere: Path, environ: dict[str, str], tmp_path: Path) -> None:
    """A machine without SLURM and without models of the Hub, whatever this one has."""
    environ["HF_HOME"] = str(tmp_path / "no-cache")


@pytest.fixture
def model(here: Path) -> Path:
    """A folder with a small Llama, as far as a look at it goes."""
    folder = here / "tiny llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


@pytest.fixture
def notes(here: Path) -> Path:
    file = here / "notes.jsonl"
    file.write_text('{"text": "one"}\n{"text": "two"}\n')
    return file


@pytest.fixture
def cluster(programs: Path) -> Path:
    """SLURM's programs, which answer for the recorded cluster."""
    stand_in_cluster(programs)
    stand_in(programs, "sbatch", ("", ""))
    return programs


@pytest.fixture
def made(dsrun, here):
    """Call `dsrun init …`, which succeeds, and return the file's content."""

    def call(*args: str) -> dict:
        done = dsrun("init", *args)
        assert done.returncode == 0, done.stderr
        return yaml.safe_load((here / "run.yaml").read_text())

    return call


@pytest.fixture
def refused(dsrun, here):
    """Call `dsrun init …`, which writes nothing, and return the error."""

    def call(*args: str, code: int = 2) -> str:
        done = dsrun("init", *args)
        assert (done.returncode, done.stdout) == (code, ""), done
        assert not (here / "run.yaml").exists()
        (line,) = re.findall(r"^error: (.*)$", done.stderr, re.MULTILINE)
        return line

    return call


def test_init_needs_a_model_without_terminal(refused):
    line = refused()
    assert line.startswith("--model is needed (there is no terminal to ask on: ")
    assert line.endswith("or --yes for demo-t5)")


def test_init_needs_data_for_a_model(refused, model):
    assert refused("--model", str(model)).startswith("--train-file is needed")
    # A default that does not exist cannot be accepted either.
    assert refused("--yes").startswith("--train-file is needed (a data file; or --dataset NAME")


def test_init_demo_is_accepted_by_train(dsrun, made):
    assert made("--model", "demo-t5") == {
        "train": {"model": "demo-t5", "output": "runs/demo-t5"},
        "zero": {"stage": 2},
    }
    done = dsrun("train", "--config", "run.yaml", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")


def test_init_prints_next_commands(dsrun):
    done = dsrun("init", "--model", "demo-t5", "--output", "runs/a b")
    assert [line.partition("  #")[0].strip() for line in done.stdout.splitlines()] == [
        "dsrun train --config run.yaml --dry-run",
        "dsrun train --config run.yaml",
        "dsrun monitor 'runs/a b'",
    ]
    assert "run.yaml is written" in done.stderr


def test_init_local_model_and_data_accepted_by_train(dsrun, made, model, notes):
    content = made("--yes", "--lora", "8", "--global-batch-size", "4")
    assert content["train"] == {
        "model": "./tiny llama", "train_file": "notes.jsonl", "lora": 8, "global_batch_size": 4,
        "learning_rate": 0.0002, "output": "runs/tiny-llama",
    }  # fmt: skip
    done = dsrun("train", "--config", "run.yaml", "--dry-run", "--nproc", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert "dsrun.train --config run.yaml" in done.stdout


def test_init_comments_say_where_values_come_from(made, here, model, notes):
    made("--yes", "--global-batch-size", "4")
    text = (here / "run.yaml").read_text()
    assert "  # why: found: llama, a folder here\n  model: " in text
    assert "  # why: found in this folder; columns: text\n  train_file: notes.jsonl\n" in text
    assert "  # why: as --global-batch-size says\n  global_batch_size: 4\n" in text
    assert "  # why: there is no GPU whose memory could run out\n  stage: 2\n" in text


def test_init_lines_to_try_are_accepted_by_train(dsrun, made, here, model, notes):
    """With the comment mark of every `# key: value` line removed, but for the second stage."""
    (here / "dev.jsonl").write_text('{"text": "three"}\n')
    (here / "train.jsonl").write_text('{"text": "one"}\n')
    made("--yes")
    text = re.sub(r"^  # (\w+: )(?!found)", r"  \1", (here / "run.yaml").read_text(), flags=re.MULTILINE)
    text = "\n".join(line for line in text.splitlines() if not line.startswith(("  why:", "  stage: 2")))
    (here / "run.yaml").write_text(text)
    assert {"eval_strategy", "num_train_epochs", "lora"} <= set(yaml.safe_load(text)["train"])
    done = dsrun("train", "--config", "run.yaml", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")


def test_init_validation_file_beside_the_training_file(made, here, model):
    for name in ("train.csv", "valid.csv", "test.csv"):
        (here / name).write_text("source,target\none,unu\n")
    (here / "dev.jsonl").write_text('{"text": "of another kind"}\n')
    content = made("--yes")["train"]
    assert (content["train_file"], content["validation_file"]) == ("train.csv", "valid.csv")


def test_init_refuses_existing_file_before_anything_else(dsrun, here):
    (here / "run.yaml").write_text("mine")
    done = dsrun("init", "--model", "no/such/model")
    assert done.returncode == 2
    assert done.stderr == "error: run.yaml exists (add --force to replace it, or -o another.yaml)\n"
    assert dsrun("init", "--model", "demo-t5", "-o", "other.yaml").returncode == 0
    assert (here / "run.yaml").read_text() == "mine"
    assert dsrun("init", "--model", "demo-t5", "--force").returncode == 0
    assert "model: demo-t5" in (here / "run.yaml").read_text()


@pytest.mark.parametrize("args", [["--dry-run"], ["-o", "-"]])
def test_init_prints_the_file_and_nothing_else(dsrun, here, args):
    (here / "run.yaml").write_text("mine")
    done = dsrun("init", "--model", "demo-llama", *args)
    assert done.returncode == 0
    assert yaml.safe_load(done.stdout)["train"]["model"] == "demo-llama"
    assert (here / "run.yaml").read_text() == "mine"


def test_init_file_in_a_missing_folder(refused):
    assert refused("--yes", "-o", "no/run.yaml").startswith("no/run.yaml: there is no folder no")
    assert refused("--yes", "-o", "").startswith("-o: . is a folder")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--model", "./nothing"], "--model ./nothing does not exist"),
        (["--model", "tiny-llama"], "--model tiny-llama does not exist (did you mean tiny llama?)"),
        (["--model", "a/b/c"], "--model a/b/c is neither a folder nor a name on the Hub"),
        (["--train-file", "note.jsonl"], "--train-file note.jsonl does not exist (did you mean notes.jsonl?)"),
        (["--dataset", "nodes.jsonl"], "--dataset nodes.jsonl does not exist"),
        (["--train-file", "notes.jsonl", "--dataset", "wmt16"], "--train-file and --dataset exclude each other"),
        (["--task", "seq2seq"], "--task seq2seq: ./tiny llama is a llama model, which cannot do that"),
        (["--text-column", "words"], "--text-column: notes.jsonl has no column 'words'"),
        (["--lora", "many"], "--lora many is not a rank"),
        (["--global-batch-size", "0"], "--global-batch-size 0 is not a number of samples"),
        (["--output", "notes.jsonl"], "output notes.jsonl is a file"),
        (["--output", ""], "--output is empty"),
        (["--no-slurm", "--partition", "gpu"], "--partition is an option of SLURM jobs"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_init_wrong_option_is_one_line(refused, model, notes, args, message):
    assert refused("--yes", *args).startswith(message)


def test_init_unknown_columns_name_the_options(refused, here, model):
    (here / "faq.csv").write_text("frage,antwort\nWie?,So.\n")
    line = refused("--yes")
    assert "columns found: frage, antwort" in line
    assert line.endswith("(add `--text-column frage --summary-column antwort`)")


def test_init_named_columns(dsrun, made, here, model):
    (here / "faq.csv").write_text("frage,antwort\nWie?,So.\n")
    content = made("--yes", "--text-column", "frage", "--summary-column", "antwort")["train"]
    assert (content["text_column"], content["summary_column"]) == ("frage", "antwort")
    assert dsrun("train", "--config", "run.yaml", "--dry-run").returncode == 0


def test_init_chat_template_where_the_tokenizer_has_none(dsrun, made, refused, here, model):
    (model / "tokenizer_config.json").write_text("{}")
    (here / "chats.jsonl").write_text('{"messages": [{"role": "user", "content": "Hi"}]}\n')
    assert refused("--yes", "--chat-template", "no.jinja").startswith("--chat-template no.jinja does not exist")
    assert made("--yes")["train"]["chat_template"] == "chatml"
    assert dsrun("train", "--config", "run.yaml", "--dry-run").returncode == 0
    (model / "chat_template.jinja").write_text("{{ messages }}")
    assert "chat_template" not in made("--yes", "--force")["train"]


def test_init_preferences_make_dpo(made, here, model):
    (here / "train.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n')
    assert made("--yes")["train"]["task"] == "dpo"


def test_init_model_of_the_hub_is_not_downloaded(dsrun, made, notes):
    content = made("--model", "meta-llama/Llama-3.1-405B", "--train-file", "notes.jsonl")
    assert content["train"]["model"] == "meta-llama/Llama-3.1-405B"
    assert content["train"]["task"] == "causal-lm"
    assert dsrun("train", "--config", "run.yaml", "--dry-run").returncode == 0


def test_init_model_in_the_hub_cache_is_found(made, environ, here, notes):
    environ["HF_HUB_CACHE"] = str(here / "cache")
    snapshot = here / "cache/models--org--small/snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(LLAMA))
    (snapshot / "model.safetensors").write_bytes(b"")
    assert made("--yes")["train"]["model"] == "org/small"


def test_init_config_without_weights_is_trained_from_scratch(dsrun, made, model, notes):
    (model / "model.safetensors").unlink()
    content = made("--model", str(model), "--yes")["train"]
    assert content["from_scratch"] is True
    assert "lora" not in content
    assert dsrun("train", "--config", "run.yaml", "--dry-run").returncode == 0


def test_init_next_run_gets_a_folder_of_its_own(made, here):
    (here / "runs/demo-t5").mkdir(parents=True)
    assert made("--model", "demo-t5")["train"]["output"] == "runs/demo-t5-2"


def test_init_slurm_job_is_rendered(dsrun, made, cluster):
    content = made("--model", "demo-t5", "--partition", "debug", "--nodes", "1")
    assert content["slurm"] == {"partition": "debug", "gpus_per_node": 4, "nodes": 1, "time": "0:30:00"}
    done = dsrun("render-slurm", "--config", "run.yaml")
    assert done.returncode == 0, done.stderr
    assert {"#SBATCH --partition=debug", "#SBATCH --gpus-per-node=4", "#SBATCH --time=0:30:00"} <= {
        *done.stdout.splitlines()
    }


def test_init_slurm_prints_its_commands(dsrun, cluster):
    lines = dsrun("init", "--model", "demo-t5", "--slurm", "-o", "job.yaml").stdout.splitlines()
    assert lines[1].startswith("dsrun render-slurm --config job.yaml | sbatch ")


@pytest.mark.parametrize("rank", [0, 16])
def test_init_slurm_plans_as_dsrun_plan_does(dsrun, made, cluster, here, notes, rank):
    """For node1 of the partition: four A100 with the smaller memory, and 500 GiB."""
    large = here / "large"
    large.mkdir()
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "vocab_size": 128_000}
    (large / "config.json").write_text(json.dumps(LLAMA | sizes | {"num_attention_heads": 32}))
    (large / "model.safetensors").write_bytes(b"")
    content = made("--yes", "--partition", "debug", "--global-batch-size", "32", "--lora", str(rank))
    lora = ("--lora", str(rank)) if rank else ()
    given = ("--global-batch-size", "32", "--gpus", "a100:4", "--host-memory", "500", "--max-length", "1024", *lora)
    done = dsrun("plan", "--model", "large", "--count", "shapes", "--format", "json", *given)
    plan = json.loads(done.stdout)
    choice = plan["strategies"][plan["choice"]]
    assert content["zero"]["stage"] == choice["stage"]
    assert content["zero"].get("offload", "none") == choice["offload"]
    assert content["train"]["micro_batch_size"] == choice["micro_batch"]
    assert content["train"].get("gradient_checkpointing", False) == choice["checkpointing"]


def test_init_nothing_fits_is_a_finding(refused, cluster, here, notes):
    large = here / "large"
    large.mkdir()
    sizes = {"hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126, "vocab_size": 128_000}
    (large / "config.json").write_text(json.dumps(LLAMA | sizes | {"num_attention_heads": 128}))
    (large / "model.safetensors").write_bytes(b"")
    line = refused("--yes", "--slurm", "--partition", "debug", "--nodes", "1", code=3)
    assert line.startswith("./large: nothing fits 4 × a100")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--partition", "gpuu"], "--partition gpuu: there is no partition 'gpuu' (did you mean gpu?)"),
        (["--nodes", "9"], "--nodes 9: partition main has 5 nodes"),
        (["--nodes", "some"], "--nodes: 'some' is not a whole number"),
        (["--gpus-per-node", "a100"], "--gpus-per-node a100 is not a number of GPUs"),
        (["--gpus-per-node", "16"], "--gpus-per-node 16: "),
        (
            ["--partition", "debug", "--time", "1:00:00"],
            "--time 1:00:00: 1:00:00 is above the limit of partition debug",
        ),
        (["--time", "soon"], "--time"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_init_slurm_answers_are_checked_on_the_cluster(refused, cluster, args, message):
    assert refused("--model", "demo-t5", "--slurm", *args).startswith(message)


def test_init_slurm_options_without_a_cluster(made):
    content = made("--model", "demo-t5", "--slurm", "--nodes", "2", "--gpus-per-node", "8")
    assert content["slurm"] == {"gpus_per_node": 8, "nodes": 2, "time": "0:30:00"}


def test_init_demo_takes_the_data_that_is_here(made, here):
    """What suits it: a chat is not for a T5."""
    (here / "a.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "a"}]}) + "\n")
    (here / "train.jsonl").write_text('{"source": "a", "target": "b"}\n')
    assert made("--yes")["train"]["train_file"] == "train.jsonl"


def test_init_unfit_output_is_refused_first(refused):
    assert "/proc/x" in refused("--model", "no/such", "--output", "/proc/x")
