"""Elastic resume: saved on N ranks and resumed on M, under another ZeRO stage, with and without offload.

The oracle is always the run that was not interrupted: the same losses, learning rates and final weights, and not one
step more or less. (DeepSpeed issue 6470: a universal checkpoint forced upon the Trainer ended training after a step.)
"""

from __future__ import annotations

import shutil
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dsrun.runs.manifest import verify
from dsrun.runs.records import read_records
from dsrun.train.checkpoint.layout import write_universal
from dsrun.train.checkpoint.zero_shards import ZeroCheckpoint
from tests.integration.conftest import SHORT, many_runs, without
from tests.sample_ledger import ledgers, not_once, steps

pytestmark = [pytest.mark.train, pytest.mark.exhaustive]

# An epoch is 7 global batches, the last of them short: a resume at 4 goes over its end, one at 8 begins in the second.
# Weight decay tells apart parameter groups, a warm-up and a linear decay every step's learning rate, and micro batches
# of 2 are 4 accumulation steps on 1 rank, 2 on 2 ranks and 1 on 4.
SHAPE = [
    "--max-steps",
    "9",
    "--save-steps",
    "4",
    "--warmup-steps",
    "3",
    "--weight-decay",
    "0.1",
    "--seed",
    "7",
]
MICRO = ["--micro-batch-size", "2"]
BF16 = ["--bf16", "true"]
LORA = ["--lora", "4"]
CPU = ["--offload", "cpu"]
EVEN = ["--weight-decay", "0"]

# name: (ranks, model, flags). Each runs from the first to the last step.
WHOLE = {
    "t5-z1-1": (1, "t5", ["--zero", "1"]),
    "llama-z2-1": (1, "llama", ["--zero", "2"]),
    "t5-z3-1": (1, "t5", ["--zero", "3"]),
    "t5-ddp-2": (2, "t5", ["--zero", "0", *EVEN]),
    "llama-z1-2": (2, "llama", ["--zero", "1"]),
    "t5-z2-2": (2, "t5", ["--zero", "2"]),
    "llama-z3-2": (2, "llama", ["--zero", "3"]),
    "llama-z2-bf16-2": (2, "llama", ["--zero", "2", *BF16]),
    "llama-z2-lora-2": (2, "llama", ["--zero", "2", *LORA]),
    "t5-z2-cpu-2": (2, "t5", ["--zero", "2", *CPU, *EVEN]),
    "llama-z1-4": (4, "llama", ["--zero", "1"]),
    "t5-z2-4": (4, "t5", ["--zero", "2"]),
    "t5-z3-4": (4, "t5", ["--zero", "3"]),
}  # fmt: skip

# name: (from, its step, ranks, flags)
RESUMED = {
    "2to1-z1": ("llama-z1-2", 4, 1, ["--zero", "1"]),
    "2to1-z2": ("t5-z2-2", 4, 1, ["--zero", "2"]),
    "2to1-z2-late": ("t5-z2-2", 8, 1, ["--zero", "2"]),
    "2to1-z3": ("llama-z3-2", 4, 1, ["--zero", "3"]),
    "2to1-ddp": ("t5-ddp-2", 4, 1, ["--zero", "0", *EVEN]),
    "2to1-bf16": ("llama-z2-bf16-2", 4, 1, ["--zero", "2", *BF16]),
    "2to1-lora": ("llama-z2-lora-2", 4, 1, ["--zero", "3", *LORA]),
    "2to1-cpu": ("t5-z2-cpu-2", 4, 1, ["--zero", "2", *CPU, *EVEN]),
    "1to2-z1": ("t5-z1-1", 4, 2, ["--zero", "1"]),
    "1to2-z2": ("llama-z2-1", 4, 2, ["--zero", "2"]),
    "1to2-z3": ("t5-z3-1", 4, 2, ["--zero", "3"]),
    "4to2-z1": ("llama-z1-4", 4, 2, ["--zero", "1"]),
    "4to2-z2": ("t5-z2-4", 4, 2, ["--zero", "2"]),
    "4to2-z3": ("t5-z3-4", 4, 2, ["--zero", "3"]),
    "z2-to-z3": ("t5-z2-2", 4, 2, ["--zero", "3"]),
    "z3-to-z2": ("llama-z3-2", 4, 2, ["--zero", "2"]),
    "z1-to-z2": ("llama-z1-2", 4, 2, ["--zero", "2"]),
    "ddp-to-z3": ("t5-ddp-2", 4, 2, ["--zero", "3", *EVEN]),
    "z3-to-ddp": ("llama-z3-2", 4, 2, ["--zero", "0"]),
    "cpu-to-gpu": ("t5-z2-cpu-2", 4, 2, ["--zero", "2", *EVEN]),
    # Shuffles its parameters (round_robin_gradients) unless the resume keeps it from that.
    "gpu-to-cpu": ("t5-ddp-2", 4, 2, ["--zero", "2", *CPU, *EVEN]),
    "fp32-to-bf16": ("llama-z1-2", 4, 2, ["--zero", "1", *BF16]),
    "bf16-to-fp32": ("llama-z2-bf16-2", 4, 2, ["--zero", "2"]),
}  # fmt: skip
# How near the losses come to those of the uninterrupted run: sums in bf16 differ by the number of ranks.
NEAR = {"2to1-bf16": 1e-3, "fp32-to-bf16": 1e-2, "bf16-to-fp32": 1e-2}
EXACT = [name for name in RESUMED if name not in NEAR]


@pytest.fixture(scope="module")
def runs(tiny, pairs, tmp_path_factory):
    """The folder of all runs; those that go on from a checkpoint start in folders of their own."""
    root = tmp_path_factory.mktemp("elastic")
    data = ["--train-file", pairs["train"]]

    def argv(name, model, flags, *more):
        shape = [*SHORT, *SHAPE, *MICRO, *flags, *more]
        return ["--model", tiny[model], *data, *shape, "--output", str(root / name)]

    def whole(ranks):
        return [argv(name, model, flags) for name, (n, model, flags) in WHOLE.items() if n == ranks]

    def resumed(ranks):
        return [
            argv(name, WHOLE[start][1], flags, "--resume", str(root / start / f"checkpoint-{step}"))
            for name, (start, step, n, flags) in RESUMED.items()
            if n == ranks
        ]

    many_runs(whole(4), ranks=4, scratch=root)
    many_runs(whole(1), ranks=1, scratch=root)
    many_runs(whole(2) + resumed(2), ranks=2, scratch=root)
    many_runs(resumed(1), ranks=1, scratch=root)
    return root


def by_step(run, key):
    return {row["step"]: row[key] for row in read_records(run / "metrics.jsonl") if "loss" in row}


def weights(run):
    return load_file(run / "model" / "model.safetensors")


@pytest.mark.parametrize("name", RESUMED)
def test_elastic_resume_takes_exactly_the_remaining_steps(runs, name):
    """It takes the steps that were left and no other."""
    _, step, _, _ = RESUMED[name]
    assert list(by_step(runs / name, "loss")) == list(range(step + 1, 10))
    assert (runs / name / "FINISHED").exists()


@pytest.mark.parametrize("name", EXACT)
def test_elastic_resume_losses_equal_uninterrupted_run(runs, name):
    start, *_ = RESUMED[name]
    expected = by_step(runs / start, "loss")
    # CPU Adam fuses its operations differently from torch's AdamW.
    tolerance = 1e-4 if name in ("cpu-to-gpu", "gpu-to-cpu") else 1e-5
    for step, loss in by_step(runs / name, "loss").items():
        assert loss == pytest.approx(expected[step], rel=tolerance), step


@pytest.mark.parametrize("name", NEAR)
def test_elastic_resume_from_fp32_master_weights(runs, name):
    """Also in another precision than that of the checkpoint, whose files then have other names."""
    expected, losses = by_step(runs / RESUMED[name][0], "loss"), by_step(runs / name, "loss")
    assert list(losses.values()) == pytest.approx([expected[step] for step in losses], rel=NEAR[name])


def test_elastic_resume_bf16_has_the_weights(runs):
    """The first loss shows that they are the same."""
    first = by_step(runs / "2to1-bf16", "loss")[5]
    assert first == pytest.approx(by_step(runs / "llama-z2-bf16-2", "loss")[5], rel=1e-5)


@pytest.mark.parametrize("name", RESUMED)
def test_elastic_resume_keeps_learning_rate_schedule(runs, name):
    """Every step has the learning rate of the uninterrupted run."""
    start, *_ = RESUMED[name]
    expected = by_step(runs / start, "lr")
    assert by_step(runs / name, "lr") == {step: expected[step] for step in by_step(runs / name, "lr")}


@pytest.mark.parametrize("name", EXACT)
def test_elastic_resume_final_weights_equal_uninterrupted_run(runs, name):
    start, *_ = RESUMED[name]
    expected, found = weights(runs / start), weights(runs / name)
    assert expected.keys() == found.keys()
    tolerance = 1e-4 if "cpu" in name else 5e-6
    for key, value in expected.items():
        assert torch.allclose(found[key], value, rtol=0, atol=tolerance), key


def test_elastic_resume_leaves_source_checkpoint_unchanged(runs):
    """A checkpoint that was converted is left as it was."""
    assert all(verify(runs / start / f"checkpoint-{step}") == [] for start, step, *_ in RESUMED.values())


@pytest.mark.parametrize("name", RESUMED)
def test_universal_checkpoint_is_deleted_after_first_save(runs, name):
    """The conversion is deleted once the run has a checkpoint of its own."""
    assert not (runs / name / ".universal").exists()
    assert (runs / name / "checkpoint-9").is_dir()


@pytest.mark.parametrize("name", ["4to2-z2", "1to2-z3", "gpu-to-cpu"])
def test_checkpoint_saved_after_elastic_resume_is_ordinary(runs, name):
    """Of two ranks, under the stage it runs, and whole for each of its parameters."""
    saved = ZeroCheckpoint(runs / name / "checkpoint-8")
    assert saved.world_size == 2
    final = weights(runs / name)
    later = ZeroCheckpoint(runs / name / "checkpoint-9")
    assert all(torch.equal(later.read(key), final[key]) for key in later.parameters)
    assert saved.parameters.keys() == later.parameters.keys()


def test_universal_checkpoint_equals_ds_to_universal_output(runs, tmp_path):
    """For ZeRO-2, whose output ZeRO-2 can load; where parameters are not shuffled."""
    from deepspeed.checkpoint import ds_to_universal

    checkpoint = runs / "t5-z2-2" / "checkpoint-4"
    ds_to_universal.main(
        Namespace(
            input_folder=str(checkpoint / "global_step4"),
            output_folder=str(tmp_path / "theirs"),
            num_extract_workers=1,
            num_merge_workers=1,
            keep_temp_folder=False,
            strict=True,
            inject_missing_state=True,
        )
    )
    write_universal(ZeroCheckpoint(checkpoint), tmp_path / "ours", schedule=None, fp16=False)
    found = sorted((tmp_path / "theirs" / "zero").glob("*/*.pt"))
    # Tied weights once more, which no parameter of the optimizer goes by.
    checkpoint_aliases = ZeroCheckpoint(checkpoint).aliases
    assert len(found) > 100
    for theirs in found:
        if theirs.parent.name in checkpoint_aliases:
            continue
        ours = tmp_path / "ours" / "global_step4" / "zero" / theirs.parent.name / theirs.name
        expected = torch.load(theirs, weights_only=False)
        value = torch.load(ours, weights_only=False)
        if isinstance(expected, dict):
            assert torch.equal(value["param"], expected["param"]), theirs
        else:
            assert int(value) == int(expected), theirs


def test_elastic_resume_keeps_global_batch_derived_from_ranks(tiny, pairs, tmp_path):
    """Steps are counted in global batches: with another one, samples would be seen twice or never."""
    flags = [
        "--model", tiny["llama"], "--train-file", pairs["train"], *without(SHORT, "--global-batch-size"), *SHAPE,
        *MICRO, "--zero", "1", "--sample-ledger", "--output", str(tmp_path / "run"),
    ]  # fmt: skip
    many_runs([flags], ranks=2, scratch=tmp_path)
    whole = by_step(tmp_path / "run", "loss")
    for name in ("checkpoint-8", "checkpoint-9"):
        shutil.rmtree(tmp_path / "run" / name)
    many_runs([flags], ranks=1, scratch=tmp_path)
    assert by_step(tmp_path / "run", "loss") == pytest.approx(whole, rel=1e-5)
    assert {step.ranks for step in steps(ledgers(tmp_path / "run")).values()} == {1, 2}
    assert not_once(ledgers(tmp_path / "run")) == []


def test_best_checkpoint_older_than_elastic_resume_is_loaded(tiny, pairs, tmp_path):
    """A learning rate that spoils the model: the best evaluation is at step 4, saved by another number of ranks."""
    data = ["--train-file", pairs["train"], "--validation-file", pairs["validation"]]
    spoil = ["--learning-rate", "3", "--lr-scheduler-type", "constant_with_warmup", "--warmup-steps", "9"]
    best = [
        "--load-best-model-at-end",
        "--save-strategy",
        "steps",
        "--eval-strategy",
        "steps",
        "--eval-steps",
        "4",
    ]
    shape = [*SHORT, *SHAPE, *MICRO, "--predict-with-generate", "false", *best, *spoil, "--zero", "2"]
    out = tmp_path / "best"
    argv = ["--model", tiny["t5"], *data, *shape, "--output", str(out)]
    many_runs([argv], ranks=2, scratch=tmp_path)
    for name in ("checkpoint-9", "model", "FINISHED"):
        path = out / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = [row for row in read_records(out / "metrics.jsonl") if "eval_loss" in row]
    assert before[0]["eval_loss"] < before[1]["eval_loss"]
    many_runs([[*argv, "--resume", "auto"]], ranks=1, scratch=tmp_path)
    saved = load_file(out / "checkpoint-4" / "model.safetensors")
    assert all(torch.equal(value, saved[key]) for key, value in weights(out).items())
    assert not Path(out / ".universal").exists()
