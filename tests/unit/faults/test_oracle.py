"""The oracle of the fault tests: no report for a run that lost nothing, and a line for each loss."""

from __future__ import annotations

import shutil

import pytest

from dsrun.runs.manifest import write_manifest
from dsrun.runs.records import LineAppender, append_start, append_step, ledger_file
from tests.faults.oracle import findings

EPOCH = [[0, 1], [2, 3], [4, 5]]


def metrics(run, steps, *, shift=0.0):
    with LineAppender(run / "metrics.jsonl") as file:
        for step in steps:
            loss = step / 4 + shift
            file.append({"step": step, "loss": loss, "grad_norm": 1.0, "lr": 0.1, "tokens": 10 * step})
            if step % 3 == 0:
                file.append({"step": step, "eval_loss": loss, "eval_seconds": 3.1})


def ledger(run, attempt, start, steps):
    with LineAppender(ledger_file(run, 0)) as file:
        append_start(file, attempt, step=start, ranks=1)
        for step in steps:
            epoch, place = divmod(step - 1, 3)
            append_step(file, attempt, step=step, epoch=epoch, ids=EPOCH[place])


@pytest.fixture
def whole(tmp_path):
    """Six steps, two epochs, a checkpoint and a model."""
    run = tmp_path / "whole"
    (run / "model").mkdir(parents=True)
    (run / "model" / "model.safetensors").write_bytes(b"weights")
    (run / "checkpoint-4").mkdir()
    (run / "checkpoint-4" / "state.pt").write_bytes(b"state")
    write_manifest(run / "checkpoint-4", {"step": 4})
    (run / "FINISHED").touch()
    metrics(run, range(1, 7))
    ledger(run, 0, 0, range(1, 7))
    return run


@pytest.fixture
def disturbed(whole, tmp_path):
    """The same, killed after step 6 was logged and gone on from the checkpoint after step 4."""
    run = tmp_path / "disturbed"
    shutil.copytree(whole, run)
    metrics(run, (5, 6))
    ledger(run, 1, 4, (5, 6))
    return run


def test_oracle_finds_nothing_in_run_without_loss(whole, disturbed):
    assert findings(whole, whole, samples=6) == []
    assert findings(disturbed, whole, samples=6) == []


def unfinished(run):
    (run / "FINISHED").unlink()


def other_weights(run):
    (run / "model" / "model.safetensors").write_bytes(b"weightz")


def no_model(run):
    shutil.rmtree(run / "model")


def other_file(run):
    (run / "model" / "model.safetensors").rename(run / "model" / "model-00001-of-00002.safetensors")


def other_loss(run):
    metrics(run, [6], shift=2**-20)


def one_step_more(run):
    metrics(run, [7])


def one_step_less(run):
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(line for line in lines if '"step": 2,' not in line))


def samples_again(run):
    ledger(run, 2, 4, (4, 6))


def samples_of_others(run):
    with LineAppender(ledger_file(run, 0)) as file:
        append_start(file, 2, step=5, ranks=1)
        append_step(file, 2, step=6, epoch=1, ids=[4])


def no_ledger(run):
    ledger_file(run, 0).unlink()


def torn_checkpoint(run):
    (run / "checkpoint-4" / "state.pt").write_bytes(b"stat")


def no_checkpoint(run):
    shutil.rmtree(run / "checkpoint-4")


def half_written(run):
    (run / "model.partial").mkdir()
    (run / ".saving" / "checkpoint-6").mkdir(parents=True)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (unfinished, ["it did not finish: FINISHED is missing"]),
        (other_weights, ["the final weights differ: model/model.safetensors"]),
        (no_model, ["there is no final model"]),
        (
            other_file,
            ["the final model's files are model-00001-of-00002.safetensors instead of model.safetensors"],
        ),
        (
            other_loss,
            [
                "step 6: loss 1.5000009536743164 instead of 1.5",
                "step 6: eval_loss 1.5000009536743164 instead of 1.5",
            ],
        ),
        (one_step_more, ["steps that should not have been logged: 7"]),
        (one_step_less, ["steps that were not logged: 2"]),
        (
            samples_again,
            [
                "step 4 has lines from 2 ranks instead of 1",
                "step 5 is in no ledger",
                "epoch 1: 2 samples were seen more than once: 0, 1",
                "it saw other samples than the undisturbed run",
            ],
        ),
        (samples_of_others, ["it saw other samples than the undisturbed run"]),
        (no_ledger, ["there is no sample ledger"]),
        (torn_checkpoint, ["checkpoint-4: state.pt: 4 bytes instead of 5"]),
        (no_checkpoint, ["there is no checkpoint"]),
        (half_written, ["left behind: .saving/checkpoint-6", "left behind: model.partial"]),
    ],
)
def test_oracle_names_each_loss_and_nothing_else(whole, disturbed, damage, words):
    """Each thing that was lost is named, and nothing else."""
    damage(disturbed)
    assert sorted(findings(disturbed, whole, samples=6)) == sorted(words)


def test_oracle_tolerances_at_other_world_size(whole, disturbed):
    """At another world size metrics may differ a little, and weights in any way."""
    other_weights(disturbed)
    metrics(disturbed, [6], shift=1e-7)
    assert findings(disturbed, whole, samples=6, relative=1e-5) == []
    metrics(disturbed, [6], shift=1e-3)
    assert findings(disturbed, whole, samples=6, relative=1e-5) != []


def test_oracle_abbreviates_many_differing_steps(whole, disturbed):
    """Of many differing steps only some are shown."""
    metrics(disturbed, range(1, 7), shift=1.0)
    found = findings(disturbed, whole, samples=6)
    assert "… and 3 more like these" in found
    assert len([words for words in found if ": loss " in words]) == 3
