"""The run.yaml of `dsrun init` as pure text: whatever the answers are, it says what was answered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dsrun.cli.init.data import InitData
from dsrun.cli.init.interview import InitAnswer
from dsrun.cli.init.model import InitModel
from dsrun.cli.init.place import TrainingPlace
from dsrun.cli.init.run_yaml import RunYamlAnswers, check_run_file, commands, plan_command, render_run_yaml, scalar
from dsrun.cli.init.tuning import InitTuning
from dsrun.errors import UsageError
from dsrun.recipe.runfile import read_run_file
from dsrun.zero.memory.plan_request import cluster

PRINTABLE = st.text(st.characters(codec="utf-8"), min_size=1).filter(str.isprintable)
HERE = TrainingPlace(
    source="there is no SLURM cluster here",
    words="this machine (its CPU)",
    world=2,
    cluster=None,
    host_memory=64,
    on_cpu=True,
)
ANSWERS = RunYamlAnswers(
    model=InitModel(name="org/model", source="your answer", from_scratch=False, config=None, architecture=None),
    data=InitData(source="your answer", train_file=("train.jsonl",), row={}),
    task=InitAnswer("auto", ""),
    place=HERE,
    tuning=InitTuning(
        preset=None,
        lora=InitAnswer(0, "all weights fit"),
        batch=InitAnswer(64, "a usual size"),
        zero={"zero": "auto"},
        why="w",
    ),
    output=InitAnswer("runs/model", "the model's name"),
)


def values_of(text: str, folder: Path) -> dict[str, object]:
    (folder / "run.yaml").write_text(text, encoding="utf-8")
    return {each.name: each.value for each in read_run_file(folder / "run.yaml", "run.yaml")}


@given(PRINTABLE)
def test_scalar_is_read_back_as_the_same_text(text):
    read = yaml.safe_load(f"key: {scalar(text)}")["key"]
    assert read == text or (text.isdecimal() and read == int(text)) or (text.startswith("0.") and read == float(text))


@pytest.mark.parametrize("word", ["no", "On", "null", "NULL", "~", "true", "a: b", "#x", "- x", "1:30", "1e3", "", "é"])
def test_scalar_quotes_what_yaml_would_read_as_something_else(word):
    assert yaml.safe_load(f"key: {scalar(word)}") == {"key": word}


@pytest.mark.parametrize(
    ("value", "text"), [(True, "true"), (("a",), "a"), (("a", "b c"), '[a, "b c"]'), (16, "16"), ("./a-b", "./a-b")]
)
def test_scalar_forms(value, text):
    assert scalar(value) == text


@given(PRINTABLE, PRINTABLE, PRINTABLE)
def test_rendered_file_says_what_was_answered(tmp_path_factory, name, file, source):
    answers = replace(
        ANSWERS,
        model=replace(ANSWERS.model, name=name, source=source),
        data=replace(ANSWERS.data, train_file=(file,), source=source),
    )
    read = values_of(render_run_yaml(answers, "run.yaml"), tmp_path_factory.getbasetemp())
    assert read["model"] == name
    assert read["train_file"] == [file]
    assert (read["global_batch_size"], read["zero"], read["output"]) == (64, "auto", "runs/model")


def test_foreign_text_cannot_leave_its_comment(tmp_path):
    layout_like = replace(ANSWERS.model, source="x\ntrain_batch: 1\x1b[31m\u2028zero: 3")
    read = values_of(render_run_yaml(replace(ANSWERS, model=layout_like), "run.yaml"), tmp_path)
    assert set(read) == {"model", "train_file", "global_batch_size", "output", "zero"}


@pytest.mark.parametrize(
    ("name", "rate"), [("google/flan-t5-small", 1e-4), ("org/llama", None)], ids=["T5", "another model"]
)
def test_learning_rate_of_families(tmp_path, name, rate):
    answers = replace(ANSWERS, model=replace(ANSWERS.model, name=name))
    assert values_of(render_run_yaml(answers, "run.yaml"), tmp_path).get("learning_rate") == rate


@pytest.mark.parametrize(("task", "rate"), [("auto", 2e-4), ("dpo", 5e-6)])
def test_learning_rate_of_lora(tmp_path, task, rate):
    answers = replace(ANSWERS, tuning=replace(ANSWERS.tuning, lora=InitAnswer(16, "")), task=InitAnswer(task, ""))
    read = values_of(render_run_yaml(answers, "run.yaml"), tmp_path)
    assert (read["lora"], read["learning_rate"]) == (16, rate)


def test_head_says_where_it_is_for_and_what_comes_next():
    head = render_run_yaml(ANSWERS, "run.yaml").partition("\n\n")[0].splitlines()
    assert head[1].split("  #")[0] == "#   dsrun train --config run.yaml --dry-run"
    assert head[-1] == "# It is for this machine (its CPU): there is no SLURM cluster here."


def test_offered_source_prefix_for_t5_only():
    assert "# source_prefix: " not in render_run_yaml(ANSWERS, "run.yaml")
    t5 = replace(ANSWERS, model=replace(ANSWERS.model, name="t5-small"))
    assert '  # source_prefix: "translate English to German: "' in render_run_yaml(t5, "run.yaml")


def test_check_run_file_names_file_and_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"^run.yaml:2: unknown key train.modle \(did you mean model\?\)$"):
        check_run_file("train:\n  modle: demo-t5\n", "run.yaml", slurm=False)
    with pytest.raises(UsageError, match=r"^run.yaml:3: slurm.nods: the slurm section has no such key"):
        check_run_file("train: {model: demo-t5}\nslurm:\n  nods: 2\n", "run.yaml", slurm=True)
    with pytest.raises(UsageError, match=r"^--train-file none.jsonl does not exist"):
        check_run_file("train: {model: demo-t5, train_file: none.jsonl}\n", "run.yaml", slurm=False)
    assert check_run_file("train: {model: demo-t5}\n", "run.yaml", slurm=False) == ()
    assert list(tmp_path.iterdir()) == []


def test_commands_quote_names():
    assert list(commands(replace(ANSWERS, output=InitAnswer("my runs/x", "")), "a b.yaml")) == [
        "dsrun train --config 'a b.yaml' --dry-run",
        "dsrun train --config 'a b.yaml'",
        "dsrun monitor 'my runs/x'",
    ]


def test_plan_command_repeats_what_was_planned():
    job = replace(HERE, cluster=cluster("a100-80:4", nodes=2), slurm={})
    tuning = replace(ANSWERS.tuning, preset=InitAnswer("aggressive", ""), lora=InitAnswer(8, ""))
    assert list(plan_command(replace(ANSWERS, place=job, tuning=tuning), {"zero": None})) == [
        "dsrun plan --model org/model --gpus a100-80:4 --gpu-memory 80 --nodes 2 --lora 8 --global-batch-size 64"
        " --preset aggressive"
    ]
    assert plan_command(ANSWERS, {"zero": None}) == {}
