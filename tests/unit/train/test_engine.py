from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dsrun.errors import ToolError, UsageError
from dsrun.recipe.spec import TrainSpec
from dsrun.train.engine import (
    assert_in_charge,
    configuration,
    extension_cache,
    pass_on_defaults,
    prepare_ops,
    required_ops,
    stage_of,
)
from dsrun.train.world import World
from dsrun.zero.generate import generate
from dsrun.zero.spec import from_offload


class DeepSpeedEngine:
    """Stands for the engine: what is judged is its name and the stage it reports."""

    def __init__(self, stage):
        self.stage = stage

    def zero_optimization_stage(self):
        return self.stage


class DistributedDataParallel: ...


def test_the_engine_and_stage_that_were_asked_for_pass():
    assert_in_charge(DeepSpeedEngine(2), {"zero_optimization": {"stage": 2}})
    assert_in_charge(DistributedDataParallel(), None)


@pytest.mark.parametrize(
    ("trained", "config", "words"),
    [
        (DistributedDataParallel(), {"zero_optimization": {"stage": 2}}, "without DeepSpeed"),
        (DeepSpeedEngine(0), {"zero_optimization": {"stage": 2}}, "runs stage 0"),
        (DeepSpeedEngine(2), None, "plain DDP"),
    ],
)
def test_anything_else_is_an_error(trained, config, words):
    with pytest.raises(ToolError, match=words):
        assert_in_charge(trained, config)


@pytest.mark.parametrize(
    ("spec", "ops"),
    [
        (from_offload(2, "none"), []),
        (from_offload(2, "cpu"), ["CPUAdamBuilder"]),
        (from_offload(3, "nvme", "/n"), ["CPUAdamBuilder", "AsyncIOBuilder"]),
        (from_offload(2, "cpu", own_optimizer=True), []),
    ],
)
def test_only_the_ops_a_run_needs_are_compiled(spec, ops):
    assert required_ops(generate(spec)) == ops


@pytest.mark.parametrize(
    ("spec", "ops"),
    [
        (from_offload(2, "cpu"), []),
        (from_offload(3, "cpu"), []),
        (from_offload(3, "nvme", "/n"), ["AsyncIOBuilder"]),
    ],
)
def test_evaluation_alone_has_no_optimizer_to_compile(spec, ops):
    assert required_ops(generate(spec), training=False) == ops


def test_deepspeeds_own_adam_on_the_gpu_needs_its_kernel():
    assert required_ops({"optimizer": {"type": "AdamW"}}) == ["FusedAdamBuilder"]
    assert required_ops({"optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}) == []


def test_zero_2_is_the_default_and_0_is_plain_ddp():
    assert stage_of(configuration(TrainSpec(), {}, 64)) == 2
    assert configuration(TrainSpec(zero="0"), {}, 64) is None


def test_an_optimizer_of_the_users_choice_survives_offload():
    config = configuration(TrainSpec(zero="2", offload="cpu"), {"optim": "adafactor"}, 64)
    assert "optimizer" not in config


@pytest.mark.parametrize(
    ("name", "own"), [("adamw_torch", True), ("adamw_torch_fused", True), ("adamw_8bit", False)]
)
def test_cpu_adam_stands_in_for_torchs_own_adamw_alone(name, own):
    config = configuration(TrainSpec(zero="2", offload="cpu"), {"optim": name}, 64)
    assert ("optimizer" in config) == own


def test_schedules_find_the_first_rate_through_every_wrapper():
    inner = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    outer = SimpleNamespace(optimizer=SimpleNamespace(optimizer=inner))
    pass_on_defaults(outer)
    assert outer.defaults is outer.optimizer.defaults is inner.defaults


@pytest.mark.parametrize(("text", "words"), [("{", "ds.json:1:2: not JSON"), ("[]", "no JSON object")])
def test_a_broken_file_is_named_with_its_place(tmp_path, text, words):
    (tmp_path / "ds.json").write_text(text)
    with pytest.raises(UsageError, match=words):
        configuration(TrainSpec(), {"deepspeed": str(tmp_path / "ds.json")}, 64)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"nope\.json: No such file"):
        configuration(TrainSpec(), {"deepspeed": str(tmp_path / "nope.json")}, 64)


def test_every_environment_has_its_own_folder_of_compiled_ops(tmp_path, monkeypatch):
    home = {"XDG_CACHE_HOME": str(tmp_path)}
    one, other = (extension_cache(home, prefix) for prefix in ("/venvs/one", "/venvs/other"))
    assert one != other
    assert one == extension_cache(home, "/venvs/one")
    assert one.parent == tmp_path / "dsrun" / "torch_extensions"
    monkeypatch.setattr("dsrun.train.engine.version", lambda package: "9.9.9")
    assert extension_cache(home, "/venvs/one") != one


def test_a_folder_of_compiled_ops_that_the_user_set_is_used(tmp_path):
    assert extension_cache({"TORCH_EXTENSIONS_DIR": str(tmp_path)}) == tmp_path


def test_a_worker_of_torchrun_finds_the_environments_own_ninja(monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin")
    prepare_ops({}, World(0, 1, 0, 1, "cuda"), say=print)
    assert os.environ["PATH"] == f"{Path(sys.executable).parent}:/usr/bin"
