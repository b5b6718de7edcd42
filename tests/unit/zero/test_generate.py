"""The generated JSON: what DeepSpeed itself makes of it, and what must never be left to defaults that move."""

from __future__ import annotations

import json

import pytest

from dsrun.errors import UsageError
from dsrun.zero.generate.config import SHIPPED, generate, render_json
from dsrun.zero.generate.presets import LARGEST_BUCKET, PRESETS, SMALLEST_BUCKET, reduce_bucket
from dsrun.zero.generate.spec import ZeroSpec, from_offload


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_deepspeed_accepts_shipped_configs(name):
    """DeepSpeed's own models refuse unknown keys in sub-blocks; "auto" is filled as the Trainer does."""
    from deepspeed.runtime.config import DeepSpeedConfig

    config = generate(SHIPPED[name], hidden_size=1024)
    config |= {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1}
    config |= {"gradient_clipping": 1.0}
    for block in ("bf16", "fp16"):
        config[block] |= {"enabled": block == "bf16"}
    parsed = DeepSpeedConfig(config)
    assert parsed.zero_optimization_stage == SHIPPED[name].stage
    assert parsed.zero_config.reduce_bucket_size == reduce_bucket(PRESETS["balanced"], 1024, None)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_moved_defaults_are_written_out(stage):
    config = generate(from_offload(stage, "cpu" if stage else "none"))
    assert config["gradient_clipping"] == "auto"
    assert config["bf16"]["check_grad_overflow"] is True
    if stage:
        assert config["zero_optimization"]["offload_optimizer"]["pin_memory"] is True


def test_zero3_gathers_weights_on_save():
    assert generate(from_offload(3, "none"))["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"]


@pytest.mark.parametrize(("hidden", "elements"), [(64, SMALLEST_BUCKET), (4096, 4096 * 4096), (32768, LARGEST_BUCKET)])
def test_bucket_size_follows_hidden_size_within_bounds(hidden, elements):
    assert reduce_bucket(PRESETS["balanced"], hidden, None) == elements


def test_offload_param_only_under_zero3():
    assert "offload_param" not in generate(from_offload(2, "cpu"))["zero_optimization"]
    assert generate(from_offload(3, "cpu"))["zero_optimization"]["offload_param"]["device"] == "cpu"


def test_own_optimizer_is_not_replaced():
    config = generate(from_offload(2, "cpu", own_optimizer=True))
    assert "optimizer" not in config
    assert config["zero_force_ds_cpu_optimizer"] is False


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (ZeroSpec(stage=4), "ZeRO stage 4 does not exist"),
        (from_offload(0, "cpu"), "--offload-optimizer does nothing under --zero 0"),
        (from_offload(2, "nvme", "/nvme"), "nothing goes to NVMe"),
        (from_offload(3, "nvme"), "--nvme-path"),
    ],
)
def test_incompatible_options_are_refused(spec, words):
    with pytest.raises(UsageError) as error:
        generate(spec)
    assert words in str(error.value)


def test_rendered_config_is_json_with_final_newline():
    text = render_json(generate(from_offload(3, "cpu")))
    assert text.endswith("}\n")
    assert json.loads(text) == generate(from_offload(3, "cpu"))
