"""Copies in host memory from which checkpoints are written: what they hold, where they lie, and when there is none."""

import pytest
import torch

from dsrun.train.checkpoint import snapshot as snapshots
from dsrun.train.checkpoint.snapshot import SnapshotBuffers


def test_snapshot_keeps_values_that_training_changes():
    """Tensors, counters and lists stay as they were; dtype, shape, strides and views of one storage too."""
    whole = torch.arange(12, dtype=torch.float32)
    state = {
        "views": [whole[:4], whole[4:].view(2, 4).t()],
        "half": torch.full((3,), 0.5, dtype=torch.bfloat16),
        "empty": torch.empty(0, 2),
        "step": [7],
        "groups": {"lr": 0.1},
    }
    copy = SnapshotBuffers().take(state).state
    whole.zero_()
    state["half"].zero_()
    state["step"][0] = 8
    state["groups"]["lr"] = 0.0
    assert copy["step"] == [7]
    assert copy["groups"] == {"lr": 0.1}
    first, second = copy["views"]
    assert torch.equal(first, torch.arange(4.0))
    assert torch.equal(second, torch.arange(4.0, 12).view(2, 4).t())
    assert second.stride() == (1, 4)
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert torch.equal(copy["half"], torch.full((3,), 0.5, dtype=torch.bfloat16))
    assert copy["empty"].shape == (0, 2)


def test_snapshot_buffer_is_used_again():
    taker = SnapshotBuffers()
    state = {"a": torch.ones(1000), "b": torch.ones(7)}
    first = taker.take(state)
    second = taker.take(state)
    assert second.buffer is not first.buffer
    taker.give_back(first)
    state["a"].fill_(2)
    third = taker.take(state)
    assert third.buffer is first.buffer
    assert torch.equal(third.state["a"], torch.full((1000,), 2.0))
    assert torch.equal(second.state["a"], torch.ones(1000))


def test_snapshot_copies_only_live_tensors():
    """What was made for the save alone is not copied once more."""
    live, own = torch.ones(4), torch.ones(4)
    copy = SnapshotBuffers().take({"live": live, "own": own}, live={live.untyped_storage()._cdata}).state
    assert copy["own"].data_ptr() == own.data_ptr()
    live.zero_()
    assert torch.equal(copy["live"], torch.ones(4))


def test_snapshot_of_weights_gives_each_a_storage():
    """Weights in one vector, as under ZeRO-2, come apart; tied ones stay tied."""
    flat = torch.arange(10, dtype=torch.float32)
    weights = {"embed": flat[:6].view(2, 3), "head": flat[:6].view(2, 3), "bias": flat[6:], "none": torch.empty(0)}
    copy = SnapshotBuffers().take_apart(weights).state
    flat.zero_()
    assert torch.equal(copy["embed"], torch.arange(6.0).view(2, 3))
    assert torch.equal(copy["bias"], torch.arange(6.0, 10))
    assert copy["embed"].data_ptr() == copy["head"].data_ptr()
    assert copy["embed"].untyped_storage().nbytes() == 24
    assert copy["none"].shape == (0,)


@pytest.mark.parametrize(("share", "fits"), [(1, True), (2, False)])
def test_snapshot_takes_half_of_the_memory_left(monkeypatch, share, fits):
    """Ranks of one machine divide it; a buffer that is there already needs no more."""
    monkeypatch.setattr(snapshots, "memory_available", lambda: 8192)
    taker = SnapshotBuffers(share=share)
    state = {"a": torch.ones(1024)}
    copy = taker.take(state)
    assert (copy is not None) == fits
    if copy:
        taker.give_back(copy)
        monkeypatch.setattr(snapshots, "memory_available", lambda: 0)
        assert taker.take(state)
        assert taker.take(state) is None
