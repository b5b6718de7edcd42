import json
import subprocess
import sys
from dataclasses import fields

import pytest

from dsrun.errors import UsageError
from dsrun.options import key_of
from dsrun.recipe.recipe import evaluates_while_training
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.recipe.resolve import explain, resolve, with_defaults


@pytest.fixture
def run_yaml(tmp_path):
    def write(text, *argv):
        (tmp_path / "run.yaml").write_text(text, encoding="utf-8")
        return resolve(["--config", "run.yaml", *argv], tmp_path)

    return write


def test_resolve_values_types_and_sources(tmp_path):
    recipe = resolve(["--model", "m", "--zero", "2", "--learning_rate", "1e-4"], tmp_path)
    assert recipe.spec == TrainSpec(model="m", zero="2")
    assert recipe.hf == {"learning_rate": 1e-4}
    assert recipe.sources["zero"] == recipe.sources["learning_rate"] == "command line"
    assert recipe.sources["offload"] == "default"
    assert set(recipe.sources) == {key_of(field) for field in fields(TrainSpec)} | {"learning_rate"}
    assert recipe.notices == ()


def test_precedence_command_line_json_yaml(tmp_path):
    """The command line wins over JSON, and JSON over YAML."""
    (tmp_path / "args.json").write_text(json.dumps({"seed": 2, "max_steps": 2, "config": "run.yaml"}))
    (tmp_path / "run.yaml").write_text("train: {model: m, seed: 3, max_steps: 3, save_steps: 3}\n")
    recipe = resolve(["args.json", "--seed", "1"], tmp_path)
    assert recipe.hf == {"seed": 1, "max_steps": 2, "save_steps": 3.0}
    assert recipe.sources["max_steps"] == "args.json"
    assert recipe.sources["save_steps"] == "run.yaml:1"


def test_source_names_run_file_as_given(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/run.yaml").write_text("train:\n  model: m\n")
    assert resolve(["--config=conf/run.yaml"], tmp_path).sources["model"] == "conf/run.yaml:2"


def test_same_flag_under_two_spellings(tmp_path):
    assert resolve(["--model", "m", "--model_name_or_path", "m"], tmp_path).spec.model == "m"
    assert resolve(["--model", "m", "--model", "n"], tmp_path).spec.model == "n"
    with pytest.raises(UsageError) as caught:
        resolve(["--model", "m", "--model_name_or_path", "n"], tmp_path)
    assert caught.value.message == "--model m and --model_name_or_path n contradict each other"


def test_removed_flag_contradicting_its_successor(tmp_path):
    with pytest.raises(UsageError) as caught:
        resolve(["--model", "m", "--evaluation_strategy", "epoch", "--eval_strategy", "steps"], tmp_path)
    assert caught.value.message == (
        "--evaluation_strategy (taken as --eval_strategy) epoch and --eval_strategy steps contradict each other"
    )


def test_contradiction_error_hides_secrets(tmp_path):
    with pytest.raises(UsageError) as caught:
        resolve(["--model", "m", "--hub_token", "hunter2", "--push_to_hub_token", "swordfish"], tmp_path)
    assert "hunter2" not in str(caught.value)
    assert "swordfish" not in str(caught.value)


def test_option_in_two_run_file_sections(run_yaml):
    with pytest.raises(UsageError, match=r"yaml:1: train\.zero 2 and run\.yaml:2: zero\.stage 3"):
        run_yaml("train: {model: m, zero: 2}\nzero: {stage: 3}\n")


def test_model_config_overrides_add_up(tmp_path):
    argv = ["--model", "m", "--from-scratch", "--model-config", "a=1", "b=2", "--model_config", "c=3"]
    assert resolve(argv, tmp_path).spec.config_override == ["a=1", "b=2", "c=3"]


@pytest.mark.parametrize(
    ("in_file", "argv", "gone"),
    [
        ("zero: 2, offload: cpu", ["--deepspeed", "ds.json"], ["zero", "offload"]),
        ("deepspeed: ds.json", ["--zero", "2"], ["deepspeed"]),
        ("per_device_train_batch_size: 2", ["--micro-batch-size", "4"], ["per_device_train_batch_size"]),
        ("global_batch_size: 64", ["--gradient_accumulation_steps", "4"], ["global_batch_size"]),
        ("max_steps: 100", ["--num_train_epochs", "1"], ["max_steps"]),
        ("bf16: true", ["--fp16"], ["bf16"]),
        ("max_source_length: 8, block_size: 8", ["--max-length", "4"], ["max_source_length", "block_size"]),
        ("dataset: wmt16, dataset_config: ro-en", ["--train-file", "a.json"], ["dataset", "dataset_config"]),
    ],
)
def test_command_line_overrides_related_run_file_flags(run_yaml, in_file, argv, gone):
    """The command line overrides what answers the same question in the run file."""
    recipe = run_yaml(f"train: {{model: m, {in_file}}}\n", *argv)
    assert not any(recipe.given(name) for name in gone)
    assert recipe.notices == tuple(f"run.yaml:1: train.{name} gives way to {argv[0]}" for name in gone)


def test_eval_steps_turns_evaluation_on(run_yaml, tmp_path):
    """--eval-steps asks for evaluation unless the strategy is `no` in so many words."""
    recipe = resolve(["--model", "m", "--eval-steps", "50"], tmp_path)
    assert recipe.hf == {"eval_steps": 50, "eval_strategy": "steps"}
    assert evaluates_while_training(recipe)
    recipe = run_yaml("train: {model: m, eval_steps: 50}\n")
    assert recipe.where("eval_strategy") == "run.yaml:1: eval_strategy"
    for text, argv in [
        ("eval_steps: 50", ["--eval-strategy", "no"]),
        ("eval_strategy: no", ["--eval-steps", "50"]),
    ]:
        recipe = run_yaml(f"train: {{model: m, {text}}}\n", *argv)
        assert recipe.hf["eval_strategy"] == "no", "what is said in words holds, wherever it stands"


def test_flag_switched_off_overrides_nothing(run_yaml):
    recipe = run_yaml("train: {model: m, bf16: true, num_train_epochs: 2}\n", "--no-fp16", "--max_steps", "-1")
    assert recipe.hf["bf16"] is True
    assert recipe.hf["num_train_epochs"] == 2.0


def test_validation_error_names_run_file_line(run_yaml):
    with pytest.raises(UsageError, match=r"run\.yaml:2: zero\.stage: '4' is not one of 0, 1, 2, 3, auto"):
        run_yaml("train: {model: m}\nzero: {stage: 4}\n")


def test_with_defaults_fills_only_missing_flags(tmp_path):
    """Defaults go under everything that was given."""
    recipe = resolve(["--model", "demo-t5", "--learning_rate", "1", "--global-batch-size", "8"], tmp_path)
    filled = with_defaults(
        recipe,
        {"learning_rate": 4e-3, "global_batch_size": 256, "num_beams": 2, "seed": 7, "dataset_name": "d"},
        "demo-t5",
    )
    assert filled.hf == {"learning_rate": 1.0, "seed": 7}
    assert (filled.spec.global_batch_size, filled.spec.num_beams, filled.spec.dataset) == (8, 2, "d")
    assert [filled.sources[name] for name in ("seed", "num_beams", "dataset")] == ["demo-t5"] * 3
    assert filled.sources["learning_rate"] == "command line"
    assert recipe.hf == {"learning_rate": 1.0}


def test_with_defaults_yields_to_related_flags(tmp_path):
    """Defaults give way to what answers the same question."""
    recipe = resolve(["--model", "demo-t5", "--num_train_epochs", "1", "--micro-batch-size", "2"], tmp_path)
    filled = with_defaults(recipe, {"max_steps": 100, "per_device_train_batch_size": 64}, "demo-t5")
    assert filled.hf == {"num_train_epochs": 1.0}
    again = with_defaults(with_defaults(recipe, {"seed": 1}, "first"), {"seed": 2}, "second")
    assert (again.hf["seed"], again.sources["seed"]) == (1, "first")


def test_with_defaults_repeats_no_notice(tmp_path):
    recipe = resolve(["--model", "m", "--lora", "4", "--from-scratch"], tmp_path)
    assert len(recipe.notices) == 1
    assert with_defaults(recipe, {"seed": 1}, "x").notices == recipe.notices


def test_with_defaults_rejects_unknown_flag(tmp_path):
    with pytest.raises(KeyError):
        with_defaults(resolve(["--model", "m"], tmp_path), {"modle": 1}, "demo")


def test_explain_shows_dsrun_defaults(tmp_path):
    """explain shows dsrun's defaults, and not those of the Trainer that it overrules."""
    rows = {name: value for name, value, _ in explain(resolve(["--model", "m", "--bf16", "false"], tmp_path))}
    assert rows["keep"] == 3
    assert rows["zero"].startswith("2")
    assert rows["predict_with_generate"] == "for seq2seq"
    assert rows["bf16"] is False


def test_explain_lists_every_flag_with_its_source(tmp_path):
    rows = explain(resolve(["--model", "m", "--seed", "1", "--token", "hunter2", "--debug", "x"], tmp_path))
    found = {name: (value, source) for name, value, source in rows}
    assert found["model"] == ("m", "command line")
    assert found["seed"] == (1, "command line")
    assert found["max_steps"] == (-1, "default")
    assert found["trainer_debug"] == ("x", "command line")
    assert found["token"] == ("***", "command line")
    assert found["hub_token"] == (None, "default")
    names = [name for name, _, _ in rows]
    assert len(names) == len(set(names))
    assert names.index("debug") < names.index("seed") < names.index("max_steps")


def test_resolve_imports_no_heavy_package(tmp_path):
    program = (
        "import sys; from pathlib import Path; from dsrun.recipe.resolve import resolve;"
        "resolve(['--model', 'm'], Path('.'));"
        "heavy = {'torch', 'transformers', 'numpy', 'pydantic', 'yaml', 'deepspeed'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
