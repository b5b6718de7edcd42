import importlib.util
import json
from dataclasses import fields
from pathlib import Path

import pytest

from dsrun.errors import nearest
from dsrun.options import key_of
from dsrun.recipe.flags import all_flags, by_spelling, hf_flags, own_flags
from dsrun.recipe.recipe_spec import TrainSpec

TOOL = Path(__file__).parents[3] / "tools" / "harvest_hf_flags.py"


@pytest.fixture(scope="module")
def harvester():
    spec = importlib.util.spec_from_file_location("harvest_hf_flags", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_hf_flags_match_installed_transformers(harvester):
    assert harvester.main(["--check"]) == 0


def test_hf_flags_check_notices_difference(harvester, tmp_path, monkeypatch):
    """The check notices a difference, and the harvest mends it."""
    target = tmp_path / "hf_flags.json"
    monkeypatch.setattr(harvester, "TARGET", target)
    target.write_text("{}")
    assert harvester.main(["--check"]) == 3
    assert harvester.main([]) == 0
    assert harvester.main(["--check"]) == 0


def test_hf_flags_hold_no_help_texts(harvester):
    """The harvest contains no sentences of Transformers."""
    content = json.loads(harvester.TARGET.read_text(encoding="utf-8"))
    assert {key for flag in content["flags"].values() for key in flag} == {
        "type",
        "default",
        "choices",
        "optional",
    }


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("learning_rate", "float"),
        ("max_steps", "int"),
        ("bf16", "bool"),
        ("tf32", "bool"),
        ("run_name", "str"),
        ("label_names", "list"),
        ("report_to", "list"),
        ("optim_target_modules", "list|str"),
        ("lr_scheduler_kwargs", "json"),
        ("parallelism_config", "json"),
        ("liger_kernel_config", "json"),
        ("fsdp", "bool|str"),
        ("include_num_input_tokens_seen", "bool|str"),
        ("generation_config", "str"),
    ],
)
def test_training_argument_kinds(name, kind):
    assert hf_flags()[name].kind == kind


def test_enum_arguments_become_choices():
    assert hf_flags()["eval_strategy"].choices == ("no", "steps", "epoch")
    assert "cosine" in hf_flags()["lr_scheduler_type"].choices


def test_own_flags_follow_train_spec():
    assert list(own_flags()) == [key_of(field) for field in fields(TrainSpec)]
    assert own_flags()["zero"].choices == ("0", "1", "2", "3", "auto")
    assert own_flags()["zero"].optional
    assert own_flags()["lora_targets"].kind == "list"
    assert own_flags()["lora_targets"].default == []
    assert not own_flags()["offload"].optional
    assert all(flag.group for flag in own_flags().values())


def test_own_and_hf_spellings_share_one_flag():
    table = by_spelling()
    assert table["output_dir"] is table["output"]
    assert table["resume_from_checkpoint"] is table["resume"]
    assert table["debug"].owner == "dsrun"
    assert table["trainer_debug"].key == "debug"
    assert table["deepspeed"].owner == "hf"
    assert table["per_device_train_batch_size"].owner == "hf"
    assert len(table) == sum(len(flag.spellings) for flag in all_flags().values())


def test_every_training_argument_has_a_flag():
    content = json.loads((TOOL.parents[1] / "dsrun/recipe/hf_flags.json").read_text(encoding="utf-8"))
    assert set(content["flags"]) <= set(by_spelling())


@pytest.mark.parametrize(
    ("typed", "meant"), [("--modle", "model"), ("--learning-rat", "learning_rate"), ("qqqqqq", None)]
)
def test_nearest_flag_suggestion(typed, meant):
    assert nearest(typed, by_spelling()) == meant
