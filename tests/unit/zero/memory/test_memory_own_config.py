"""What a configuration of the user's own takes: stage, offloading, micro batch, optimizer, or a DeepSpeed JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dsrun.cli.options import declared_in
from dsrun.errors import UsageError
from dsrun.zero.memory.own_config import with_deepspeed
from dsrun.zero.memory.peak import ZeroStrategy, gpu
from dsrun.zero.memory.plan import choose, plan
from dsrun.zero.memory.plan_request import is_place
from dsrun.zero.memory.rank.activations import LIGER, activations
from dsrun.zero.memory.rank.optimizers import state_bytes
from tests.unit.zero.memory.test_memory_plan import LLAMA, ZERO_2, ask

command = declared_in("plan/command.toml")

AUTO = {"train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto", "gradient_accumulation_steps": "auto"}


def config(**zero):
    return {"zero_optimization": zero, "bf16": {"enabled": True}, **AUTO}


def test_fixed_micro_batch_is_neither_raised_nor_lowered():
    made = plan(ask(stage=2, offload="none", micro_batch=2, checkpointing="on"))
    (only,) = made.rows
    assert (only.strategy.stage, only.micro_batch) == (2, 2)
    assert only.gpu == gpu(made.request, only.strategy, 2)
    free = plan(ask(stage=2, offload="none", checkpointing="on"))
    assert free.rows[0].micro_batch > 2


def test_fixed_configuration_that_does_not_fit_says_what_would():
    made = plan(ask(stage=2, micro_batch=4096))
    assert made.choice is None
    assert {each.strategy.stage for each in made.rows} == {2}
    assert made.remedies[0].startswith("without --micro-batch-size 4096: ZeRO-2")
    crowded = plan(ask("l4:2", stage=0, length=1024, micro_batch=1, host_memory=500.0))
    assert any(each.startswith("without --zero 0: ZeRO-") for each in crowded.remedies), crowded.remedies


@pytest.mark.parametrize("fixed", [{"stage": 0, "offload": "cpu"}, {"stage": 2, "offload": "nvme"}])
def test_place_that_the_stage_does_not_have_rejected(fixed):
    with pytest.raises(UsageError, match=r"DeepSpeed has no --zero \d --offload (cpu|nvme)"):
        ask(**fixed)


def test_global_batch_must_divide_by_gpus_and_micro_batch():
    with pytest.raises(UsageError, match=r"4 GPUs with micro batch 3 \(use --global-batch-size 24 or 36\)"):
        ask(global_batch=32, micro_batch=3)


def test_offloaded_optimizer_leaves_zero_3_parameters_on_the_gpu():
    request = ask()
    here, optimizer, both = (
        gpu(request, ZeroStrategy(stage=3, offload=place, checkpointing=False), 1).states
        for place in ("none", "optimizer", "cpu")
    )
    assert optimizer.gpu.parameters == here.gpu.parameters > both.gpu.parameters
    assert optimizer.gpu.optimizer == optimizer.host.parameters == 0
    assert optimizer.host.optimizer == both.host.optimizer == here.gpu.optimizer


@pytest.mark.parametrize("offload", ["optimizer", "cpu"])
def test_zero_auto_keeps_to_the_offloading_that_was_asked_for(offload):
    chosen = choose(ask("l4:2", host_memory=500.0, length=4096), offload=offload)
    assert is_place(chosen.stage, chosen.offload, offload)


@pytest.mark.parametrize(
    ("name", "stage", "moments"),
    [("adamw_8bit", 2, 2 + 8 / 256), ("lion_32bit", 2, 4), ("sgd", 3, 0), ("adafactor", 2, 4), ("adafactor", 0, 0)],
)
def test_optimizer_states_by_name(name, stage, moments):
    strategy = ZeroStrategy(stage=stage, offload="none", checkpointing=False)
    usual, other = (gpu(ask(optimizer=each), strategy, 1).states.gpu for each in ("adamw_torch", name))
    assert other.optimizer == pytest.approx(usual.optimizer * moments / 8)
    assert (other.parameters, other.master) == (usual.parameters, usual.master)


def test_unknown_optimizer_rejected():
    with pytest.raises(UsageError, match=r"--optim adamw_8bits: .*\(did you mean adamw_8bit\?\)"):
        ask(optimizer="adamw_8bits")


def test_plain_ddp_trains_weights_in_the_dtype_they_are_loaded_in():
    plain = ZeroStrategy(stage=0, offload="none", checkpointing=False)
    full, half = (gpu(ask(weights=width), plain, 1) for width in (4, 2))
    assert 2 * half.states.gpu.total == full.states.gpu.total
    assert half.buffers.autocast == 0 < full.buffers.autocast
    assert gpu(ask(weights=2), ZERO_2, 1) == gpu(ask(), ZERO_2, 1)


def test_chunked_loss_takes_no_more_than_a_few_hidden_states():
    request = ask(liger=LIGER)
    few, many = (activations(request.model, request.work(size, stage=2, checkpointing=True)).logits for size in (1, 8))
    whole = activations(request.model, ask().work(8, stage=2, checkpointing=True)).logits
    assert many < whole / 3
    tokens = 7 * request.length
    assert many - few <= 2 * tokens * request.model.hidden * (1 + 2)  # a chunk has up to twice the bytes


def test_deepspeed_file_fixes_what_it_says():
    own = config(stage=3, offload_optimizer={"device": "cpu", "pin_memory": True}, reduce_bucket_size=12_345_678) | {
        "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 16, "train_batch_size": "auto",
        "optimizer": {"type": "Lion", "params": {"lr": 1e-4}}, "data_types": {"grad_accum_dtype": "fp32"},
    }  # fmt: skip
    made = with_deepspeed(ask(), own, "ds.json", given={})
    assert (made.stage, made.offload, made.micro_batch, made.global_batch) == (3, "optimizer", 2, 2 * 16 * 4)
    assert (made.precision, made.optimizer, made.sums_in_fp32) == ("bf16", "lion_32bit", True)
    assert (made.sizes.reduce_bucket, made.sizes.pinned) == (12_345_678, True)
    assert made.sizes.persistence == 100_000  # DeepSpeed's default, as it is not "auto"
    assert {each.strategy.stage for each in plan(made).rows} == {3}


def test_deepspeed_file_with_auto_is_filled_as_the_trainer_does():
    own = config(stage=3, reduce_bucket_size="auto", stage3_param_persistence_threshold="auto")
    made = with_deepspeed(ask(micro_batch=3), {**own, "bf16": {"enabled": "auto"}}, "ds.json", given={})
    assert (made.micro_batch, made.global_batch, made.precision) == (3, None, "bf16")
    assert (made.sizes.reduce_bucket, made.sizes.persistence) == (2048 * 2048, 20480)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (config(stage=2) | {"train_micro_batch_size_per_gpu": 2}, "--micro-batch-size 4 differs from 2 in ds.json"),
        (config(stage=3, offload_param={"device": "cpu"}), "offload_param cpu is not planned"),
        (config(stage=2) | {"optimizer": {"type": "Sophia"}}, "optimizer.type 'Sophia'"),
    ],
)
def test_deepspeed_file_that_cannot_be_planned_rejected(own, message):
    with pytest.raises(UsageError, match=message):
        with_deepspeed(ask(micro_batch=4), own, "ds.json", given={"--micro-batch-size": 4})


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(LLAMA))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DSRUN_CACHE", str(tmp_path / "cache"))

    def call(*argv):
        words = ["--model", "model", "--gpus", "a100-80:4", "--count", "shapes", "--max-length", "2048", *argv]
        return CliRunner().invoke(command, words, standalone_mode=False)

    return call


def test_own_configuration_printed_with_its_parts(run):
    done = run("--zero", "3", "--offload", "optimizer", "--micro-batch-size", "2", "--global-batch-size", "128")
    assert done.return_value == 0
    assert "fixed: ZeRO-3, offload optimizer, micro batch 2" in done.output
    assert "gradients of 16 steps are summed in fp32" in done.output
    assert "dsrun config --zero 3 --offload optimizer" in done.output


def test_configuration_that_does_not_fit_printed_with_its_parts(run):
    done = run("--zero", "2", "--micro-batch-size", "999")
    assert done.return_value == 3
    assert "would take with micro batch 999:\n  GiB per GPU: parameters" in done.output


def test_own_deepspeed_file_linted_and_kept_in_the_command(run):
    Path("ds.json").write_text(json.dumps(config(stage=2)))
    done = run("--deepspeed", "ds.json", "--optim", "adamw_8bit", "--use-liger-kernel")
    (line,) = [line for line in done.output.splitlines() if line.startswith("dsrun ")]
    assert line.startswith("dsrun train --deepspeed ds.json --model model")
    assert line.endswith("--nproc 4")
    assert "--optim adamw_8bit --use-liger-kernel true" in line
    Path("ds.json").write_text('{"zero_optimization": {"stage": 7}, "train_batch_size": 4}')
    with pytest.raises(UsageError, match=r"ds.json:1.*stage is 7"):
        raise run("--deepspeed", "ds.json").exception


@pytest.mark.parametrize("name", ["adamw_torch", "adagrad", "rmsprop", "sgd", "adafactor"])
@pytest.mark.parametrize("shape", [(256, 128), (256 * 128,)], ids=["matrix", "flat"])
def test_optimizer_states_as_the_trainer_makes_them(name, shape, tmp_path):
    import torch
    from transformers import Trainer, TrainingArguments

    weight = torch.nn.Parameter(torch.ones(shape))
    arguments = TrainingArguments(str(tmp_path), optim=name, use_cpu=True, learning_rate=0.1)
    kind, options = Trainer.get_optimizer_cls_and_kwargs(arguments)
    optimizer = kind([weight], **options)
    weight.grad = torch.ones(shape)
    optimizer.step()
    held = sum(
        each.numel() * each.element_size()
        for state in optimizer.state.values()
        for each in state.values()
        if isinstance(each, torch.Tensor) and each.numel() > 1
    )
    # As ZeRO's shares are flat.
    stage = 0 if len(shape) == 2 else 2
    assert held / weight.numel() == pytest.approx(state_bytes(name, stage=stage), abs=0.05)
