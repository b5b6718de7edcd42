"""`dsrun config upgrade`: old keys become today's, everything else stays."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsrun.errors import UsageError
from dsrun.zero.lint.config_check import check
from dsrun.zero.lint.upgrade import upgrade
from dsrun.zero.schema import removed

MICRO = '"train_micro_batch_size_per_gpu": 4'

OLD = """{
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": 1.50,
    "nebula": {"enabled": false},
    "bf16": {"enabled": "auto", "loss_scale": 0, "hysteresis": 2},
    "optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-5, "betas": [0.9, 0.999], "freeze_step": 400}},
    "zero_optimization": {
        "stage": 3,
        "cpu_offload": true,
        "cpu_offload_params": true,
        "cpu_offload_use_pin_memory": false,
        "reduce_bucket_size": 5e8,
        "stage3_gather_fp16_weights_on_model_save": true,
        "mics_shard_size": 8
    },
    "wall_clock_breakdown": false
}
"""
NEW = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": 1.5,
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.999]}},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": False},
        "offload_param": {"device": "cpu", "pin_memory": False},
        "reduce_bucket_size": 5e8,
        "stage3_gather_16bit_weights_on_model_save": True,
        "zero_hpz_partition_size": 8,
    },
    "wall_clock_breakdown": False,
}


def errors(text):
    return [each for each in check(text) if each.level == "error"]


def test_upgrade_old_file_in_place():
    found = upgrade(OLD)
    assert found.text == json.dumps(NEW, indent=4) + "\n"
    assert errors(OLD)
    assert not errors(found.text)
    assert [each.path for each in found.changes] == [
        "nebula",
        "zero_optimization.cpu_offload",
        "zero_optimization.cpu_offload_params",
        "zero_optimization.cpu_offload_use_pin_memory",
        "zero_optimization.stage3_gather_fp16_weights_on_model_save",
        "zero_optimization.mics_shard_size",
        "bf16.loss_scale",
        "bf16.hysteresis",
        "optimizer.type",
        "optimizer.params.freeze_step",
    ]


def test_upgrade_leaves_current_file_byte_for_byte():
    text = '{"b":1 ,\n\t"a" : [ 1,2 ],"zero_optimization":{"stage":2}}'
    assert upgrade(text).text == text
    assert upgrade(text).changes == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"amp": {"enabled": True, "opt_level": "O1"}}, {"fp16": {"enabled": True}}),
        ({"amp": {"enabled": "auto", "opt_level": "auto"}}, {"fp16": {"enabled": "auto"}}),
        ({"amp": {"enabled": True, "opt_level": "O0"}}, {}),
        ({"amp": {"enabled": False}}, {}),
        ({"amp": {"enabled": True}, "bf16": {"enabled": True}}, {"bf16": {"enabled": True}}),
    ],
)
def test_upgrade_apex_to_fp16(old, new):
    micro = {"train_micro_batch_size_per_gpu": 4}
    assert json.loads(upgrade(json.dumps(micro | old)).text) == micro | new


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"stage": 3, "mics_shard_size": 8}, {"stage": 3, "zero_hpz_partition_size": 8}),
        ({"stage": 3, "mics_shard_size": -1}, {"stage": 3}),
        ({"stage": 2, "mics_shard_size": 8}, {"stage": 2}),
        ({"stage": 3, "mics_shard_size": 8, "zero_hpz_partition_size": 4}, {"stage": 3, "zero_hpz_partition_size": 4}),
    ],
)
def test_upgrade_mics_to_hpz(old, new):
    """MiCS sharded the model inside groups of ranks; hpZ is what is left of that."""
    assert json.loads(upgrade(json.dumps({"zero_optimization": old})).text) == {"zero_optimization": new}


@pytest.mark.parametrize("name", [name for name in removed("") if name != "amp"])
def test_upgrade_drops_removed_blocks(name):
    found = upgrade(f'{{{MICRO}, "{name}": {{"enabled": true}}}}')
    assert json.loads(found.text) == {"train_micro_batch_size_per_gpu": 4}
    assert [each.path for each in found.changes] == [name]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"cpu_offload": True}, {"offload_optimizer": {"device": "cpu", "pin_memory": True}}),
        ({"cpu_offload": False}, {}),
        ({"cpu_offload": "auto"}, {}),
        ({"cpu_offload": "true"}, {"offload_optimizer": {"device": "cpu", "pin_memory": True}}),
        ({"cpu_offload": "maybe"}, {"cpu_offload": "maybe"}),
        (
            {"cpu_offload": True, "offload_optimizer": {"device": "nvme"}},
            {"offload_optimizer": {"device": "nvme"}},
        ),
        ({"cpu_offload_param": True}, {"offload_param": {"device": "cpu", "pin_memory": True}}),
        (
            {"offload_param": {"device": "cpu"}, "cpu_offload_use_pin_memory": True},
            {"offload_param": {"device": "cpu", "pin_memory": True}},
        ),
        ({"cpu_offload_use_pin_memory": True}, {}),
        (
            {"stage3_gather_fp16_weights_on_model_save": True},
            {"stage3_gather_16bit_weights_on_model_save": True},
        ),
        (
            {
                "stage3_gather_fp16_weights_on_model_save": True,
                "stage3_gather_16bit_weights_on_model_save": False,
            },
            {"stage3_gather_16bit_weights_on_model_save": False},
        ),
        ({"legacy_stage1": True}, {}),
        ({"zeropp_loco_param": {}}, {}),
    ],
)
def test_upgrade_zero_optimization_keys(old, new):
    text = json.dumps({"zero_optimization": {"stage": 3, **old}})
    assert json.loads(upgrade(text).text)["zero_optimization"] == {"stage": 3, **new}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            {"zero_optimization": True, "allgather_size": 5},
            {"zero_optimization": {"stage": 1, "allgather_bucket_size": 5}},
        ),
        ({"zero_optimization": False}, {"zero_optimization": {"stage": 0}}),
        ({"bfloat16": {"enabled": True}}, {"bf16": {"enabled": True}}),
        ({"bf16": None, "bfloat16": {"enabled": True}}, {"bf16": {"enabled": True}}),
        ({"bf16": {"enabled": True}, "bfloat16": {}}, {"bf16": {"enabled": True}}),
        ({"fp32_allreduce": True}, {"communication_data_type": "fp32"}),
        ({"fp32_allreduce": False}, {}),
        (
            {"optimizer": {"type": "Adam", "params": {"lr": 1, "max_grad_norm": 0.5}}},
            {"optimizer": {"type": "Adam", "params": {"lr": 1}}, "gradient_clipping": 0.5},
        ),
        (
            {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}}},
            {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 1}}},
        ),
        (
            {"elasticity": {"enabled": True, "micro_batch_sizes": [2, 4, 6]}},
            {"train_micro_batch_size_per_gpu": 6},
        ),
    ],
)
def test_upgrade_top_level_keys(old, new):
    assert json.loads(upgrade(json.dumps(old)).text) == new


def test_upgrade_lists_comments_and_trailing_commas():
    found = upgrade('{\n  // four\n  "a": 1,\n}')
    assert found.text == '{\n  "a": 1\n}\n'
    assert [str(each) for each in found.changes] == [
        "line 2: comments left out (accelerate reads strict JSON)",
        "line 3: commas after the last member left out (accelerate reads strict JSON)",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "x.json:1:1: not JSON"),
        ("[]", "x.json: not a JSON object"),
        ('{"zero_optimization": true, "gradient_clipping": 1e400}', "x.json holds NaN or a number above"),
    ],
)
def test_upgrade_refuses_what_is_no_config(text, message):
    with pytest.raises(UsageError, match=message):
        upgrade(text, file="x.json")


# A value that was wrong under its old name is wrong under its new one, with another code.
# An "auto" that moves makes a file the Trainer's.
# `allgather_size: true` is a bucket of 1 element under its new name, and odd.
MAY_COME = {
    "conflict",
    "wrong_type",
    "not_an_object",
    "unknown_key",
    "breaks_later",
    "untested_optimizer",
    "trainer_stops",
    "given_twice",
}
SWITCH = st.sampled_from([True, False, None, "auto", "true", 0, "maybe", {}, 3.0, 5e8])
ZERO = st.dictionaries(
    st.sampled_from(
        ["stage", "cpu_offload", "cpu_offload_param", "cpu_offload_params", "cpu_offload_use_pin_memory",
         "offload_param", "offload_optimizer", "stage3_gather_fp16_weights_on_model_save",
         "stage3_gather_16bit_weights_on_model_save",
         "mics_shard_size", "legacy_stage1", "overlap_comm"]
    ),
    SWITCH | st.fixed_dictionaries({"device": st.sampled_from(["cpu", "nvme", 1])}),
)  # fmt: skip
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "zero_optimization": ZERO | SWITCH,
        "bf16": st.dictionaries(st.sampled_from(["enabled", "loss_scale", "check_overflow"]), SWITCH) | SWITCH,
        "bfloat16": st.just({"enabled": True}) | SWITCH,
        "allgather_size": SWITCH,
        "amp": SWITCH,
        "elasticity": st.just({"micro_batch_sizes": [1, 2]}) | SWITCH,
        "fp32_allreduce": SWITCH,
        "communication_data_type": SWITCH,
        "gradient_clipping": SWITCH,
        "optimizer": st.fixed_dictionaries(
            {"type": st.sampled_from(["OneBitAdam", "ZeroOneAdam", "OneBitLamb", "FusedAdam", "Adam", 7])},
            optional={
                "params": st.dictionaries(st.sampled_from(["lr", "max_grad_norm", "freeze_step"]), SWITCH) | SWITCH
            },
        )
        | SWITCH,
        "scheduler": st.fixed_dictionaries({"params": st.dictionaries(st.just("warmup_num_steps"), SWITCH) | SWITCH}),
        "mine": SWITCH,
    },
)


@settings(max_examples=400, derandomize=True, deadline=None)
@given(CONFIGS, st.sampled_from([None, 2, 4, "\t"]))
def test_upgrade_is_idempotent_and_adds_no_error(config, indent):
    """Upgrading twice changes nothing more, and never adds an error."""
    text = json.dumps(config, indent=indent)
    once = upgrade(text)
    twice = upgrade(once.text)
    assert twice.text == once.text
    assert twice.changes == ()
    # Of bf16 and bfloat16 one is left, in the place of either.
    kept = [key for key in config if key in json.loads(once.text) and key != "bf16"]
    assert [key for key in json.loads(once.text) if key in kept] == kept
    before, after = ({(each.code, each.where.split(" ")[0]) for each in errors(t)} for t in (text, once.text))
    assert {code for code, _ in after} <= {code for code, _ in before} | MAY_COME


def test_upgrade_keeps_line_ends_and_indent():
    text = '// mine\r\n{\r\n    "bfloat16": {\r\n        "enabled": true\r\n    },\r\n    "train_batch_size": 8\r\n}'
    assert upgrade(text).text == (
        '{\r\n    "bf16": {\r\n        "enabled": true\r\n    },\r\n    "train_batch_size": 8\r\n}\r\n'
    )
    found = upgrade('{ # mine\n\t"bfloat16": {"enabled": true}}\n').text
    assert found == '{\n\t"bf16": {\n\t\t"enabled": true\n\t}\n}\n'


@pytest.mark.parametrize("word", [r"\u00e9", r"\ud800", "é", r"é \ud800"])
def test_upgrade_keeps_non_ascii_text_and_escapes(word):
    text = f'{{"nebula": {{}}, "mine": "{word}", "{word}": 1}}'
    found = upgrade(text).text
    found.encode()
    assert json.loads(found) == {"mine": json.loads(f'"{word}"'), json.loads(f'"{word}"'): 1}
    assert text.isascii() <= found.isascii()


def test_upgrade_check_grad_overflow_wins():
    text = '{"bf16": {"enabled": true, "check_overflow": false, "check_grad_overflow": true}}'
    found = upgrade(text)
    assert json.loads(found.text) == {"bf16": {"enabled": True, "check_grad_overflow": True}}
    assert [str(each) for each in found.changes] == ["bf16.check_overflow: left out (check_grad_overflow says it)"]
