"""Runs on the GPUs: NCCL, precisions, ZeRO stages, pinned loaders, and the counters of metrics.jsonl."""

from __future__ import annotations

import pytest
import torch

from bench.ladder.data import LLAMA
from bench.mfu import causal_flops, llama_parameters
from dsrun.hardware.gpu_facts import peak_bf16_tflops
from tests.gpu.runs import STEPS, train
from tests.sample_ledger import ledgers, steps

# bf16 rounds each product to 8 bits; the loss is a mean of thousands.
BF16 = 2e-2


@pytest.fixture(scope="module")
def on_cpu(llama, tmp_path_factory):
    """The same samples in fp32 without a GPU."""
    flags = ("--use-cpu", "true", "--bf16", "false", "--zero", "0", "--nproc", "1", "--packing", "off")
    return train(llama, tmp_path_factory.mktemp("cpu") / "run", *flags, "--train-sampling-strategy", "random")


def test_nccl_sums_over_all_gpus(gpus, tmp_path):
    """all_reduce, all_gather and reduce_scatter, also on a single GPU, whose group NCCL makes all the same."""
    torch.multiprocessing.spawn(_collectives, (len(gpus), f"file://{tmp_path}/store"), nprocs=len(gpus))


def _collectives(rank, world, store):
    from torch import distributed

    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", init_method=store, rank=rank, world_size=world)
    total = torch.full((1000,), float(rank + 1), device="cuda")
    distributed.all_reduce(total)
    assert total.eq(world * (world + 1) / 2).all()
    gathered = [torch.empty(4, device="cuda") for _ in range(world)]
    distributed.all_gather(gathered, torch.full((4,), float(rank), device="cuda"))
    assert [int(part[0]) for part in gathered] == list(range(world))
    share = torch.empty(4, device="cuda")
    distributed.reduce_scatter_tensor(share, torch.ones(4 * world, device="cuda"))
    assert share.eq(world).all()
    distributed.destroy_process_group()


@pytest.mark.parametrize("stage", ["0", "1", "2", "3"])
def test_bf16_losses_are_those_of_cpu(llama, on_cpu, tmp_path, stage):
    """Every ZeRO stage over NCCL in bf16 learns as fp32 on the CPU does."""
    flags = ("--bf16", "true", "--zero", stage, "--train-sampling-strategy", "random")
    done = train(llama, tmp_path / "run", *flags)
    assert done.losses == pytest.approx(on_cpu.losses, rel=BF16)
    assert set(done.facts["gpus"]) == {torch.cuda.get_device_name()}


def test_fp16_losses_are_those_of_cpu(llama, on_cpu, tmp_path):
    """fp16 begins with a loss scale that may overflow: the first loss is the one that no skipped step changes."""
    flags = ("--fp16", "true", "--bf16", "false", "--zero", "2", "--train-sampling-strategy", "random")
    done = train(llama, tmp_path / "run", *flags)
    assert done.losses[0] == pytest.approx(on_cpu.losses[0], rel=BF16)
    assert len(done.losses) == STEPS


def test_optimizer_offload_has_same_losses(llama, on_cpu, tmp_path):
    flags = ("--bf16", "true", "--zero", "2", "--offload", "cpu", "--train-sampling-strategy", "random")
    assert train(llama, tmp_path / "run", *flags).losses == pytest.approx(on_cpu.losses, rel=BF16)


def test_pinned_loader_processes_change_nothing(llama, tmp_path):
    """Batches of two loader processes through pinned memory are those of the main process, with the samples' marks."""
    flags = ("--bf16", "true", "--zero", "2", "--sample-ledger")
    plain = train(llama, tmp_path / "plain", *flags, "--dataloader-pin-memory", "false")
    pinned = train(llama, tmp_path / "pinned", *flags, "--dataloader-num-workers", "2")
    assert pinned.losses == plain.losses
    ids, again = ([step.ids for step in steps(ledgers(run.folder)).values()] for run in (plain, pinned))
    assert ids == again
    assert len(ids) == STEPS


def test_mfu_is_tokens_by_flops_over_peak(llama, gpus, tmp_path):
    """The counter of metrics.jsonl is its tokens per second times FLOPs per token, over the peak of all GPUs."""
    peak = peak_bf16_tflops(gpus[0].name)
    if peak is None:
        pytest.skip(f"build/gpus.toml has no bf16 peak of {gpus[0].name}")
    last = train(llama, tmp_path / "run", "--bf16", "true", "--zero", "2").rows[-1]
    per_token = last["mfu"] * peak * 1e12 * len(gpus) / last["tokens_per_s"]
    # By the matrices alone, and with samples that are all as long as the longest, --max-length.
    shortest, longest = 6 * llama_parameters(LLAMA), causal_flops(LLAMA, [512]) / 512
    assert shortest * 0.99 <= per_token <= longest * 1.01
    assert last["gpu_memory_peak"] >= last["gpu_memory"] > 0


def test_weights_drawn_here_are_those_of_every_stage(llama, tmp_path):
    """From scratch, each rank draws on its GPU, and under ZeRO-3 rank 0 for all."""
    first, sharded = (
        train(llama, tmp_path / stage, "--from-scratch", "--bf16", "false", "--zero", stage).losses for stage in "03"
    )
    assert sharded[0] == pytest.approx(first[0], rel=1e-4)
