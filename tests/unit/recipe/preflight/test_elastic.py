"""--elastic MIN:MAX: which numbers of nodes, and how a batch is spread over each of them."""

from __future__ import annotations

import pytest

from dsrun.errors import UsageError
from dsrun.recipe.preflight.elastic import NodeRange, batches_by_nodes, node_range, nodes_of, with_range
from dsrun.recipe.resolve import resolve
from dsrun.recipe.resolved import from_json, to_json


def batches(tmp_path, *flags, found="2:3", workers=1):
    recipe = resolve(["--model", "m", *flags], tmp_path)
    return batches_by_nodes(recipe, NodeRange.parse(found), 3, workers)


def spread(tmp_path, *flags, **options):
    return {n: (b.global_batch, b.micro_batch, b.accumulation) for n, b in batches(tmp_path, *flags, **options).items()}


def test_global_batch_stays_and_no_micro_batch_grows(tmp_path):
    sizes = ["--global-batch-size", "12", "--micro-batch-size", "4"]
    assert spread(tmp_path, *sizes) == {3: (12, 4, 1), 2: (12, 3, 2)}
    assert spread(tmp_path, "--global-batch-size", "48", workers=2) == {3: (48, 8, 1), 2: (48, 6, 2)}


def test_batch_that_follows_from_all_nodes_stays_that(tmp_path):
    sizes = ["--micro-batch-size", "2", "--gradient_accumulation_steps", "4"]
    assert spread(tmp_path, *sizes) == {3: (24, 2, 4), 2: (24, 2, 6)}


@pytest.mark.parametrize(
    ("flags", "options", "numbers"),
    [
        (["--global-batch-size", "64"], {"workers": 2}, ["60 or 72", "3 nodes × 2 ranks", "64"]),
        (["--global-batch-size", "9"], {}, ["6 or 12", "2 nodes × 1 rank"]),
        (["--global-batch-size", "3"], {}, ["6"]),
        (["--global-batch-tokens", "4000"], {}, ["--global-batch-size"]),
        (["--global-batch-size", "12", "--long-context", "4096"], {}, ["--sequence-parallel"]),
        (["--global-batch-size", "12", "--long-context", "4096", "--sequence-parallel", "2"], {}, ["3 nodes"]),
        (["--global-batch-size", "24", "--zero", "3", "--hpz", "4"], {"workers": 2}, ["6 ranks", "3 nodes"]),
        (["--global-batch-size", "12", "--zero", "3", "--optim", "adafactor"], {}, ["--zero 2"]),
        (["--global-batch-size", "12", "--zero", "3", "--offload", "nvme", "--nvme-path", "/n"], {}, ["--offload cpu"]),
    ],
)
def test_what_cannot_go_on_is_refused(tmp_path, flags, options, numbers):
    with pytest.raises(UsageError) as refused:
        batches(tmp_path, *flags, **options)
    for number in numbers:
        assert number in f"{refused.value.message} {refused.value.fix}"


def test_sizes_that_are_named_can_be_divided(tmp_path):
    for size in ("60", "72"):
        assert batches(tmp_path, "--global-batch-size", size, workers=2)


def test_sequence_parallelism_within_a_node(tmp_path):
    """Groups of two ranks take one share: as many as nodes."""
    flags = ["--global-batch-size", "12", "--micro-batch-size", "4", "--long-context", "4096"]
    found = batches(tmp_path, *flags, "--sequence-parallel", "2", workers=2)
    assert {n: (b.micro_batch, b.accumulation) for n, b in found.items()} == {3: (4, 1), 2: (3, 2)}


@pytest.mark.parametrize("text", ["3", "3:3", "4:3", "0:3", "a:b", "2:3:4", ":", "-1:3"])
def test_range_that_is_none(text):
    with pytest.raises(UsageError):
        NodeRange.parse(text)


def test_range_fits_the_nodes():
    assert node_range("2:3", None, 3) == node_range(None, "2:3", 3) == NodeRange(2, 3)
    assert node_range(None, None, 3) is None
    for flag, given, nodes in (("2:3", None, 4), ("2:3", "2:4", 3), (None, "2:3", 1)):
        with pytest.raises(UsageError):
            node_range(flag, given, nodes)


def test_job_asks_for_the_largest_number():
    assert nodes_of("2:3", 1, "--elastic") == nodes_of("2:3", 3, "--elastic") == 3
    with pytest.raises(UsageError):
        nodes_of("2:3", 4, "--elastic")


def test_ranks_learn_of_the_range(tmp_path):
    recipe = with_range(resolve(["--model", "m"], tmp_path), NodeRange(2, 3))
    assert from_json(to_json(recipe), "it").spec.elastic == "2:3"
