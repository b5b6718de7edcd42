"""Every key of DeepSpeed's models can be asked for, or is left out for a reason."""

from __future__ import annotations

import pytest

from dsrun.zero.generate.explain import meanings

# Keys of DeepSpeed 0.19 that no option reaches.
LEFT_OUT = {
    "zero_optimization": {
        "load_from_fp32_weights": "only false when fp32 weights of a checkpoint are to be thrown away",
        "elastic_checkpoint": "legacy; universal checkpoints take its place",
        "cpu_offload": "legacy name",
        "cpu_offload_param": "legacy name",
        "cpu_offload_use_pin_memory": "legacy name",
        "stage3_gather_fp16_weights_on_model_save": "legacy name",
        "legacy_stage1": "refused since 0.5.9",
        "override_module_apply": "internal to zero.Init",
        "log_trace_cache_warnings": "for DeepSpeed's own developers",
        "enable_sanity_checks": "for DeepSpeed's own developers",
    },
    "zero_optimization.zenflow": {"steps_per_epoch": "set by DeepSpeed itself"},
    "bf16": {},
    "fp16": {},
    "tensor_parallel": {
        "dtype": "follows bf16 and fp16",
        "tp": "holds process groups, made at run time",
        "tensor_parallel": "the same",
        "injection_policy_tuple": "holds classes",
        "partition_config": "a program of its own: rules for a model nobody has a preset for",
        "keep_module_on_host": "for inference",
        "replace_with_kernel_inject": "for inference",
        "kernel_inject": "for inference",
    },
    "compile": {
        "autoep_non_moe": "experimental, without DeepCompile",
        "free_activation_threshold": "tuning of the pass's authors",
        "debug_log": "for DeepSpeed's own developers",
        "sync_before_reduce": "for DeepSpeed's own developers",
        "sync_after_reduce": "for DeepSpeed's own developers",
        "sync_before_allgather": "for DeepSpeed's own developers",
        "sync_after_allgather": "for DeepSpeed's own developers",
        "keep_int_input_tensors": "for DeepSpeed's own developers",
        "keep_all_input_tensors": "for DeepSpeed's own developers",
    },
    "comet": {
        "samples_log_interval": "steps_per_print's",
        "api_key": "a secret; COMET_API_KEY",
        "experiment_key": "made by Comet",
        "online": "COMET's own environment",
        "mode": "COMET's own environment",
    },
}


BLOCKS = sorted(
    {
        *LEFT_OUT,
        "zero_optimization.offload_optimizer",
        "zero_optimization.offload_param",
        "zero_optimization.leaf_module",
        "comms_logger",
        "tensorboard",
        "csv_monitor",
        "wandb",
        "timers.throughput",
    }
)


def models():
    from deepspeed.comm.config import CommsLoggerConfig
    from deepspeed.compile.config import CompileConfig
    from deepspeed.monitor.config import CometConfig, CSVConfig, TensorBoardConfig, WandbConfig
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
    from deepspeed.runtime.zenflow.zenflow_config import ZenFlowConfig
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.runtime.zero.leaf_module_config import DeepSpeedZeroLeafModuleConfig
    from deepspeed.runtime.zero.offload_config import (
        DeepSpeedZeroOffloadOptimizerConfig,
        DeepSpeedZeroOffloadParamConfig,
    )
    from deepspeed.utils.config import DeepSpeedThroughputTimerConfig

    return {
        "zero_optimization": DeepSpeedZeroConfig,
        "zero_optimization.offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig,
        "zero_optimization.offload_param": DeepSpeedZeroOffloadParamConfig,
        "zero_optimization.zenflow": ZenFlowConfig,
        "zero_optimization.leaf_module": DeepSpeedZeroLeafModuleConfig,
        "bf16": DeepSpeedBF16Config,
        "fp16": DeepSpeedFP16Config,
        "tensor_parallel": TPTrainingConfig,
        "compile": CompileConfig,
        "comms_logger": CommsLoggerConfig,
        "tensorboard": TensorBoardConfig,
        "csv_monitor": CSVConfig,
        "wandb": WandbConfig,
        "comet": CometConfig,
        "timers.throughput": DeepSpeedThroughputTimerConfig,
    }


def names_of(model) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


@pytest.mark.parametrize("block", BLOCKS)
def test_every_config_key_has_option_or_reason(block):
    """Every key of DeepSpeed's models can be asked for, or is left out for a reason."""
    offered = {
        path.removeprefix(f"{block}.").split(".")[0] for path in meanings() if path.startswith(f"{block}.")
    }
    out = LEFT_OUT.get(block) or {}
    assert names_of(models()[block]) - offered - set(out) == set()
    assert all(out.values())


def test_every_offered_config_key_exists():
    assert set(models()) == set(BLOCKS)
    for block, model in models().items():
        offered = {path.removeprefix(f"{block}.") for path in meanings() if path.startswith(f"{block}.")}
        assert {name for name in offered if "." not in name} <= names_of(model), block
