"""Elastic resume without training: what is read from ranks' files, what is written, and when which."""

from __future__ import annotations

import json
import os
from functools import partial

import pytest
import torch
from safetensors.torch import save_file

from dsrun.errors import UsageError
from dsrun.train.checkpoint import elastic, plain
from dsrun.train.checkpoint.elastic import AdaptedCheckpoint, adapt, seed_of
from dsrun.train.checkpoint.layout import (
    GROUPS,
    CheckpointLayout,
    common_hyperparameters,
    group_hyperparameters,
    layout_of,
)
from dsrun.train.checkpoint.zero_shards import ZeroCheckpoint, load
from tests.zero_checkpoints import write_zero


def tensors():
    """Two groups of odd sizes, so that partitions end within tensors and the last one is padded."""
    generator = torch.Generator().manual_seed(3)
    shapes = [
        {"embed": (7, 3), "layer.weight": (5, 5), "layer.up": (3, 4)},
        {"norm.weight": (5,), "bias": (1,)},
    ]
    return [{name: torch.randn(shape, generator=generator) for name, shape in group.items()} for group in shapes]


def quiet(_line):
    pass


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_parameters_and_states_merged_from_shards(tmp_path, stage, ranks):
    groups = tensors()
    checkpoint = ZeroCheckpoint(write_zero(tmp_path / "checkpoint-5", groups, stage=stage, ranks=ranks))
    expected = {name: value for group in groups for name, value in group.items()}
    assert (checkpoint.stage, checkpoint.world_size, checkpoint.step) == (stage, ranks, 5)
    assert checkpoint.states == ("exp_avg", "exp_avg_sq")
    assert list(checkpoint.parameters) == list(expected)
    for name, value in expected.items():
        assert torch.equal(checkpoint.read(name), value)
        assert torch.equal(checkpoint.read(name, "exp_avg_sq"), value + 2)


def test_shard_files_mapped_anew_after_window(tmp_path):
    groups = tensors()
    folder = write_zero(tmp_path / "checkpoint-5", groups, stage=3, ranks=2)
    checkpoint = ZeroCheckpoint(folder, window=100)
    for name in checkpoint.parameters:
        first = checkpoint.read(name)
        assert torch.equal(first, checkpoint.read(name))
    assert torch.equal(checkpoint.read("bias"), groups[1]["bias"])


def test_missing_shard_of_a_rank_rejected(tmp_path):
    folder = write_zero(tmp_path / "checkpoint-5", tensors(), stage=2, ranks=3)
    (folder / "global_step5" / "zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    with pytest.raises(UsageError, match="2 of 3 files of optimizer states"):
        ZeroCheckpoint(folder)


def test_shard_that_would_run_code_rejected(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    torch.save({"optimizer_state_dict": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(UsageError, match=r"own records: .*posix\.mkdir"):
        load(tmp_path / "evil.pt")
    assert not (tmp_path / "ran").exists()


def test_truncated_shard_is_named(tmp_path):
    folder = write_zero(tmp_path / "checkpoint-5", tensors(), stage=3, ranks=2)
    file = folder / "global_step5" / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(UsageError, match="zero_pp_rank_0"):
        ZeroCheckpoint(folder)


PLAIN = CheckpointLayout(world_size=2, stage=0, engine=False)
ZERO2 = CheckpointLayout(world_size=2, stage=2)


@pytest.mark.parametrize(
    ("saved", "wanted", "change"),
    [
        (ZERO2, ZERO2, "none"),
        (ZERO2, CheckpointLayout(world_size=1, stage=2), "convert"),
        (ZERO2, CheckpointLayout(world_size=2, stage=3), "convert"),
        (ZERO2, CheckpointLayout(world_size=2, stage=1), "convert"),
        (ZERO2, CheckpointLayout(world_size=2, stage=2, own_adam=True), "convert"),
        (ZERO2, CheckpointLayout(world_size=2, stage=2, round_robin=True), "order"),
        (CheckpointLayout(world_size=2, stage=3), CheckpointLayout(world_size=2, stage=3, round_robin=True), "none"),
        (PLAIN, CheckpointLayout(world_size=7, stage=0, engine=False), "none"),
        (PLAIN, ZERO2, "convert"),
        (ZERO2, PLAIN, "convert"),
        (ZERO2, CheckpointLayout(world_size=2, stage=2, nvme=True), "convert"),
        (ZERO2, CheckpointLayout(world_size=2, stage=2, bf16=True), "convert"),
    ],
)
def test_checkpoint_layout_change(saved, wanted, change):
    """When a checkpoint can be loaded as it is, and when it is converted."""
    assert saved.change_to(wanted) == change


def test_checkpoint_layout_of_run_and_its_checkpoint(tmp_path):
    config = {
        "zero_optimization": {
            "stage": 2,
            "round_robin_gradients": True,
            "offload_optimizer": {"device": "cpu"},
        },
        "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
    }
    wanted = CheckpointLayout.wanted(3, config)
    assert wanted == CheckpointLayout(world_size=3, stage=2, own_adam=True, round_robin=True)
    assert CheckpointLayout.wanted(3, None) == CheckpointLayout(world_size=3, stage=0, engine=False)
    folder = write_zero(tmp_path / "checkpoint-5", tensors(), stage=2, ranks=3, config=config)
    assert layout_of(folder) == CheckpointLayout(world_size=3, stage=2, round_robin=True)


def test_checkpoint_with_same_layout_not_converted(tmp_path):
    folder = write_zero(tmp_path / "checkpoint-5", tensors(), stage=2, ranks=2)
    start = adapt(folder, ZERO2, run=tmp_path, notify=quiet)
    assert start == AdaptedCheckpoint(folder, folder)
    assert start.configure({"a": 1}) == {"a": 1}
    assert not (tmp_path / ".universal").exists()


def test_saved_parameter_order_kept_on_resume(tmp_path):
    folder = write_zero(tmp_path / "checkpoint-5", tensors(), stage=2, ranks=2)
    start = adapt(folder, CheckpointLayout(world_size=2, stage=2, round_robin=True), run=tmp_path, notify=quiet)
    assert start.path == folder
    config = {"zero_optimization": {"stage": 2, "round_robin_gradients": True}}
    assert start.configure(config)["zero_optimization"] == {"stage": 2, "round_robin_gradients": False}
    assert config["zero_optimization"]["round_robin_gradients"]


def test_converted_checkpoint_reused_until_source_changes(tmp_path):
    """A conversion is reported once, used again, and made anew when its source is another save."""
    folder = write_zero(tmp_path / "checkpoint-5", tensors(), stage=3, ranks=2)
    said = []

    def again():
        return adapt(folder, CheckpointLayout(world_size=4, stage=2), run=tmp_path, notify=said.append)

    start = again()
    assert start.path == tmp_path / ".universal" / "checkpoint-5"
    assert start.source == folder
    assert start.deepspeed["checkpoint"] == {"load_universal": True}
    inode = (start.path / "latest_universal").stat().st_ino
    assert again() == start
    assert (start.path / "latest_universal").stat().st_ino == inode
    assert said == ["checkpoint-5: ZeRO-3 on 2 ranks → ZeRO-2 on 4 ranks"]
    (folder / "trainer_state.json").write_text('{"global_step": 5, "another": "save"}')
    again()
    assert json.loads((start.path / "trainer_state.json").read_text())["another"] == "save"
    assert len(said) == 2


def test_killed_checkpoint_conversion_made_anew(tmp_path):
    folder = write_zero(tmp_path / "checkpoint-5", tensors(), stage=3, ranks=2)
    left = tmp_path / ".universal" / "checkpoint-5.partial" / "global_step5"
    left.mkdir(parents=True)
    start = adapt(folder, CheckpointLayout(world_size=1, stage=3), run=tmp_path, notify=quiet)
    assert (start.path / "source.json").is_file()
    assert not left.exists()


def test_universal_checkpoint_contents(tmp_path):
    """Whole tensors under names that ZeRO-1, 2 and 3 look for, and no hyperparameter that the groups do not share."""
    groups = tensors()
    folder = write_zero(tmp_path / "checkpoint-5", groups, stage=2, ranks=2)
    start = adapt(folder, CheckpointLayout(world_size=1, stage=3), run=tmp_path, notify=quiet)
    tag = start.path / (start.path / "latest_universal").read_text()
    saved = torch.load(tag / "zero" / "layer.weight" / "exp_avg.pt")
    assert torch.equal(saved["param"], groups[0]["layer.weight"] + 1)
    assert torch.load(tag / "zero" / "bias" / "step.pt") == 5
    state = torch.load(tag / "zero" / "optimizer_state.pt")
    for hyper in (state["param_groups"][1], state["optimizer_state_dict"]["param_groups"][0]):
        assert hyper == {"lr": 0.01, "initial_lr": 0.02, "betas": (0.9, 0.999), "eps": 1e-8, "params": []}
    for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"):
        assert torch.load(tag / name)["global_steps"] == 5


def test_common_hyperparameters_of_parameter_groups():
    """Only what all groups share is taken over."""
    groups = [{"lr": 1, "eps": 2, "weight_decay": 0.1}, {"lr": 3, "eps": 2, "weight_decay": 0.0}]
    assert common_hyperparameters(groups) == {"eps": 2}


def test_group_hyperparameters_keep_rates_of_each_group():
    """Groups beyond those that were saved get what all of them share."""
    groups = [{"lr": 1, "eps": 2, "weight_decay": 0.1}, {"lr": 3, "eps": 2, "weight_decay": 0.0}]
    found = group_hyperparameters(groups)
    assert found[:3] == [{"lr": 1, "eps": 2}, {"lr": 3, "eps": 2}, {"eps": 2}]
    assert len(found) == GROUPS
    assert len(group_hyperparameters(groups * 100)) == 200


def test_converted_scheduler_keeps_rates_of_same_groups(tmp_path):
    """A schedule keeps its rates where the groups stay the same."""
    folder = write_zero(tmp_path / "checkpoint-5", tensors(), stage=3, ranks=2)
    for own, rates in ((False, [0.02, 0.02]), (True, None)):
        start = adapt(
            folder, CheckpointLayout(world_size=1, stage=3, own_adam=own), run=tmp_path / str(own), notify=quiet
        )
        state = torch.load(start.path / "scheduler.pt")
        assert (state["last_epoch"], state.get("base_lrs")) == (5, rates)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (CheckpointLayout(world_size=1, stage=2, nvme=True), r"NVMe offload.*--offload cpu"),
        (CheckpointLayout(world_size=1, stage=2, own_scheduler=True), "learning-rate schedule"),
        (CheckpointLayout(world_size=1, stage=0), "DeepSpeed at stage 0"),
    ],
)
def test_impossible_conversion_error_names_possible_ones(tmp_path, wanted, words):
    folder = write_zero(tmp_path / "checkpoint-5", tensors(), stage=2, ranks=2)
    with pytest.raises(UsageError, match=words) as refused:
        adapt(folder, wanted, run=tmp_path, notify=quiet)
    assert refused.value.fix
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.glob(".universal/checkpoint*"))


def test_non_adam_states_stay_with_zero_1_and_2(tmp_path):
    """States of another optimizer than Adam stay with ZeRO-1 and 2."""
    folder = write_zero(tmp_path / "checkpoint-5", tensors(), stage=2, ranks=2, states=("momentum",))
    start = adapt(folder, CheckpointLayout(world_size=1, stage=1), run=tmp_path, notify=quiet)
    assert list((start.path / "global_step5" / "zero" / "bias").glob("momentum.pt"))
    with pytest.raises(UsageError, match="only Adam's"):
        adapt(folder, CheckpointLayout(world_size=1, stage=3), run=tmp_path / "other", notify=quiet)


def plain_checkpoint(folder, optimizer, *, trained):
    """Of adapters under plain DDP after one step, in which the parameters `trained` had gradients."""
    folder.mkdir(parents=True)
    parameters = {name: torch.nn.Parameter(torch.ones(3, 2)) for name in ("weight", "bias")}
    made = optimizer([{"params": [parameter]} for parameter in parameters.values()])
    sum(parameters[name].sum() for name in trained).backward()
    made.step()
    torch.save(made.state_dict(), folder / "optimizer.pt")
    torch.save({"last_epoch": 1, "base_lrs": [0.1, 0.1]}, folder / "scheduler.pt")
    save_file({name: value.detach() for name, value in parameters.items()}, folder / plain.ADAPTER)
    return folder


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize(
    ("optimizer", "trained"),
    [
        (partial(torch.optim.SGD, lr=0.1), ["weight", "bias"]),
        (partial(torch.optim.SGD, lr=0.1, momentum=0.9), ["weight", "bias"]),
        (partial(torch.optim.AdamW, lr=0.1), ["weight"]),
    ],
)
def test_conversion_from_plain_ddp_needs_adam_states(optimizer, trained, stage, tmp_path):
    """Without ZeRO, only Adam's states of all parameters can be converted."""
    names = {"trained": lambda: plain.TrainerOrder([["weight"], ["bias"]], None), "notify": quiet}
    wanted = CheckpointLayout(world_size=1, stage=stage)
    adam = plain_checkpoint(tmp_path / "adam" / "checkpoint-5", torch.optim.AdamW, trained=["weight", "bias"])
    assert adapt(adam, wanted, run=tmp_path / "adam", **names).converted
    other = plain_checkpoint(tmp_path / "checkpoint-5", optimizer, trained=trained)
    with pytest.raises(UsageError, match=r"no Adam states for (weight|bias), .*--zero 0, as it was saved"):
        adapt(other, wanted, run=tmp_path, **names)


def test_seed_of_joining_rank():
    """A joining rank has a seed of its own that is the same each time."""
    seeds = [seed_of(42, step, rank) for step in (4, 8) for rank in range(4)]
    assert len(set(seeds)) == 8
    assert seed_of(42, 4, 1) == seeds[1]
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_converted_checkpoint_discarded(tmp_path):
    folder = write_zero(tmp_path / "checkpoint-5", tensors(), stage=2, ranks=2)
    adapt(folder, CheckpointLayout(world_size=1, stage=2), run=tmp_path, notify=quiet)
    elastic.discard(tmp_path)
    assert not (tmp_path / ".universal").exists()
    elastic.discard(tmp_path)
