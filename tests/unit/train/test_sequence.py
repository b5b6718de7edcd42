"""--long-context: who may share rows, how rows are cut, and that tiles and the host change no gradient."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from dsrun.errors import UsageError
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.recipe.resolve import resolve
from dsrun.train import sequence
from dsrun.train.base.distributed import DistributedWorld
from dsrun.train.base.labels import IGNORED
from dsrun.train.data.batches import BatchSplit, GlobalBatchSampler
from dsrun.train.loss.model_loss import ModelLoss
from dsrun.train.sequence import SequenceLoss, activations_on_host, decide_degree, on_host, shard, tile_mlp


def degree(*, ranks=8, node=8, heads=8, keys=2, given=None, family="llama", task="causal-lm"):
    config = SimpleNamespace(model_type=family, num_attention_heads=heads, num_key_value_heads=keys)
    world = DistributedWorld(rank=0, size=ranks, local_rank=0, local_size=node, device="cuda")
    return decide_degree(TrainSpec(long_context=1024, sequence_parallel=given), config, task, world)


def test_degree_is_most_ranks_of_node_that_heads_allow():
    assert degree() == 8
    assert degree(ranks=16, node=8, heads=12, keys=4) == 4
    assert degree(heads=12, keys=3, ranks=6, node=6) == 6
    assert degree(ranks=1, node=1) == 1
    assert degree(given=2) == 2


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ({"given": 3}, "does not divide the 8 ranks"),
        ({"given": 4, "heads": 6}, "6 attention heads"),
        ({"family": "gpt2"}, "gpt2 models"),
        ({"task": "seq2seq"}, "llama models"),
    ],
)
def test_degree_refused(case, message):
    with pytest.raises(UsageError, match=message):
        degree(**case)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--long-context 64 --zero 0", "ZeRO-1 to 3"),
        ("--long-context 64 --max-length 32", "--max-length"),
        ("--long-context 64 --task dpo --train-file x", "causal LM"),
        ("--sequence-parallel 2", "needs --long-context"),
    ],
)
def test_recipe_refused(more, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        resolve(["--model", "m", *more.split()], tmp_path)


def test_shards_hold_shifted_labels_and_positions():
    ids = torch.arange(1, 11).reshape(2, 5)
    parts = [shard({"input_ids": ids, "labels": ids}, 2, rank) for rank in range(2)]
    whole = {name: torch.cat([each[name] for each in parts], 1).tolist() for name in parts[0]}
    assert whole["input_ids"] == [[1, 2, 3, 4, 5, 0], [6, 7, 8, 9, 10, 0]]
    assert whole["position_ids"] == [[0, 1, 2, 3, 4, 5]] * 2
    assert whole["targets"] == [[2, 3, 4, 5, IGNORED, IGNORED], [7, 8, 9, 10, IGNORED, IGNORED]]


def test_sharing_ranks_take_same_samples():
    found = [list(GlobalBatchSampler(8, BatchSplit(2, rank, 4, sharing=2), shuffle=False)) for rank in range(4)]
    assert found[0] == found[1] == [[0, 1], [4, 5]]
    assert found[2] == found[3] == [[2, 3], [6, 7]]


def test_tiles_and_host_checkpoints_change_no_gradient(monkeypatch):
    """Tiles of three tokens, more tiles than some rows have tokens, and checkpoints of layers in host memory."""
    from transformers import LlamaConfig, LlamaForCausalLM

    monkeypatch.setattr(sequence, "TILE", 3)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=17, hidden_size=8, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1,
    )  # fmt: skip
    model = LlamaForCausalLM(config).train()
    ids = torch.arange(14).reshape(2, 7) % 17
    inputs = {"input_ids": ids, "labels": ids.masked_fill(ids == 3, IGNORED), "attention_mask": torch.ones_like(ids)}

    def gradients(loss):
        model.zero_grad()
        value, _ = loss(model, inputs, loss.items(inputs["labels"]))
        value.backward()
        return [value.detach(), *(each.grad.clone() for each in model.parameters())]

    plain = gradients(ModelLoss.of(model, smoothing=0.1))
    sums = ModelLoss.of(model).sums(model, inputs)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for module in model.modules():
        if hasattr(module, "down_proj"):
            tile_mlp(module, count=20)
        if hasattr(module, "_gradient_checkpointing_func"):
            module._gradient_checkpointing_func = on_host(module._gradient_checkpointing_func)
    tiled = SequenceLoss(model, degree=1, length=64, smoothing=0.1)
    torch.testing.assert_close(gradients(tiled), plain)
    torch.testing.assert_close(tiled.sums(model, inputs), sums)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_activations_on_host_change_no_gradient(checkpointing, monkeypatch):
    """And weights stay where they are: they are there anyway."""
    from transformers import LlamaConfig, LlamaForCausalLM

    moved: list[torch.Tensor] = []
    pack = torch.autograd.graph.save_on_cpu

    class Counting(pack):
        def __init__(self, **options):
            super().__init__(**options)
            own = self.pack_hook

            def counted(tensor):
                moved.append(tensor)
                return own(tensor)

            self.pack_hook = counted

    monkeypatch.setattr(torch.autograd.graph, "save_on_cpu", Counting)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    )
    ids = torch.randint(0, 64, (2, 32))

    def gradients():
        model.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        return [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]

    if checkpointing:
        model.gradient_checkpointing_enable()
    model.train()
    before = gradients()
    callbacks = []
    arguments = SimpleNamespace(gradient_checkpointing=checkpointing)
    activations_on_host(SimpleNamespace(model=model, args=arguments, add_callback=callbacks.append))
    for each in callbacks:
        each.on_train_begin(None, None, None, model=model)
    after = gradients()
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
    assert moved
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    assert not any(tensor.untyped_storage().data_ptr() in weights for tensor in moved)
