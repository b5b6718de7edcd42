"""Model states of cases small enough to reckon by hand; engines are held against them in the integration tests."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsrun.zero.memory.model.architecture import ParameterGroups, training
from dsrun.zero.memory.model.count import describe
from dsrun.zero.memory.rank.states import StateSharding, checkpoint_bytes, owned, partition, rounded, states, sub_groups

# 100 + 20 + 7 trained elements in two groups, 10 frozen
SMALL = ParameterGroups(decayed=(100, 20), undecayed=(7,), frozen=(10,))


def sharding(stage, offload="none", world=2, precision="bf16", **more):
    return StateSharding(stage=stage, offload=offload, world=world, precision=precision, **more)


def test_ddp_model_states_are_fp32():
    """Plain DDP keeps everything in fp32, whatever the precision."""
    for precision in ("bf16", "fp32"):
        gpu = states(SMALL, sharding(0, precision=precision)).gpu
        assert (gpu.parameters, gpu.gradients, gpu.master, gpu.optimizer) == (4 * 137, 4 * 127, 0, 8 * 127)
        assert gpu.staging == 4 * 127
    assert states(SMALL, sharding(0, world=1)).gpu.staging == 0


def test_zero1_and_zero2_shards_are_padded_to_even():
    assert partition((100, 20), 2) == 60
    assert partition((7,), 2) == 4
    gpu = states(SMALL, sharding(2)).gpu
    assert gpu.parameters == 2 * (120 + 8 + 10)
    assert gpu.master == 4 * 64
    assert gpu.optimizer == 8 * 64


def test_tensor_across_two_shards_is_held_by_both_ranks():
    assert owned((100, 20), sharding(2), 0) == 100
    assert owned((100, 20), sharding(2), 1) == 120
    assert owned((100, 20), sharding(2), None) == 120


def test_tensor_across_many_shards_is_held_by_every_rank():
    assert [owned((100, 20), sharding(2, world=6), rank) for rank in range(6)] == [100] * 5 + [20]
    assert owned((100, 20), sharding(2, world=6), None) == 100


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(1, 40), st.sampled_from(["none", "cpu"]))
def test_fullest_rank_is_maximum_over_ranks(group, world, offload):
    asked = sharding(2, offload, world=world)
    assert owned(group, asked, None) == max(owned(group, asked, rank) for rank in range(world))


@pytest.mark.parametrize("offload", ["none", "cpu"])
def test_fullest_rank_at_huge_world_size(offload):
    assert owned((999, 21), sharding(2, offload, world=10**12), None) == 1020


def test_offloaded_gradients_are_dealt_round_robin():
    assert owned((10, 20, 30, 20), sharding(2), 0) == 10 + 20 + 30
    assert owned((10, 20, 30, 20), sharding(2, "cpu"), 0) == 10 + 30


def test_zero1_gradient_accumulation_holds_all_gradients():
    """ZeRO-1 accumulates all gradients, ZeRO-2 those of its own shard."""
    assert states(SMALL, sharding(1)).gpu.gradients == 2 * 128
    assert states(SMALL, sharding(1, accumulates=False)).gpu.gradients == states(SMALL, sharding(2)).gpu.gradients


def test_zero3_pads_tensors_and_keeps_small_ones_whole():
    """ZeRO-3 pads each tensor's shard, and keeps tensors below the persistence threshold whole."""
    gpu = states(SMALL, sharding(3, world=8)).gpu
    assert gpu.parameters == 2 * (13 + 3 + 1 + 2)
    assert gpu.master == 4 * (13 + 3 + 1)
    kept = states(SMALL, sharding(3, world=8, persistence=10)).gpu.parameters
    assert kept - gpu.parameters == 2 * (7 + 10)


def test_fp32_has_master_weights_too():
    gpu = states(SMALL, sharding(3, precision="fp32")).gpu
    assert gpu.master == gpu.gradients


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_offload_frees_gpu_of_optimizer_states(stage):
    made = states(SMALL, sharding(stage, "cpu"))
    assert made.gpu.optimizer == made.gpu.master == 0
    assert made.host.optimizer == states(SMALL, sharding(stage)).gpu.optimizer
    assert made.nvme.total == 0


def test_nvme_offload_leaves_host_buffers():
    """NVMe takes the optimizer states, and leaves buffers in host memory."""
    made = states(ParameterGroups(decayed=(4 * 10**9,), undecayed=(), frozen=()), sharding(3, "nvme"))
    share = 2 * 10**9
    assert made.nvme.master == 4 * share
    assert made.nvme.optimizer == 8 * share
    # a thousand million parameters stay in host memory (max_in_cpu)
    assert made.host.parameters == 2 * 10**9
    assert made.nvme.parameters == 2 * (share - 10**9)


def test_pinned_memory_rounds_up_to_powers_of_two():
    assert [rounded(each) for each in (0, 1, 5, 4096, 4097)] == [0, 1, 8, 4096, 8192]
    made = states(SMALL, sharding(3, "cpu", world=1))
    # 127 parameters and gradients in two bytes, master copy and its gradient in four; the moments are not pinned
    blocks = [2 * 127, 2 * 127, 4 * 127]
    assert sorted(made.pinned) == blocks
    assert made.host_bytes == made.host.total + 2 * (256 - 254) + (512 - 508)


def test_sub_groups_bound_optimizer_step_memory():
    assert sub_groups(10, 4) == [4, 4, 2]
    assert sub_groups(8, 4) == [4, 4]
    assert states(SMALL, sharding(3, sub_group=30)).step == (2 + 4) * 30


def test_lora_trains_adapters_and_freezes_the_rest():
    model = describe({"model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
                      "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 10})  # fmt: skip
    made = training(model, 2)
    # q, k, v, o, gate, up, down: rank × (into + out)
    assert made.trainable == 2 * ((8 + 8) + 2 * (8 + 4) + (8 + 8) + 2 * (8 + 16) + (16 + 8))
    assert sum(made.frozen) == model.parameters
    # peft's adapters stay in fp32 under ZeRO-3
    one = sharding(3, world=1)
    assert states(made, one).gpu.parameters == 4 * made.trainable + 2 * model.parameters


def test_checkpoint_bytes():
    """A checkpoint holds the weights twice, the master copy and the moments."""
    plain = ParameterGroups(decayed=(100,), undecayed=(), frozen=())
    assert checkpoint_bytes(plain, sharding(2)) == 100 * (2 + 2 + 4 + 8)
    assert checkpoint_bytes(plain, sharding(0)) == 100 * (4 + 8)
