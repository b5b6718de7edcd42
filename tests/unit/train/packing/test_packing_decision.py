"""Which batches a run gets, and how many rows go to a rank at once."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset

from dsrun.errors import UsageError
from dsrun.recipe.batch import BatchPlan
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.data.batches import BatchSplit
from dsrun.train.packing import decide as module
from dsrun.train.packing.decide import batch_of_tokens, decide_batching, keep_grouping, rows_per_step, split_of_rows
from dsrun.train.packing.probe import ProbeVerdict
from dsrun.train.packing.sampler import BatchGrouping

LENGTHS = np.array([[10], [20], [30], [100]] * 50)
CLEARED = ProbeVerdict("position_ids", 1e-7, "documents are kept apart by position ids")
MIXES = ProbeVerdict(None, None, "Llama mixes packed documents (position ids: logits differ by 5%)")


def rows_of(lengths=LENGTHS):
    return Dataset.from_dict({"input_ids": [[1] * int(n) for (n,) in lengths]})


def plan(*, world=1, micro=8, batch=16, hf=None, plugin=None, task="causal-lm", **spec):
    sizes = BatchPlan(global_batch=batch, micro_batch=micro, world_size=world, accumulation=batch // (micro * world))
    recipe = SimpleNamespace(spec=TrainSpec(**spec), hf=hf or {})
    ranks = SimpleNamespace(rank=0, size=world, device="cpu")
    return SimpleNamespace(
        batch=sizes, recipe=recipe, world=ranks, task=task, plugin=plugin, deepspeed=None, precision="bf16"
    )


@pytest.fixture
def verdict(monkeypatch):
    """What the probe finds; packing is cleared unless a test says otherwise."""
    found = SimpleNamespace(verdict=CLEARED, asked=0)

    def probe(model, *, pairs, autocast):
        found.asked += 1
        return found.verdict

    monkeypatch.setattr(module, "probe", probe)
    return found


def decided(plan, rows=None, *, kind="shared", strategy=None, saved=None):
    loss = SimpleNamespace(kind=kind)
    return decide_batching(plan, rows or rows_of(), None, loss=loss, strategy=strategy, saved=saved)


def test_cleared_model_is_packed(verdict):
    found = decided(plan())
    assert found.method == "position_ids"
    # Four samples of 40 tokens on average are longer than the longest sample.
    assert found.grouping == BatchGrouping("packed", 16, 4)
    assert found.split.global_batch == 4
    assert "about 16 samples, 640 tokens a step, in 4 rows of about 160 tokens" in " ".join(found.sentences("1 GPU"))
    assert found.facts["difference"] == CLEARED.difference


@pytest.mark.parametrize(
    ("changes", "kind", "reason"),
    [
        ({"packing": "off"}, "shared", "--packing off"),
        ({"task": "dpo"}, "shared", "dpo compares whole answers"),
        ({"hf": {"use_cache": True}}, "shared", "--use-cache true"),
        ({}, "own", "the model computes a loss of its own"),
        ({"plugin": SimpleNamespace(has=lambda what: what == "collate")}, "shared", "the plugin gets padded batches"),
    ],
    ids=["off", "dpo", "cache", "own loss", "plugin"],
)
def test_samples_of_like_lengths_where_packing_cannot_be(verdict, changes, kind, reason):
    task = {"task": changes.pop("task")} if "task" in changes else {}
    made = plan(**changes)
    made.recipe.spec = TrainSpec(**task, packing=made.recipe.spec.packing)
    found = decided(made, kind=kind)
    assert found.grouping == BatchGrouping("budget", 16, 8)
    assert reason in found.reason
    assert reason in " ".join(found.sentences("1 GPU"))
    assert not verdict.asked, "nothing to be measured"


def test_model_that_mixes_documents_gets_samples_of_like_lengths(verdict):
    verdict.verdict = MIXES
    found = decided(plan())
    assert found.grouping.kind == "budget"
    assert found.method is None
    assert found.facts["reason"] == MIXES.reason


@pytest.mark.parametrize(
    "options", [{"strategy": "random"}, {"strategy": "group_by_length"}, {"saved": BatchGrouping("plain", 16)}]
)
def test_order_that_was_asked_for_or_begun_stays(verdict, options):
    found = decided(plan(), **options)
    assert found.grouping.kind == "plain"
    assert found.lengths is None
    assert found.sentences("1 GPU") == []


@pytest.mark.parametrize(
    ("method", "changes", "joined"),
    [
        ("documents", {}, True),
        ("flat", {}, True),
        ("position_ids", {}, False),
        (None, {}, False),
        ("documents", {"packing": "off"}, False),
        ("documents", {"task": "seq2seq"}, False),
    ],
)
def test_stream_is_joined_in_its_own_order_where_one_row_holds_all(verdict, method, changes, joined):
    """How long its next samples are, is not known; a micro batch that is one row has no padding."""
    verdict.verdict = ProbeVerdict(method, 1e-7, "they are kept apart")
    found = decided(plan(**changes), iter(()))
    assert found.grouping == BatchGrouping("plain", 16)
    assert found.split.global_batch == 16
    assert found.method == (method if joined else None)
    assert bool(found.sentences("1 GPU")) == joined


@pytest.mark.parametrize(
    ("precision", "deepspeed", "dtype"),
    [
        ("bf16", {"bf16": {"enabled": "auto"}}, torch.bfloat16),
        ("fp16", {"fp16": {"enabled": True}}, torch.float16),
        ("bf16", {"bf16": {"enabled": False}}, None),
        ("bf16", {}, None),
        ("bf16", None, None),
        ("fp32", {"bf16": {"enabled": "auto"}}, None),
    ],
)
def test_probe_has_the_dtype_that_deepspeed_casts_to(precision, deepspeed, dtype):
    made = plan()
    made.precision, made.deepspeed = precision, deepspeed
    assert module._engine_dtype(made) == dtype


def test_weights_are_cast_as_the_engine_does():
    """Not the buffers, whose bits it keeps (rotary frequencies)."""
    model = torch.nn.BatchNorm1d(4)
    module.cast_parameters(model, torch.bfloat16)
    assert {each.dtype for each in model.parameters()} == {torch.bfloat16}
    assert model.running_mean.dtype == torch.float32


def test_model_that_the_gpu_has_no_room_for_is_not_probed(verdict, monkeypatch):
    monkeypatch.setattr(module, "_moved", lambda model, dtype: False)
    made = plan()
    made.world.device = "cuda"
    found = decided(made)
    assert found.grouping.kind == "budget"
    assert "the GPU has no room for its weights" in found.reason
    assert not verdict.asked


def test_samples_of_one_length_are_not_grouped(verdict):
    assert decided(plan(), rows_of(np.full((40, 1), 64))).grouping.kind == "plain"


def test_checkpoint_without_packing_goes_on_without(verdict):
    found = decided(plan(), saved=BatchGrouping("budget", 16, 8))
    assert found.grouping == BatchGrouping("budget", 16, 8)
    assert not verdict.asked


def test_rows_do_not_depend_on_ranks_and_micro_batches():
    """The step is the same; where rows do not divide, or memory does not hold them, its samples are packed anew."""
    grouping = BatchGrouping("packed", 16, rows_per_step(LENGTHS, 16))
    assert grouping.per_step == 4
    found = {
        (world, micro): split_of_rows(BatchSplit(micro, 0, world, 16 // (micro * world)), grouping, LENGTHS)
        for world, micro in ((1, 16), (1, 4), (2, 8), (4, 4), (8, 2), (1, 1))
    }
    sizes = {case: (split.micro_batch, split.accumulation, split.global_batch) for case, split in found.items()}
    assert sizes == {
        # Four rows of 160 tokens take no more memory than 16 samples of 100.
        (1, 16): (4, 1, 4),
        (1, 4): (2, 2, 4),
        (2, 8): (2, 1, 4),
        (4, 4): (1, 1, 4),
        (8, 2): (1, 1, 8),
        # One sample of at most 100 tokens: rows of 91.
        (1, 1): (1, 7, 7),
    }


def test_outlier_does_not_make_all_rows_long():
    lengths = np.array([[10]] * 995 + [[20]] * 4 + [[2000]])
    assert rows_per_step(lengths, 64) == 32


def test_global_batch_of_tokens():
    batch = BatchPlan(global_batch=8, micro_batch=2, world_size=4, accumulation=1)
    found = batch_of_tokens(batch, 1500, rows_of(), both=False)
    assert (found.global_batch, found.accumulation) == (40, 5), "1,600 tokens; 32 samples would have 1,280"
    with pytest.raises(UsageError, match="--global-batch-tokens"):
        batch_of_tokens(batch, 1500, iter(()), both=False)


def test_checkpoint_of_an_older_release_keeps_its_order():
    assert keep_grouping({"step": 5, "global_batch": 8}).kind == "plain"
    assert keep_grouping({"grouping": {"kind": "packed", "global_batch": 8, "per_step": 2}}).per_step == 2
    assert keep_grouping(None) is None
