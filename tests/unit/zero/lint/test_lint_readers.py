"""Findings that depend on who reads the file: the Trainer with its flags, DeepSpeed, and JSON itself."""

import json

import pytest

from dsrun.findings.translation import catalogue
from dsrun.zero.lint.accelerate import read_accelerate
from dsrun.zero.lint.config_check import check
from dsrun.zero.view import TrainingFlags
from tests.unit.zero.lint.lint_cases import CLIP, FILLED, MICRO, found, only, trainer, zero

# -- who reads it -------------------------------------------------------------------------------------------------


def test_missing_zero_optimization_stops_trainer_only():
    assert found({**MICRO, **CLIP}) == [("warning", "trainer_stops", "ds.json:1:1")]
    assert found({**MICRO, **CLIP}, target="deepspeed") == []
    assert ("error", "trainer_stops", "ds.json:1:1") in found({**MICRO, **CLIP}, target="trainer")


def test_bfloat16_key_is_ignored_under_trainer():
    config = {**zero(2), "bfloat16": {"enabled": True}}
    assert ("warning", "ignored_key", "bfloat16") in found(config, target="trainer")


def test_json_comments_are_errors_except_for_deepspeed():
    text = json.dumps(zero(2), indent=1).replace("4,", "4, // four").replace("\n}", ",\n}")
    assert [each.level for each in check(text)] == ["error", "error"]
    assert [each.level for each in check(text, target="deepspeed")] == ["warning", "warning"]


def test_repair_of_accelerates_yaml_is_translated():
    """It names the YAML's key, where that of a JSON names DeepSpeed's."""
    file = read_accelerate("deepspeed_config: {zero_stage: 3}", "accelerate.yaml")
    (found,) = [each for each in check(json.dumps(file.config)) if each.code == "zero3_no_gather_on_save"]
    fix = file.placed(found).fix
    assert "zero3_save_16bit_model" in fix
    assert catalogue("zh")(fix) != fix


def test_invalid_json_is_one_finding_with_position():
    (finding,) = check('{\n  "a": 1\n  "b": 2\n}', file="x.json")
    assert (finding.code, finding.where) == ("not_json", "x.json:3:3")
    assert "line 2" in finding.fix


@pytest.mark.parametrize("text", ["[]", "3", '"x"', "null"])
def test_json_that_is_no_object_is_an_error(text):
    assert [each.code for each in check(text)] == ["not_an_object"]


def test_duplicate_key_names_line_of_first():
    (finding,) = [each for each in check('{"a": 1,\n"a": 2}') if each.code == "duplicate_key"]
    assert finding.where == "a (ds.json:2)"
    assert "first in line 1" in finding.message


# -- training flags -----------------------------------------------------------------------------------------------


def flags(**given):
    return TrainingFlags(
        {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "learning_rate": 5e-5} | given,
        frozenset(given),
    )


def test_micro_batch_conflicts_with_flag():
    config = {**trainer(2), "train_micro_batch_size_per_gpu": 4}
    finding = only(config, "conflicts_with_flag", against=flags(per_device_train_batch_size=2))
    assert finding.level == "error"
    assert finding.fix == 'write "train_micro_batch_size_per_gpu": "auto", or --per_device_train_batch_size 4'
    assert found(config, against=flags(per_device_train_batch_size=4)) == []


def test_learning_rate_conflicts_with_flag_default():
    """A flag that was not given still has its default."""
    config = {**trainer(2), "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}
    assert "not given" in only(config, "conflicts_with_flag", against=flags()).message


def test_precision_conflicts_with_flag():
    config = {**trainer(2), "bf16": {"enabled": True, "check_grad_overflow": True}}
    assert found(config, against=flags()) == []
    assert only(config, "conflicts_with_flag", against=flags(fp16=True)).where.startswith("bf16.enabled")


def test_global_batch_conflict_needs_world_size():
    config = {**trainer(2), "train_batch_size": 16}
    assert "conflicts_with_flag" in {code for _, code, _ in found(config, against=flags(), world_size=4)}
    assert found(config, against=flags(), world_size=2) == []


def test_flags_overruled_by_config_have_no_effect():
    config = {**FILLED, "zero_optimization": {"stage": 2}, "scheduler": {"type": "WarmupLR", "params": {}}}
    codes = [code for _, code, _ in found(config, against=flags(lr_scheduler_type="cosine", max_grad_norm=0.5))]
    assert codes.count("flag_has_no_effect") == 2


def test_auto_find_batch_size_conflicts_with_zero3():
    config = trainer(3, stage3_gather_16bit_weights_on_model_save=True)
    assert only(config, "conflicts_with_flag", against=flags(auto_find_batch_size=True))


# -- what JSON can hold and nothing else can -----------------------------------------------------------------------

HUGE = 10**400
TINY = 1e-300


@pytest.mark.parametrize("world", [None, 2])
@pytest.mark.parametrize(
    ("sizes", "codes"),
    [
        ((HUGE, 4, 0.5), ["batch_mismatch"]),
        ((HUGE, 0.5, None), ["batch_mismatch"]),
        ((HUGE, None, 0.5), ["batch_mismatch"]),
        ((1.0, TINY, TINY), ["batch_mismatch"]),
        ((None, HUGE, 2), []),
    ],
)
def test_batch_sizes_of_extreme_value(sizes, codes, world):
    config = {name: size for name, size in zip(FILLED, sizes, strict=True) if size is not None}
    rows = found({**config, **CLIP}, world_size=world, target="deepspeed")
    assert [code for _, code, _ in rows if code.startswith("batch")] == codes


def test_bucket_size_too_large_for_float():
    config = zero(
        3, reduce_bucket_size=HUGE, stage3_param_persistence_threshold=HUGE, stage3_prefetch_bucket_size=-HUGE
    )
    rows = [each for each in check(json.dumps(config)) if each.code == "bucket_wastes_memory"]
    assert len(rows) == 2
    assert all(len(each.message) < 250 for each in rows)
    clipping = zero(2, compute_grad_norm=False) | {"gradient_clipping": HUGE}
    assert ("error", "breaks_later", "zero_optimization.compute_grad_norm") in found(clipping)


def test_batch_product_beyond_int_digit_limit():
    """A product with more digits than Python writes is still a finding."""
    config = {"train_batch_size": 1, "train_micro_batch_size_per_gpu": 10**4290, **CLIP}
    text = json.dumps({**config, "gradient_accumulation_steps": 10**4290})
    assert "batch_mismatch" in [each.code for each in check(text, world_size=8)]


def test_lone_surrogate_is_shown_as_escape():
    rows = check('{"\\ud800": 1, "zero_optimization": {"stage": "\\udfff"}}')
    assert r"\ud800 (ds.json:1)" in [each.where for each in rows]
    for each in rows:
        str(each.as_dict()).encode()


@pytest.mark.parametrize("word", ["nan", "inf", "1e999"])
def test_bucket_size_nan_or_inf_gets_no_fix(word):
    rows = check(json.dumps(zero(2, reduce_bucket_size=word)))
    assert [each.fix for each in rows if each.code == "wrong_type"] == [""]
