"""Learning rates by layer and by name on real engines: the same course under every ZeRO stage, also after a resume."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from dsrun.runs.records import read_records
from dsrun.train.checkpoint.zero_shards import ZeroCheckpoint
from tests.integration.conftest import SHORT, many_runs

pytestmark = pytest.mark.train

SHAPE = [
    "--max-steps", "6", "--save-steps", "3", "--warmup-steps", "2", "--weight-decay", "0.1", "--seed", "7",
    "--micro-batch-size", "2",
]  # fmt: skip
RATES = ["--layer-lr-decay", "0.5", "--lr-for", "decoder.block.1=0.002", "shared=1e-4"]
CPU = ["--offload", "cpu"]

# name: (ranks, ZeRO stage and place)
WHOLE = {
    "ddp": ["--zero", "0"],
    "z1": ["--zero", "1"],
    "z2": ["--zero", "2"],
    "z3": ["--zero", "3"],
    "z2-cpu": ["--zero", "2", *CPU],
    "z3-cpu": ["--zero", "3", *CPU],
}
# name: (from, ranks, ZeRO stage and place)
RESUMED = {
    "z2-exact": ("z2", 2, ["--zero", "2"]),
    "z3-exact": ("z3", 2, ["--zero", "3"]),
    "cpu-exact": ("z2-cpu", 2, ["--zero", "2", *CPU]),
    "ddp-to-z3": ("ddp", 2, ["--zero", "3"]),
    "z2-to-ddp": ("z2", 2, ["--zero", "0"]),
    "z3-to-z2": ("z3", 2, ["--zero", "2"]),
    "cpu-to-z3": ("z2-cpu", 2, ["--zero", "3"]),
    "z2-to-cpu": ("z2", 2, ["--zero", "2", *CPU]),
    "z1-2to1": ("z1", 1, ["--zero", "1"]),
    "z3-2to1": ("z3", 1, ["--zero", "3"]),
}


@pytest.fixture(scope="module")
def runs(tiny, pairs, tmp_path_factory):
    """The folder of all runs on a tiny T5; those that go on from a checkpoint have folders of their own."""
    root = tmp_path_factory.mktemp("rates")

    def argv(name, *flags):
        data = ["--train-file", pairs["train"]]
        return ["--model", tiny["t5"], *data, *SHORT, *SHAPE, *flags, "--output", str(root / name)]

    def resumed(ranks):
        chosen = {name: each for name, each in RESUMED.items() if each[1] == ranks}
        return [
            argv(name, *flags, *RATES, "--resume", str(root / start / "checkpoint-3"))
            for name, (start, _, flags) in chosen.items()
        ]

    whole = [argv(name, *flags, *RATES) for name, flags in WHOLE.items()]
    many_runs([*whole, argv("one-rate", "--zero", "2"), *resumed(2)], ranks=2, scratch=root)
    many_runs(resumed(1), ranks=1, scratch=root)
    return root


def curve(folder):
    rows = [row for row in read_records(folder / "metrics.jsonl") if "loss" in row]
    return {row["step"]: (row["loss"], row["grad_norm"], row["lr"]) for row in rows}


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    for step, values in found.items():
        assert values == pytest.approx(expected[step], rel=1e-4), f"step {step}"


@pytest.mark.parametrize("name", WHOLE)
def test_rates_give_same_course_under_every_stage(runs, name):
    assert_close(curve(runs / name), curve(runs / "ddp"))
    assert curve(runs / name)[6][0] != pytest.approx(curve(runs / "one-rate")[6][0], rel=1e-3)


@pytest.mark.parametrize("name", ["z2", "z3", "z2-cpu"])
def test_groups_of_rates_in_checkpoint(runs, name):
    """Groups by rate, from the highest, and by weight decay: final norms and biases, layers, named modules."""
    groups = ZeroCheckpoint(runs / name / "checkpoint-3").param_groups
    rates = [(group["initial_lr"], group["weight_decay"]) for group in groups]
    assert rates == [
        (0.01, 0.0), (0.005, 0.1), (0.005, 0.0), (0.0025, 0.1), (0.0025, 0.0), (0.002, 0.1), (0.002, 0.0), (1e-4, 0.1),
    ]  # fmt: skip
    lr = curve(runs / name)[4][2]
    assert [group["lr"] for group in groups] == pytest.approx([rate / 0.01 * lr for rate, _ in rates])


@pytest.mark.parametrize("name", RESUMED)
def test_rates_survive_resume(runs, name):
    """Exact on the same ranks and stage; otherwise the course of the run that was not interrupted, to rounding."""
    whole = runs / RESUMED[name][0]
    expected = {step: values for step, values in curve(whole).items() if step > 3}
    found = curve(runs / name)
    if name.endswith("exact"):
        assert found == expected
    assert_close(found, expected)
    weights, oracle = (load_file(folder / "model" / "model.safetensors") for folder in (runs / name, whole))
    for key, value in weights.items():
        torch.testing.assert_close(value, oracle[key], rtol=1e-3, atol=1e-5)
