"""Choosing among strategies: what a plan must get right whatever the constants are."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dsrun.errors import UsageError
from dsrun.zero.memory.model.count import describe
from dsrun.zero.memory.peak import ZeroStrategy, gpu
from dsrun.zero.memory.plan import choose, message, plan, settings
from dsrun.zero.memory.plan_request import PlanRequest, cluster
from dsrun.zero.memory.strategy import active_parameters, bf16_strategies, largest_micro_batch

LLAMA = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": True,
}  # fmt: skip
ONE_B = describe(LLAMA)
ZERO_2 = ZeroStrategy(stage=2, offload="none", checkpointing=False)


def ask(gpus="a100-80:4", **more):
    return PlanRequest(**({"model": ONE_B, "cluster": cluster(gpus), "length": 2048} | more))


def row(made, stage, offload="none", checkpointing=False):
    wanted = ZeroStrategy(stage=stage, offload=offload, checkpointing=checkpointing)
    return next(each for each in made.rows if each.strategy == wanted)


def test_higher_stage_and_offload_take_less_gpu_memory():
    request = ask()
    totals = [
        gpu(request, ZeroStrategy(stage=s, offload="none", checkpointing=False), 1).states.gpu.total for s in range(4)
    ]
    assert totals == sorted(totals, reverse=True)
    for stage in (1, 2, 3):
        here = gpu(request, ZeroStrategy(stage=stage, offload="none", checkpointing=False), 1)
        away = gpu(request, ZeroStrategy(stage=stage, offload="cpu", checkpointing=False), 1)
        assert away.total < here.total
        assert away.states.host.total > here.states.host.total == 0


def test_largest_micro_batch_fits_and_next_does_not():
    request = ask()
    most = largest_micro_batch(request, ZERO_2, request.budget)
    assert gpu(request, ZERO_2, most).total <= request.budget < gpu(request, ZERO_2, most + 1).total


def test_micro_batch_divides_the_global_batch():
    request = ask(global_batch=4 * 7)
    made = plan(request)
    for each in made.rows:
        if each.micro_batch:
            assert each.micro_batch in (1, 7)
            assert each.micro_batch * each.accumulation * 4 == 28


def test_many_accumulation_steps_take_gradients_in_fp32():
    """As the configurations that dsrun generates do, from 8 steps on."""
    few, many = (gpu(ask(global_batch=4 * steps), ZERO_2, 1).states.gpu.gradients for steps in (7, 8))
    assert many > 1.9 * few
    assert gpu(ask(global_batch=4 * 8, precision="fp32"), ZERO_2, 1).states.step > 0


def test_plan_chooses_fastest_that_fits():
    made = plan(ask())
    assert made.choice.verdict == "fits"
    assert made.choice.relative >= 0.95 * max(each.relative for each in made.rows if each.verdict == "fits")
    chosen = choose(ask())
    assert (chosen.stage, chosen.micro_batch) == (made.choice.strategy.stage, made.choice.micro_batch)


def test_zero_stage_follows_gpu_memory():
    """Plenty of memory needs no sharding, and little needs all of it."""
    small = describe(LLAMA | {"num_hidden_layers": 2, "vocab_size": 1000})
    assert choose(ask(model=small, length=128)).stage == 0
    assert choose(ask("l4:2", host_memory=500.0, length=57344)).stage == 3


def test_host_memory_rules_out_offload():
    roomy, poor = plan(ask()), plan(ask(host_memory=8.0))
    assert row(roomy, 2, "cpu").verdict == "fits"
    assert row(poor, 2, "cpu").verdict == "does not fit"


def test_preset_orders_micro_batch():
    sizes = [
        largest_micro_batch(request, ZERO_2, request.budget)
        for request in (ask(preset=name) for name in ("conservative", "balanced", "aggressive"))
    ]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[2]


def test_correction_factor_scales_gpu_memory():
    request = ask()
    plain = gpu(request, ZERO_2, 1).total
    assert gpu(replace(request, factor=1.1), ZERO_2, 1).total == pytest.approx(1.1 * plain, rel=1e-6)


def test_tight_plan_may_not_be_the_smallest():
    """Of the plans that are tight, another may take less than the chosen one."""
    made = plan(ask("l4:2", preset="conservative", host_memory=64.0, length=32768))
    tight = [each for each in made.rows if each.verdict == "tight"]
    assert made.choice.verdict == "tight"
    assert min(each.gpu.total for each in tight) < made.choice.gpu.total
    assert made.why.endswith("but nothing stays within that")


def test_nothing_fits_is_an_error_with_hint():
    with pytest.raises(UsageError, match=r"nothing fits 1 × l4 \(24 GiB\).*GiB of host memory per node"):
        choose(ask("l4", host_memory=2.0))


@pytest.mark.parametrize(
    ("gpus", "given", "words"),
    [
        (
            "a100-80:8",
            {"micro_batch": 128},
            "with micro batch 128 (without --micro-batch-size 128 this fits: ZeRO-",
        ),
        (
            "l4",
            {"micro_batch": 2, "offload": "none"},
            "with micro batch 2 and --offload none (without --offload none this fits: ZeRO-2 + cpu offload,",
        ),
        # Without the offload there is a faster one, but that it was asked for is no reason to drop it.
        (
            "l4:2",
            {"micro_batch": 512, "offload": "cpu"},
            "(without --micro-batch-size 512 this fits: ZeRO-1 + cpu offload,",
        ),
    ],
)
def test_nothing_fits_hint_changes_few_given_options(gpus, given, words):
    """Where what was given does not fit, the way out changes little of it."""
    with pytest.raises(UsageError, match=re.escape(words)):
        choose(ask(gpus, host_memory=500.0), **given)


def test_moe_active_parameters():
    mixtral = {
        "model_type": "mixtral", "hidden_size": 64, "intermediate_size": 100, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 50, "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }  # fmt: skip
    model = describe(mixtral)
    idle = 2 * 6 * 3 * 64 * 100
    assert active_parameters(model) == model.parameters - idle - 50 * 64


@pytest.mark.parametrize(
    "wrong",
    [
        {"length": 0},
        {"length": 10**12},
        {"global_batch": 0},
        {"lora": 0},
        {"global_batch": 5},
        {"host_memory": 0.0},
    ],
)
def test_invalid_plan_request_is_refused(wrong):
    with pytest.raises(UsageError):
        ask(**wrong)


def test_unified_memory_counts_once():
    """GPU and CPU share one memory: what the GPU gets and what the host has add up to it."""
    request = ask("GB10")
    assert request.cluster.memory + request.host == pytest.approx(128)
    assert "shares its 128 GiB" in request.cluster.note


@pytest.mark.parametrize(
    ("gpus", "memory", "count"),
    [("B300:8", 268, 8), ("A100-SXM4-80GB MIG 3g.40gb", 40, 1), ("p4d.24xlarge", 40, 8), ("a2-highgpu-1g:1", 40, 1)],
)
def test_memory_is_what_the_gpu_can_use(gpus, memory, count):
    """What the driver shows, the slice that a profile names, and the GPUs of a cloud's machine."""
    asked = ask(gpus).cluster
    assert (asked.memory, asked.per_node) == (memory, count)


def test_bf16_master_weights_are_the_last_rung():
    """They are planned where nothing exact fits, and said to be less exact."""
    short = ask("l4:1", host_memory=4.0, length=8192)
    assert not any(each.strategy.bf16_master for each in plan(ask("l4:1")).rows)
    last = plan(short)
    assert {each.verdict for each in last.rows if not each.strategy.bf16_master} == {"does not fit"}
    assert last.remedies == ()
    assert "less exact" in last.why
    chosen = choose(short)
    assert settings(chosen)["bf16_master_weights"] is True
    assert "less exact" in message(chosen)


@pytest.mark.parametrize("other", [{"precision": "fp32"}, {"optimizer": "sgd"}, {"lora": 8}])
def test_bf16_master_weights_are_for_torch_adamw_in_bf16(other):
    assert not list(bf16_strategies(ask("l4:1", **other)))


def test_bf16_master_weights_halve_what_the_optimizer_keeps():
    """ZeRO-3 steps the parameters themselves (stage3.py, _create_fp32_partitions)."""
    for stage in (1, 2, 3):
        exact = gpu(ask(), ZeroStrategy(stage=stage, offload="none", checkpointing=False), 1).states
        less = gpu(ask(), ZeroStrategy(stage=stage, offload="none", checkpointing=False, bf16_master=True), 1).states
        assert 2 * less.gpu.optimizer == exact.gpu.optimizer
        assert less.gpu.master == (0 if stage == 3 else exact.gpu.master // 2)
        assert less.gpu.parameters == exact.gpu.parameters


def test_sequence_parallel_cuts_activations_over_its_gpus():
    """Four GPUs that share a sample each keep what a sample of a quarter of its length keeps; states do not change."""
    kept = ZeroStrategy(stage=3, offload="none", checkpointing=True)
    shared = gpu(ask(length=65536, sequence_parallel=4), kept, 1)
    whole = gpu(ask(length=16384), kept, 1)
    assert shared.states == whole.states
    assert shared.activations == whole.activations


def test_ranks_that_share_samples_take_one_micro_batch_together():
    made = plan(ask(length=65536, sequence_parallel=4, global_batch=2))
    assert {each.accumulation for each in made.rows if each.micro_batch == 1} == {2}
    assert all(each.strategy.stage for each in made.rows)
    with pytest.raises(UsageError, match="--sequence-parallel 3 does not divide the 4 GPUs"):
        ask(sequence_parallel=3)


@pytest.mark.parametrize(
    ("stage", "offload", "place", "share"),
    [(0, "none", "gpu", 1), (2, "none", "gpu", 1), (2, "cpu", "gpu", 1), (3, "none", "gpu", 4), (3, "cpu", "host", 4),
     (3, "optimizer", "gpu", 4), (3, "nvme", "nvme", 4)],
)  # fmt: skip
def test_a_model_that_is_only_read_is_counted_where_it_is(stage, offload, place, share):
    """Whole on each GPU below ZeRO-3, and its logits beside those of the trained one."""
    strategy = ZeroStrategy(stage=stage, offload=offload, checkpointing=False)
    alone, beside = (gpu(ask(beside=each), strategy, 2) for each in (None, ONE_B))
    grown = {
        name: getattr(beside.states, name).total - getattr(alone.states, name).total for name in ("gpu", "host", "nvme")
    }
    assert grown.pop(place) == 2 * -(-ONE_B.parameters // share)
    assert set(grown.values()) == {0}
    assert beside.activations.logits - alone.activations.logits == 2 * 2 * 2048 * ONE_B.vocabulary
