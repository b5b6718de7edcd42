"""Gradients of many accumulation steps are summed in fp32, where that is cheap and DeepSpeed keeps the sum sharded."""

from __future__ import annotations

import json

import pytest

from dsrun.errors import UsageError
from dsrun.zero.generate.blocks import HardwareFacts
from dsrun.zero.generate.config import generate
from dsrun.zero.generate.explain import explain
from dsrun.zero.generate.presets import error_after, memory_of_sum
from dsrun.zero.generate.spec import ZeroSpec
from dsrun.zero.lint.config_check import check
from dsrun.zero.view import TrainingFlags

BATCH = {"global_batch_size": 64, "micro_batch_size": 1, "gpus": 8}
NVME = {"offload_optimizer": "nvme", "nvme_path": "/n"}
CPU = {"offload_optimizer": "cpu"}


def sum_of(**flags):
    return generate(ZeroSpec(**flags)).get("data_types", {}).get("grad_accum_dtype")


@pytest.mark.parametrize(
    "flags",
    [
        {"accumulation": 8},
        {"stage": 3, "accumulation": 64},
        {"stage": 3, "accumulation": 8, **CPU},
        {"precision": "bf16", "target": "deepspeed", "accumulation": 8},
        BATCH,
        {"accumulation": 1, "grad_accum_dtype": "fp32"},
        {"stage": 1, "accumulation": 8, "grad_accum_dtype": "fp32"},
    ],
)
def test_sums_in_fp32(flags):
    assert sum_of(**flags) == "fp32"


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"accumulation": 7},
        {**BATCH, "micro_batch_size": 2},
        {"accumulation": 8, "grad_accum_dtype": "model"},
        {"accumulation": 8, "preset": "conservative"},
        {"accumulation": 8, "precision": "fp16"},
        {"accumulation": 8, "precision": "fp32"},
        {"accumulation": 8, "bf16_master_weights": True},
        {"accumulation": 8, "optimizer": "muon"},
        {"accumulation": 8, "stage": 0},
        {"accumulation": 8, "stage": 1},
        {"accumulation": 8, **CPU},
        {"accumulation": 8, "stage": 3, "qgz": True},
        {"accumulation": 8, "stage": 3, "super_offload": True, **CPU},
        {"accumulation": 8, "stage": 3, **NVME},
    ],
)
def test_sums_as_the_model_computes(flags):
    """With few steps, and where a sum in fp32 would not be sharded, not be on the host, or has not been measured."""
    assert sum_of(**flags) is None


def test_explained_with_error_and_memory():
    spec = ZeroSpec(stage=3, global_batch_size=128, micro_batch_size=1, gpus=8)
    facts = HardwareFacts(hidden_size=4096, parameters=8 * 2**30)
    [row] = [each for each in explain(spec, facts) if each.key == "data_types.grad_accum_dtype"]
    assert "16 gradients" in row.why
    assert "0.48% after 16 steps (measured)" in row.why
    assert "2.0 GiB more GPU memory per rank" in row.why


def test_measured_error_of_the_next_lower_number_of_steps():
    assert [error_after(steps).partition(" after ")[0] for steps in (8, 15, 63, 64, 1000)] == [
        "0.36%", "0.36%", "0.48%", "0.85%", "1.57%",
    ]  # fmt: skip
    assert memory_of_sum(2**20, 4, "cpu") == "0.5 MiB more host memory per rank"


def test_fp32_sum_without_zero_is_refused():
    with pytest.raises(UsageError, match="without ZeRO a model in bf16 cannot add up"):
        sum_of(stage=0, precision="bf16", grad_accum_dtype="fp32")


def remarks(config, code, **known):
    return [each for each in check(json.dumps(config), **known) if each.code == code]


FILE = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}


def test_linter_names_bf16_sums_of_many_steps():
    many = {**FILE, "gradient_accumulation_steps": 16}
    [found] = remarks(many, "bf16_sum")
    assert (found.level, found.fix) == ("info", 'add "data_types": {"grad_accum_dtype": "fp32"}')
    assert "0.48% after 16 steps" in found.message
    assert not remarks({**many, "gradient_accumulation_steps": 4}, "bf16_sum")
    assert not remarks({**many, "bf16": {"enabled": False}}, "bf16_sum")
    assert not remarks({**many, "data_types": {"grad_accum_dtype": "fp32"}}, "bf16_sum")
    assert not remarks({**many, "zero_optimization": {"stage": 1}}, "bf16_sum")


def test_linter_counts_the_steps_of_the_flags():
    auto = {**FILE, "gradient_accumulation_steps": "auto", "bf16": {"enabled": "auto"}}
    for steps, bf16, number in ((16, True, 1), (2, True, 0), (16, False, 0)):
        known = TrainingFlags({"gradient_accumulation_steps": steps, "bf16": bf16}, frozenset(("bf16",)))
        assert len(remarks(auto, "bf16_sum", against=known)) == number


def test_linter_warns_of_sum_that_is_not_offloaded():
    """_build_compact_grad_partition_buffer takes the GPU's memory whatever is offloaded."""
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    summed = {**FILE, "zero_optimization": zero, "data_types": {"grad_accum_dtype": "fp32"}}
    [found] = remarks(summed, "conflict")
    assert found.level == "warning"
    assert "stays on the GPU" in found.message
