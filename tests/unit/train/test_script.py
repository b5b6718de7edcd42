"""What `dsrun.train.Trainer` takes, before anything is started."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from datasets import Dataset

from dsrun.errors import UsageError
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.recipe.resolve import resolve
from dsrun.train.base.plan import Given
from dsrun.train.data.data_request import given_sources
from dsrun.train.script import _given, _words


def test_importing_dsrun_train_loads_no_torch():
    code = "import sys, dsrun.train; assert 'torch' not in sys.modules and 'Trainer' in dsrun.train.__all__"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_settings_are_the_flags_of_dsrun_train(tmp_path):
    settings = {
        "model": "demo-t5", "zero": 2, "learning_rate": 1e-4, "bf16": False, "freeze": ["a", "b"], "lora": None,
        "save_every": 10, "early_stopping": 3, "optim_args": "a=-1", "lr_scheduler_kwargs": {"min_lr": 0.1},
    }  # fmt: skip
    recipe = resolve(_words(settings), tmp_path)
    assert (recipe.spec.zero, recipe.spec.freeze, recipe.spec.save_every) == ("2", ["a", "b"], "10")
    assert recipe.hf["learning_rate"] == 1e-4
    assert recipe.hf["bf16"] is False
    assert recipe.hf["lr_scheduler_kwargs"] == {"min_lr": 0.1}
    assert not recipe.given("lora")


def test_setting_of_the_launcher_is_refused():
    with pytest.raises(UsageError, match=r"nproc= is not a setting of Trainer \(use dsrun launch --nproc\)"):
        _words({"nproc": 2})


def test_model_of_trainer_is_a_name_a_model_or_a_function():
    config = SimpleNamespace(model_type="llama")
    model = SimpleNamespace(config=config, parameters=lambda: [])
    assert _given("name", None, None, {}).model is None
    assert _given(model, "tokenizer", None, {}).config is config
    assert _given(model, "tokenizer", None, {}).model() is model
    assert _given(lambda: model, "tokenizer", config, {}).model() is model
    for wrong, tokenizer, words in (
        (lambda: model, "tokenizer", "cannot train a function .*with its config="),
        (3, "tokenizer", "cannot train a int"),
        (model, None, "needs the tokenizer"),
    ):
        with pytest.raises(UsageError, match=words):
            _given(wrong, tokenizer, None, {})


def test_given_rows_are_tables_whose_identity_is_their_content():
    def table(rows):
        return given_sources({"train": rows}).splits["train"]

    rows = [{"text": "a"}, {"text": "b"}]
    assert given_sources({}) is None
    assert table(rows).identity() == table(tuple(rows)).identity() != table(rows[:1]).identity()
    assert table(Dataset.from_list(rows)).table.num_rows == 2
    with pytest.raises(UsageError, match="train= of Trainer is not a sequence of rows"):
        table([1, 2])


def test_settings_that_contradict_what_is_given_are_refused():
    Given(rows={"train": []}).check(TrainSpec())
    with pytest.raises(UsageError, match="has rows, and its settings name data too"):
        Given(rows={"train": []}).check(TrainSpec(train_file=["x.jsonl"]))
    built = _given(SimpleNamespace(config=None, parameters=lambda: []), "tokenizer", None, {})
    built.check(TrainSpec(task="dpo", lora=4))
    with pytest.raises(UsageError, match="needs the model twice"):
        built.check(TrainSpec(task="dpo"))


@pytest.mark.train
def test_wrong_setting_ends_a_script_with_one_line(tmp_path):
    code = "from dsrun.train import Trainer; Trainer('demo-t5', learning_rat=1)"
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error:"))
    assert "--learning-rat" in line
    assert "did you mean --learning-rate" in line
    assert "Traceback" not in done.stderr
