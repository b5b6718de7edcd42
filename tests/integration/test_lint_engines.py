"""Errors that only DeepSpeed's engine shows are errors there, and configs without one take their steps.

One process builds an engine for each config on one rank and takes two steps.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsrun.zero.lint.codes import CODES
from dsrun.zero.lint.config_check import check
from tests.forkserver.ranks import Ranks
from tests.integration.lint_truth import deepspeed_says

ROOT = Path(__file__).parents[2]
# torch's own Adam: DeepSpeed's would be compiled first.
ADAM = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}


CYCLE = {"cycle_min_lr": 1e-5, "cycle_max_lr": 1e-3}
OFFLOADED = {"offload_optimizer": {"device": "cpu"}}
ZENFLOW = {"select_strategy": "step", "select_interval": 8}
# Refused before an optimizer is made, so DeepSpeed's own is not compiled.
OWN_ADAM = {"type": "AdamW", "params": {"lr": 1e-3}}
ODD_INTERVALS = [
    ZENFLOW | {"select_interval": "auto"},
    ZENFLOW | {"select_interval": 2, "update_interval": 4},
    {"select_interval": 8},
]
FIXED_SCALE = {"enabled": True, "loss_scale": 128}
UNTESTED = {"zero_allow_untested_optimizer": True}
BF16_MASTER = {"enabled": True, "bf16_master_weights_and_grads": True}


def config(zero: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1, "optimizer": ADAM}
    return found | ({} if zero is None else {"zero_optimization": zero}) | keys


def adam(**params: Any) -> dict[str, Any]:
    return {"optimizer": {"type": "AdamW", "params": ADAM["params"] | params}}


def warmup(kind: str = "WarmupLR", **params: Any) -> dict[str, Any]:
    return {"scheduler": {"type": kind, "params": params}}


RUN = [
    config(),
    *[config({"stage": stage}) for stage in (0, 1, 2, 3)],
    *[config({"stage": stage}, bf16={"enabled": True}) for stage in (0, 1, 2, 3)],
    config({"stage": 2, "offload_param": {"device": "cpu"}}),
    config({"stage": 0, "offload_optimizer": {"device": "cpu"}}),
    config({"stage": 2, "zero_quantized_gradients": True, "zero_hpz_partition_size": 2}),
    config({"stage": 2, "reduce_bucket_size": 1000, "allgather_bucket_size": 0, "round_robin_gradients": True}),
    config({"stage": 2}, optimizer={"type": "SGD", "params": {"lr": 0.1}}, zero_allow_untested_optimizer=True),
    config({"stage": 2}, gradient_clipping=-1),
    config({"stage": 1}, prescale_gradients=True, gradient_predivide_factor=2.0),
    config({"stage": 2}, prescale_gradients=True, gradient_allreduce_op="SUM"),
    config({"stage": 2}, optimizer={"type": "SGD", "params": {"lr": 0.1}}, zero_allow_untested_optimizer="false"),
    config({"stage": 3, "reduce_scatter": False}, gradient_predivide_factor=2.0),
    config({"stage": 0}, prescale_gradients=True, gradient_predivide_factor=0),
    *[config({"stage": 1}, gradient_predivide_factor=each) for each in (0, "2")],
    config({"stage": 1}, sequence_parallel_size=2),
    config(gradient_clipping=0, steps_per_print=10.0, prescale_gradients=True, memory_breakdown=False),
    config({"stage": 1}, gradient_clipping=0.5, wall_clock_breakdown=1, communication_data_type="fp32"),
    config({"stage": 2, "compute_grad_norm": False}, gradient_clipping=0),
    config({"stage": 1}, data_types={"grad_accum_dtype": "fp32"}, bf16={"enabled": True}),
    config(data_types={"param_dtype": "bf16"}, bf16={"enabled": True}, log_level="ERROR"),
    config(torch_autocast={"enabled": True, "dtype": "bf16"}, timers={"throughput": {"enabled": False}}),
    config(**warmup(warmup_num_steps=1, warmup_max_lr=1e-3)),
    config({"stage": 2}, **warmup("WarmupDecayLR", total_num_steps=5, warmup_num_steps=10, warmup_max_lr=1e-3)),
    config(**warmup("WarmupCosineLR", total_num_steps=5, warmup_num_steps=2, warmup_type="linear")),
    config(**warmup("StepLR", step_size=2)),
    config(optimizer={"type": "Adagrad", "params": {"lr": 0.1, "lr_decay": 0.1}}),
    config(optimizer={"type": "AdamW"} | {"params": {"torch_adam": True, "foreach": False}}),
    config(sequence_parallel_size=1, managed_gradient_accumulation=False),
    config(
        optimizer={"type": "RMSprop", "params": {"lr": 0.1, "momentum": 0.5}},
        flops_profiler={"enabled": True},
    ),
]
FAIL = [
    *[
        ("conflict", case)
        for case in (
            config({"stage": 2, "allgather_bucket_size": 7}),
            config({"stage": 2}, prescale_gradients=True),
            config({"stage": 2}, prescale_gradients="false"),
            config({"stage": 3}, prescale_gradients=1),
            config({"stage": 2}, gradient_predivide_factor=2.0),
            config({"stage": 2}, gradient_predivide_factor="2"),
            *[
                config({"stage": stage, "reduce_scatter": False}, gradient_predivide_factor=each)
                for stage in (0, 1, 2, 3)
                for each in (0, "2")
            ],
            *[config({"stage": 2, "zenflow": flow, **OFFLOADED}, optimizer=OWN_ADAM) for flow in ODD_INTERVALS],
            config({"stage": 3, "zero_quantized_gradients": True, "reduce_scatter": False}),
            config({"stage": 2}, optimizer={"type": "Lamb", "params": {"lr": 0.1}}, fp16=FIXED_SCALE, **UNTESTED),
            config({"stage": 2, "compute_grad_norm": False, **OFFLOADED}, gradient_clipping=0),
            config(
                {"stage": 1, "compute_grad_norm": False},
                gradient_clipping=0,
                bf16={"enabled": True},
                data_types={"grad_accum_dtype": "fp32"},
            ),
            config({"stage": 3}, optimizer={"type": "Muon", "params": ADAM["params"]}),
            config({"stage": 2}, bf16=BF16_MASTER),
            config({"stage": 2, **OFFLOADED}, bf16=BF16_MASTER),
            config({"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}),
            config(
                {"stage": 2, **OFFLOADED, "zenflow": ZENFLOW},
                optimizer={"type": "SGD", "params": {"lr": 0.1}},
                zero_allow_untested_optimizer=True,
            ),
        )
    ],
    ("breaks_later", config(gradient_clipping="1.0")),
    ("breaks_later", config({"stage": 2}, gradient_clipping=None)),
    ("breaks_later", config(steps_per_print="10")),
    ("breaks_later", config(steps_per_print=0)),
    ("breaks_later", config(log_level="loud")),
    ("breaks_later", config(log_level=2)),
    ("breaks_later", config(sequence_parallel_size="2")),
    ("breaks_later", config(sequence_parallel_size=-1)),
    ("breaks_later", config(flops_profiler={"enabled": True, "profile_step": "1"})),
    ("breaks_later", config(data_types={"grad_accum_dtype": "half precision"})),
    ("breaks_later", config(data_types={"param_dtype": "bf16"})),
    ("breaks_later", config(data_types={"grad_accum_dtype": "fp32"}, bf16={"enabled": True})),
    ("breaks_later", config(data_types={"grad_accum_dtype": "bf16"})),
    ("breaks_later", config({"stage": 2, "compute_grad_norm": False})),
    ("breaks_later", config({"stage": 1, "legacy_stage1": True})),
    ("breaks_later", config({"stage": 1, "overlap_comm": True}, managed_gradient_accumulation=False)),
    ("breaks_later", config({"stage": 2, "zenflow": {}})),
    ("nvme_path_missing", config({"stage": 3, "offload_param": {"device": "nvme"}})),
    ("nvme_path_missing", config({"stage": 3, "offload_optimizer": {"device": "nvme"}})),
    ("unknown_optimizer", config(optimizer={"type": "OneBitAdam", "params": {"lr": 1e-3}})),
    ("unknown_optimizer", config(optimizer={"type": "sgd", "params": {"lr": 1e-3}})),
    ("untested_optimizer", config({"stage": 1}, optimizer={"type": "SGD", "params": {"lr": 0.1}})),
    ("optimizer_param", config(optimizer={"type": "SGD", "params": {"lr": 0.1, "betas": [0.9, 0.99]}})),
    ("optimizer_param", config(**adam(momentum=0.9))),
    ("optimizer_param", config(**adam(lr="1e-3"))),
    ("optimizer_param", config(**adam(lr="auto"))),
    ("optimizer_param", config(**adam(betas=[0.9]))),
    ("optimizer_param", config(**adam(betas=[0.9, 1.0]))),
    ("optimizer_param", config(**adam(max_grad_norm=0))),
    *[("optimizer_param", config(**adam(**{each: -1}))) for each in ("lr", "eps", "weight_decay")],
    ("optimizer_param", config(optimizer={"type": "SGD", "params": {"lr": -0.1}})),
    ("unknown_scheduler", config(**warmup("WarmupLinearLR"))),
    ("unknown_scheduler", config({"stage": 2}, **warmup("CosineAnnealingLR", T_max=2))),
    ("scheduler_param", config(scheduler={"type": "WarmupLR"})),
    ("scheduler_param", config(scheduler={"type": "LRRangeTest", "params": {"lr_range_test_step_size": 0}})),
    ("scheduler_param", config(scheduler={"type": "OneCycle", "params": CYCLE | {"cycle_first_step_size": 0}})),
    ("scheduler_param", config(scheduler={"type": "OneCycle", "params": CYCLE | {"cycle_second_step_size": -1}})),
    ("scheduler_param", config(**warmup("WarmupDecayLR", warmup_num_steps=10))),
    ("scheduler_param", config(**warmup("WarmupCosineLR", total_num_steps=5, warmup_max_lr=1e-3))),
    ("scheduler_warmup", config(**warmup(warmup_num_steps=0))),
    ("scheduler_warmup", config(**warmup(warmup_num_steps=10.0))),
    ("scheduler_warmup", config(**warmup(warmup_num_steps="auto"))),
    ("scheduler_warmup", config(**warmup(warmup_max_lr="1e-3"))),
]


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """Config as JSON -> the error that its engine ends in, empty for none."""
    configs = [*RUN, *[each for _, each in FAIL]]
    folder = tmp_path_factory.mktemp("engines")
    (folder / "configs").write_text(json.dumps(configs))
    args = [folder / "configs", folder / "answers"]
    Ranks(folder / "logs", "tests.integration.lint_engines", args, count=1).wait()
    answers = json.loads((folder / "answers").read_text())
    return {json.dumps(each): answer for each, answer in zip(configs, answers, strict=True)}


def errors(config):
    found = check(json.dumps(config), target="deepspeed", world_size=1)
    return [each for each in found if each.level == "error"]


@pytest.mark.parametrize("config", RUN, ids=lambda each: json.dumps(each)[36:110])
def test_lint_reports_no_error_where_engine_runs(config, engines):
    """A config that the engine runs has no error."""
    assert engines[json.dumps(config)] == ""
    assert errors(config) == []


@pytest.mark.parametrize(("code", "config"), FAIL, ids=lambda each: each if isinstance(each, str) else "")
def test_lint_reports_errors_only_the_engine_raises(code, config, engines):
    """What only the engine refuses is an error too."""
    assert deepspeed_says(json.loads(json.dumps(config))) == ""
    assert engines[json.dumps(config)] != ""
    assert [each.code for each in errors(config)] == [code]


def test_lint_engine_error_codes_are_all_covered():
    """Every error code that only the engine shows has a config that provokes it."""
    late = {name for name, code in CODES.items() if code.stops == "DeepSpeed, in its engine" and "error" in code.levels}
    # Only the Trainer builds an engine without an optimizer from a block without a type.
    assert late - {"optimizer_needs"} == {code for code, _ in FAIL}
