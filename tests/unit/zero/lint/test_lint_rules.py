"""What each rule finds, where, and what it advises. tests/integration/test_lint_verdicts.py asks DeepSpeed itself."""

import json

import pytest

from dsrun.hardware.gpu_facts import lookup
from dsrun.zero.lint.config_check import check
from dsrun.zero.view import TrainingFlags
from tests.unit.zero.lint.lint_cases import CLIP, MICRO, found, only, trainer, zero


def test_clean_config_has_no_finding():
    assert found(zero(2)) == []
    assert found(trainer(3, stage3_gather_16bit_weights_on_model_save=True)) == []


def test_finding_names_key_file_and_line():
    finding = only(zero(2, overlap_com=True), "unknown_key", file="my.json")
    assert finding.level == "error"
    assert finding.where == "zero_optimization.overlap_com (my.json:6)"
    assert finding.fix == "did you mean overlap_comm?"


def test_findings_come_in_file_order():
    """All findings come at once, in the order of the file."""
    config = {
        "nebula": {},
        "fp16": {"enabled": "maybe"},
        "optimizer": {"type": "Adm"},
        "zero_optimization": {"stage": 5},
    }
    lines = [int(each.where.rstrip(")").split(":")[1]) for each in check(json.dumps(config, indent=1))]
    assert lines == sorted(lines)
    assert {"removed_key", "wrong_type", "unknown_optimizer", "not_a_choice", "batch_missing"} <= {
        code for _, code, _ in found(config)
    }


# -- keys ---------------------------------------------------------------------------------------------------------


def test_unknown_key_ignored_by_deepspeed_is_a_warning():
    assert found({**zero(2), "gradient_cliping": 1.0}) == [("warning", "unknown_key", "gradient_cliping")]


def test_optimizer_without_type():
    """An optimizer whose "type" is mistyped is no optimizer."""
    assert found({**zero(2), "optimizer": {"typ": "AdamW", "params": {}}}) == [
        ("warning", "optimizer_needs", "optimizer"),
        ("warning", "unknown_key", "optimizer.typ"),
    ]


def test_unknown_key_of_another_block_fix():
    assert only({**zero(2), "offload_optimizer": {"device": "cpu"}}, "unknown_key").fix == (
        "it belongs in zero_optimization"
    )
    assert only({**MICRO, "bf16": {"loss_scale": 0}}, "unknown_key").fix == "it belongs in fp16"


def test_unknown_key_beside_right_spelling_fix():
    """A second spelling beside the right one is to be removed."""
    assert only({**zero(2), "zero_optimisation": {}}, "unknown_key").fix.startswith("remove it: zero_optimization is")


@pytest.mark.parametrize(
    ("key", "value"),
    [("cpu_offload", True), ("cpu_offload_param", True), ("cpu_offload_use_pin_memory", True)],
)
def test_legacy_offload_keys_are_warnings(key, value):
    config = zero(3, stage3_gather_16bit_weights_on_model_save=True, **{key: value})
    assert ("warning", "legacy_key", f"zero_optimization.{key}") in found(config)


def test_misspelt_legacy_offload_key_is_an_error():
    finding = only(zero(3, cpu_offload_params=True), "unknown_key")
    assert finding.level == "error"
    assert "offload_param" in finding.fix


def test_legacy_and_new_offload_key_together():
    assert ("error", "given_twice", "zero_optimization.cpu_offload") in found(
        zero(2, cpu_offload=True, offload_optimizer={"device": "cpu"})
    )


# -- values -------------------------------------------------------------------------------------------------------


def test_quoted_number_converted_by_deepspeed_is_a_warning():
    """A number in quotes is a warning where DeepSpeed converts it."""
    finding = only(zero("2"), "wrong_type")
    assert finding.level == "warning"
    assert finding.fix == 'write "stage": 2'


def test_quoted_number_not_converted_is_an_error():
    finding = only({"train_batch_size": "8"}, "wrong_type")
    assert finding.level == "error"
    assert finding.fix == "write 8 without quotes"


def test_quoted_false_is_a_warning():
    """DeepSpeed takes any string for true, "false" as well."""
    finding = only({**zero(2), "prescale_gradients": "false"}, "wrong_type")
    assert (finding.level, finding.where.partition(" ")[0]) == ("warning", "prescale_gradients")


def test_invalid_choice_suggests_nearest():
    assert only(zero(2, offload_optimizer={"device": "CPU"}), "not_a_choice").fix == 'did you mean "cpu"?'


def test_bucket_size_as_whole_float_is_accepted():
    """People write sizes as 5e7."""
    assert found(zero(2, reduce_bucket_size=5e7)) == []


# -- auto ---------------------------------------------------------------------------------------------------------


def test_unfilled_auto_is_an_error_for_trainer():
    """An "auto" that nobody fills is an error in a file for the Trainer."""
    finding = only(trainer(2, allgather_bucket_size="auto"), "auto_nobody_fills")
    assert finding.level == "error"
    assert "500000000" in finding.fix


def test_unfilled_auto_is_a_warning_without_trainer_autos():
    """An "auto" is a warning in a file that holds none the Trainer fills."""
    assert found(zero(2, allgather_bucket_size="auto")) == [
        ("warning", "auto_nobody_fills", "zero_optimization.allgather_bucket_size")
    ]


def test_deepspeed_auto_is_an_error_under_trainer():
    config = trainer(2, offload_optimizer={"device": "cpu", "pin_memory": True}, zenflow={"select_strategy": "auto"})
    assert ("error", "auto_nobody_fills", "zero_optimization.zenflow.select_strategy") in found(config)


def test_gather_on_save_auto_means_false():
    codes = {code for _, code, _ in found(trainer(3, stage3_gather_16bit_weights_on_model_save="auto"))}
    assert codes == {"auto_is_a_constant", "zero3_no_gather_on_save"}


# -- batch sizes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "world", "codes"),
    [
        ((16, 4, 2), 2, []),
        ((16, 4, 2), 4, ["batch_mismatch"]),
        ((16, 4, 2), None, ["batch_world_size"]),
        ((18, 4, 2), None, ["batch_mismatch"]),
        ((16, 4, None), 2, []),
        ((16, 3, None), 2, ["batch_mismatch"]),
        ((16, None, 4), 4, []),
        ((16, None, 5), 4, ["batch_mismatch"]),
        ((16, None, None), 3, ["batch_mismatch"]),
        ((None, 4, 2), 7, []),
        ((None, 4, 0), 7, ["batch_mismatch"]),
        ((None, None, 2), 1, ["batch_missing"]),
    ],
)
def test_batch_arithmetic(sizes, world, codes):
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    config = {name: size for name, size in zip(names, sizes, strict=True) if size is not None}
    assert [code for _, code, _ in found({**config, **CLIP}, world_size=world, target="deepspeed")] == codes


def test_batch_arithmetic_with_sequence_parallel():
    sizes = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}
    shared = {**sizes, **CLIP, "sequence_parallel_size": 2}
    assert found(shared, world_size=8, target="deepspeed") == []
    assert "batch_mismatch" in {code for _, code, _ in found(shared, world_size=4, target="deepspeed")}


# -- ZeRO, offloading, precision ----------------------------------------------------------------------------------


def test_zero3_has_to_gather_on_save():
    assert found(zero(3)) == [
        ("warning", "zero3_no_gather_on_save", "zero_optimization.stage3_gather_16bit_weights_on_model_save")
    ]
    assert found(zero(3, gather_16bit_weights_on_model_save=True)) == []


def test_offload_ignored_by_stage():
    assert ("warning", "offload_needs_stage", "zero_optimization.offload_param") in found(
        zero(2, offload_param={"device": "cpu", "pin_memory": True})
    )
    assert ("warning", "offload_needs_stage", "zero_optimization.offload_optimizer.device") in found(
        zero(2, offload_optimizer={"device": "nvme", "nvme_path": "/nvme", "pin_memory": True})
    )


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (None, "nvme_path_missing"),
        ("nvme", "nvme_path_odd"),
        ("/dev/shm/x", "nvme_path_odd"),
        ("/home/me", "nvme_path_odd"),
    ],
)
def test_nvme_paths(path, code):
    block = {"device": "nvme", "pin_memory": True} | ({"nvme_path": path} if path else {})
    config = zero(3, offload_param=block, stage3_gather_16bit_weights_on_model_save=True)
    assert [each for _, each, _ in found(config)] == [code]


def test_nvme_path_accepted():
    block = {"device": "nvme", "pin_memory": True, "nvme_path": "/local_nvme"}
    assert found(zero(3, offload_param=block, stage3_gather_16bit_weights_on_model_save=True)) == []


def test_large_and_tiny_bucket_sizes():
    assert "9.3 GiB" in only(zero(2, reduce_bucket_size=5_000_000_000), "bucket_wastes_memory").message
    assert only(zero(2, allgather_bucket_size=1000), "bucket_too_small").level == "warning"
    assert "sharded" in only(zero(3, stage3_param_persistence_threshold=10**9), "bucket_wastes_memory").message


def test_stage3_keys_at_stage2():
    quantized = {"zero_quantized_weights": True, "zero_quantized_gradients": True}
    config = zero(2, stage3_max_live_parameters=1000000000, zero_hpz_partition_size=8, **quantized)
    assert found(config) == [
        ("info", "no_effect", "zero_optimization.stage3_max_live_parameters"),
        *(("warning", "needs_stage", f"zero_optimization.{key}") for key in ("zero_hpz_partition_size", *quantized)),
    ]
    assert found(zero(2, zero_hpz_partition_size=1, **dict.fromkeys(quantized, False))) == []


def test_t5_in_fp16():
    config = {**zero(2), "fp16": {"enabled": True}}
    assert only(config, "t5_fp16", model_type="mt5").level == "warning"
    assert found(config, model_type="llama") == []
    flags = TrainingFlags({"fp16": True}, frozenset({"fp16"}))
    assert only(trainer(2), "t5_fp16", model_type="t5", against=flags)


def test_bf16_needs_ampere():
    config = {**zero(2), "bf16": {"enabled": True, "check_grad_overflow": True}}
    assert only(config, "bf16_needs_ampere", gpu=lookup("V100")).level == "warning"
    assert found(config, gpu=lookup("A100")) == []


def test_moved_defaults_are_info():
    config = {
        **MICRO,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    }
    assert [level for level, code, _ in found(config) if code == "moved_default"] == ["info"] * 3


# -- optimizers and schedulers ------------------------------------------------------------------------------------


def test_removed_optimizer_suggests_replacement():
    finding = only({**zero(1), "optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-3}}}, "unknown_optimizer")
    assert finding.fix == "use AdamW"


def test_muon_ignores_unknown_params():
    muon = {"type": "Muon", "params": {"lr": 0.02, "per_head_muon": True, "foreach": False, "nesterov": True}}
    finding = only(zero(2, reduce_scatter=False) | {"optimizer": muon}, "optimizer_param")
    assert (finding.level, finding.where.split(" ")[0]) == ("warning", "optimizer.params.nesterov")


@pytest.mark.parametrize(("lr", "fix"), [("1e-3", "write 0.001 without quotes"), ("nan", ""), ("inf", "")])
def test_quoted_optimizer_param_is_repaired_if_it_is_finite(lr, fix):
    """JSON has no NaN and no infinity to write instead."""
    assert only({**zero(1), "optimizer": {"type": "AdamW", "params": {"lr": lr}}}, "optimizer_param").fix == fix


@pytest.mark.parametrize("name", ["lr", "eps", "weight_decay"])
def test_optimizer_param_below_0_is_refused_by_classes_of_torch(name):
    def optimizer(**params):
        return {**zero(1), "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, **params}}}

    finding = only(optimizer(torch_adam=True, **{name: -1}), "optimizer_param")
    assert (finding.level, finding.where.split(" ")[0]) == ("error", f"optimizer.params.{name}")
    assert "optimizer_param" not in [code for _, code, _ in found(optimizer(**{name: -1}))]


def test_optimizer_param_of_another_optimizer():
    params = {"lr": 1e-3, "beta": [0.9, 0.99]}
    assert (
        only({**zero(1), "optimizer": {"type": "AdamW", "params": params}}, "optimizer_param").fix
        == "did you mean betas?"
    )


def test_scheduler_warmup_max_lr_overrides_optimizer_lr():
    config = {
        **zero(1),
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 100, "warmup_num_steps": 10}},
    }
    assert only(config, "scheduler_warmup").fix == 'add "warmup_max_lr": 0.0001'
    config["scheduler"]["params"]["warmup_max_lr"] = 1e-3
    assert "the scheduler's holds" in only(config, "scheduler_warmup").message


@pytest.mark.parametrize(
    ("kind", "name", "wrong", "right"),
    [
        ("LRRangeTest", "lr_range_test_step_size", (0, -1, 2.5), 200),
        ("OneCycle", "cycle_first_step_size", (0, -1), 2.5),
        ("OneCycle", "cycle_second_step_size", (-1,), 0),
    ],
)
def test_scheduler_step_sizes_are_above_zero(kind, name, wrong, right):
    fixed = {"cycle_min_lr": 1e-5, "cycle_max_lr": 1e-3} if kind == "OneCycle" else {}
    for value in (*wrong, right):
        config = {**zero(1), "scheduler": {"type": kind, "params": fixed | {name: value}}}
        told = [code for _, code, _ in found(config) if code == "scheduler_param"]
        assert len(told) == (value != right), value


def test_scheduler_warmup_longer_than_training():
    params = {"total_num_steps": 10, "warmup_num_steps": 100, "warmup_max_lr": 1e-3}
    config = {**zero(1), "scheduler": {"type": "WarmupDecayLR", "params": params}}
    assert only(config, "scheduler_warmup").level == "warning"


@pytest.mark.parametrize(
    "text", ["<batch>", "{{ batch }}", "${BATCH}", "$BATCH", "...", "YOUR_BATCH", "TODO", "__BATCH__", "%(batch)s"]
)
def test_placeholder_is_called_so(text):
    """Under the code of the error that it makes."""
    finding = only({"train_batch_size": text}, "wrong_type")
    assert finding.message == f'train_batch_size is "{text}", a placeholder'
    assert finding.fix == "replace it with a value"


def test_placeholder_that_deepspeed_takes_is_a_warning():
    away = {"device": "nvme", "nvme_path": "/path/to/nvme"}
    assert only(zero(3, offload_optimizer=away), "placeholder").level == "warning"
    usual = zero(3, offload_optimizer={**away, "nvme_path": "/local/nvme/your-name"})
    assert not [each for each in found(usual) if each[1] == "placeholder"]


@pytest.mark.parametrize("value", ["<batch>", "{{ batch }}", "$BATCH", "...", "{...}", "%d", "__BATCH__"])
def test_placeholder_without_quotes(value):
    (finding,) = check(f'{{"train_batch_size": {value}}}')
    assert (finding.code, finding.message) == ("not_json", f"not JSON: {value} is a placeholder, not a value")


def test_checkpoint_writer_needs_deepspeeds_launcher():
    """deepspeed/runtime/model_checkpointing/utils.py reads CROSS_SIZE."""
    finding = only({**zero(2), "checkpoint": {"writer": {"type": "fast"}}}, "trainer_stops")
    assert (finding.level, finding.where.partition(" ")[0]) == ("warning", "checkpoint.writer")
