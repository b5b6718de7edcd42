from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.utils.cpp_extension
from deepspeed.ops.op_builder.builder import OpBuilder

from dsrun.errors import ToolError, UsageError
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.base.distributed import DistributedWorld
from dsrun.train.loop.engine import (
    assert_engine_matches,
    configuration,
    copy_defaults,
    prepare_ops,
    refuse_on_cpu,
)
from dsrun.zero.generate.config import generate
from dsrun.zero.generate.spec import from_offload
from dsrun.zero.ops import extension_cache, required_ops, stage_of


class DeepSpeedEngine:
    """Stands for the engine: what is judged is its name and the stage it reports."""

    def __init__(self, stage):
        self.stage = stage

    def zero_optimization_stage(self):
        return self.stage


class DistributedDataParallel: ...


def test_configured_engine_and_zero_stage_accepted():
    assert_engine_matches(DeepSpeedEngine(2), {"zero_optimization": {"stage": 2}})
    assert_engine_matches(DistributedDataParallel(), None)


@pytest.mark.parametrize(
    ("trained", "config", "words"),
    [
        (DistributedDataParallel(), {"zero_optimization": {"stage": 2}}, "without DeepSpeed"),
        (DeepSpeedEngine(0), {"zero_optimization": {"stage": 2}}, "runs stage 0"),
        (DeepSpeedEngine(2), None, "plain DDP"),
    ],
)
def test_other_engine_or_zero_stage_rejected(trained, config, words):
    with pytest.raises(ToolError, match=words):
        assert_engine_matches(trained, config)


@pytest.mark.parametrize(
    ("spec", "ops"),
    [
        (from_offload(2, "none"), []),
        (from_offload(2, "cpu"), ["CPUAdamBuilder"]),
        (from_offload(3, "nvme", "/n"), ["CPUAdamBuilder", "AsyncIOBuilder"]),
        (from_offload(2, "cpu", own_optimizer=True), []),
    ],
)
def test_required_ops_by_offload(spec, ops):
    """Only the ops that a run needs are compiled."""
    assert required_ops(generate(spec)) == ops


@pytest.mark.parametrize(
    ("spec", "ops"),
    [
        (from_offload(2, "cpu"), []),
        (from_offload(3, "cpu"), []),
        (from_offload(3, "nvme", "/n"), ["AsyncIOBuilder"]),
    ],
)
def test_required_ops_of_evaluation_alone(spec, ops):
    """Evaluation alone has no optimizer to compile."""
    assert required_ops(generate(spec), training=False) == ops


def test_required_ops_of_fused_adam():
    assert required_ops({"optimizer": {"type": "AdamW"}}) == ["FusedAdamBuilder"]
    assert required_ops({"optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}) == []


def test_zero_stage_2_is_default_and_0_is_plain_ddp():
    assert stage_of(configuration(TrainSpec(), {}, 64)) == 2
    assert configuration(TrainSpec(zero="0"), {}, 64) is None


def test_user_optimizer_kept_with_cpu_offload():
    config = configuration(TrainSpec(zero="2", offload="cpu"), {"optim": "adafactor"}, 64)
    assert "optimizer" not in config


@pytest.mark.parametrize(("name", "own"), [("adamw_torch", True), ("adamw_torch_fused", True), ("adamw_8bit", False)])
def test_cpu_adam_replaces_torch_adamw_only(name, own):
    config = configuration(TrainSpec(zero="2", offload="cpu"), {"optim": name}, 64)
    assert ("optimizer" in config) == own


def test_optimizer_defaults_passed_through_wrappers():
    """Schedules find the first rate through every wrapper."""
    inner = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    outer = SimpleNamespace(optimizer=SimpleNamespace(optimizer=inner))
    copy_defaults(outer)
    assert outer.defaults is outer.optimizer.defaults is inner.defaults


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "ds.json:1:2: not JSON"), ("[]", "not a JSON object"), ("[" * 100_000, "nested too deeply")],
)
def test_broken_deepspeed_json_error_names_line(tmp_path, text, words):
    (tmp_path / "ds.json").write_text(text)
    with pytest.raises(UsageError, match=words):
        configuration(TrainSpec(), {"deepspeed": str(tmp_path / "ds.json")}, 64)


def test_missing_deepspeed_json_error(tmp_path):
    with pytest.raises(UsageError, match=r"nope\.json: No such file"):
        configuration(TrainSpec(), {"deepspeed": str(tmp_path / "nope.json")}, 64)


@pytest.mark.parametrize(
    ("fact", "other_value"),
    [
        ("versions", lambda packages: dict.fromkeys(packages, "9.9.9")),
        ("versions", lambda packages: {each: "9.9.9" if each == "deepspeed" else version(each) for each in packages}),
        ("cpu_flags", lambda: frozenset({"sse2"})),
    ],
    ids=["versions", "deepspeed", "processor"],
)
def test_compiled_ops_cache_per_environment(tmp_path, monkeypatch, fact, other_value):
    """Also per processor: DeepSpeed compiles for that of the machine, and many machines may share a home folder."""
    home = {"XDG_CACHE_HOME": str(tmp_path)}
    one, other = (extension_cache(home, prefix) for prefix in ("/venvs/one", "/venvs/other"))
    assert one != other
    assert one == extension_cache(home, "/venvs/one")
    assert one.parent == tmp_path / "dsrun" / "torch_extensions"
    monkeypatch.setattr(f"dsrun.zero.ops.{fact}", other_value)
    assert extension_cache(home, "/venvs/one") != one


def test_compiled_ops_cache_set_by_user(tmp_path):
    assert extension_cache({"TORCH_EXTENSIONS_DIR": str(tmp_path)}) == tmp_path


def test_torchrun_worker_finds_ninja_of_its_environment(monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin")
    prepare_ops({}, DistributedWorld(0, 1, 0, 1, "cuda"), notify=print)
    assert os.environ["PATH"] == f"{Path(sys.executable).parent}:/usr/bin"


@pytest.mark.parametrize("shared", [False, True])
def test_ops_compiled_without_debug_info_in_own_folder(shared, monkeypatch, tmp_path):
    """DeepSpeed by itself would compile them again in a folder of the user's, for its own flags."""
    for name, value in {"XDG_CACHE_HOME": "cache", "TORCH_EXTENSIONS_DIR": "shared" if shared else ""}.items():
        monkeypatch.setenv(name, str(tmp_path / value) if value else "")
    compiled = []
    monkeypatch.setattr(torch.utils.cpp_extension, "load", lambda **given: compiled.append(given["extra_cflags"]))
    monkeypatch.setattr(OpBuilder, "_loaded_ops", {})
    config = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}, "optimizer": {"type": "AdamW"}}
    for _ in range(2):  # the second finds the variable that the first has set
        OpBuilder._loaded_ops.clear()
        prepare_ops(config, DistributedWorld(0, 1, 0, 1, "cpu"), notify=print)
    last = [[flag for flag in flags if flag.startswith("-g")][-1] for flags in compiled]
    assert last == 2 * ["-g" if shared else "-g0"]


def test_communication_op_of_cpu_left_out_unprobed(monkeypatch):
    """DeepSpeed neither compiles its shared-memory op, a minute, nor tries a compiler for all others."""
    import deepspeed.ops
    from deepspeed.comm.torch import build_shm_op

    def probe():
        raise AssertionError("the operations are probed")

    monkeypatch.setattr(deepspeed.ops, "_probe_compatible_ops", probe)
    monkeypatch.delitem(vars(deepspeed.ops), "__compatible_ops__", raising=False)
    prepare_ops({}, DistributedWorld(rank=0, size=1, local_rank=0, local_size=1, device="cpu"), notify=print)
    assert build_shm_op() is None


@pytest.mark.parametrize(
    ("block", "refused"),
    [
        ({"offload_optimizer": {"device": "cpu", "super_offload": True}}, True),
        ({"zero_quantized_weights": True}, True),
        ({"zero_quantized_gradients": True}, True),
        ({"zero_hpz_partition_size": 2}, False),
        ({"offload_optimizer": {"device": "cpu"}}, False),
    ],
)
def test_what_only_gpus_can_do_is_refused_on_cpus(block, refused):
    refuse_on_cpu({"zero_optimization": {"stage": 3, **block}}, "cuda")
    if refused:
        with pytest.raises(UsageError, match="needs GPUs"):
            refuse_on_cpu({"zero_optimization": {"stage": 3, **block}}, "cpu")
    else:
        refuse_on_cpu({"zero_optimization": {"stage": 3, **block}}, "cpu")


def test_plain_training_is_not_refused_on_cpus():
    refuse_on_cpu(None, "cpu")
