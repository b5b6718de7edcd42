"""One run under every ZeRO stage: what is trained, evaluated, saved and recorded is the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from dsrun.runs.manifest import verify
from dsrun.runs.records import read_records
from tests.integration.conftest import SHORT, many_runs, records

pytestmark = pytest.mark.train

STAGES = {
    "ddp": ["--zero", "0"],
    "zero1": ["--zero", "1"],
    "zero2": ["--zero", "2"],
    "zero3": ["--zero", "3"],
    "zero2-cpu": ["--zero", "2", "--offload", "cpu"],
    "zero3-cpu": ["--zero", "3", "--offload", "cpu"],
    "zero3-optimizer": ["--zero", "3", "--offload", "optimizer"],
}


@pytest.fixture(scope="module")
def stages(tiny, pairs, tmp_path_factory):
    """A T5 trained, evaluated and saved at step 3 and 6 on two ranks, under each stage; folders by stage."""
    scratch = tmp_path_factory.mktemp("stages")
    data = ["--train-file", pairs["train"], "--validation-file", pairs["validation"]]
    shape = ["--max-steps", "6", "--save-steps", "3", "--num-beams", "2", "--per-device-eval-batch-size", "2"]
    folders = {stage: scratch / stage for stage in STAGES}
    many_runs(
        [
            ["--model", tiny["t5"], *flags, *data, *SHORT, *shape, "--output", str(folders[stage])]
            for stage, flags in STAGES.items()
        ],
        ranks=2,
        scratch=scratch,
    )
    return folders


@pytest.mark.parametrize("stage", STAGES)
def test_final_model_loads_and_is_trained(stages, stage, tiny):
    model = AutoModelForSeq2SeqLM.from_pretrained(stages[stage] / "model")
    tokenizer = AutoTokenizer.from_pretrained(stages[stage] / "model")
    before = AutoModelForSeq2SeqLM.from_pretrained(tiny["t5"])
    assert not torch.equal(model.shared.weight, before.shared.weight)
    batch = tokenizer("w1 w2 w3", return_tensors="pt")
    assert model.generate(**batch, max_length=5).shape[0] == 1
    assert not (stages[stage] / "model" / "training_args.bin").exists()


@pytest.mark.parametrize("stage", STAGES)
def test_tied_weights_are_saved_once(stages, stage, tiny):
    """As in the model that was loaded: T5's embedding would else be there four times."""
    saved, loaded = (load_file(Path(folder) / "model.safetensors") for folder in (stages[stage] / "model", tiny["t5"]))
    assert saved.keys() == loaded.keys()


@pytest.mark.parametrize("stage", [s for s in STAGES if s != "ddp"])
def test_evaluation_agrees_between_zero_stages(stages, stage):
    """Loss over validation tokens to fp32 accuracy; generated texts are the same words."""
    keys = ("eval_loss", "eval_perplexity", "eval_chrf", "eval_exact_match")
    reference = [records(stages["ddp"], key)[-1] for key in keys]
    # CPU Adam fuses its operations differently from torch's AdamW.
    tolerance = 5e-3 if "cpu" in stage else 1e-4
    assert [records(stages[stage], key)[-1] for key in keys][:2] == pytest.approx(reference[:2], rel=tolerance)
    if "cpu" not in stage:
        assert [records(stages[stage], key)[-1] for key in keys] == pytest.approx(reference, rel=tolerance)


def test_predictions_cover_validation_rows_once_in_order(stages, pairs):
    """Every validation row is predicted once and in order."""
    rows = [json.loads(line) for line in Path(pairs["validation"]).read_text().splitlines()]
    predictions = [json.loads(line) for line in (stages["zero3"] / "predictions-validation.jsonl").open()]
    assert [p["reference"] for p in predictions] == [r["target"] for r in rows]
    assert [p["source"] for p in predictions] == [r["source"] for r in rows]
    assert all(isinstance(p["prediction"], str) for p in predictions)


@pytest.mark.parametrize("stage", STAGES)
def test_checkpoints_are_complete_and_verified(stages, stage):
    checkpoint = stages[stage] / "checkpoint-3"
    assert verify(checkpoint) == []
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    assert manifest["extra"]["world_size"] == 2
    if stage != "ddp":
        assert any(name.startswith("global_step3/") for name in manifest["files"]), "no DeepSpeed state was saved"


def test_events_record_run_from_start_to_end(stages):
    """The events tell the run from its start through its saves to its end."""
    kinds = [row["kind"] for row in read_records(stages["zero2"] / "events.jsonl") if row["kind"] != "progress"]
    saves = ["checkpoint_begin", "checkpoint_end"] * 2
    assert kinds == ["start", "training", *saves, "evaluate", "end"]
    run = json.loads((stages["zero2"] / "run.json").read_text())
    assert (run["world_size"], run["zero_stage"], run["precision"]) == (2, 2, "fp32")


def test_metrics_rows_hold_documented_keys(stages):
    """Metrics hold what the documentation promises."""
    row = next(row for row in read_records(stages["zero2"] / "metrics.jsonl") if row["step"] == 4)
    assert {
        "step",
        "epoch",
        "loss",
        "lr",
        "grad_norm",
        "tokens",
        "tokens_per_s",
        "host_memory",
        "host_memory_peak",
        "time",
    } <= set(row)
    # Both in bytes: a worker with torch holds more than 100 MiB, and never more than at its peak.
    assert 100 * 2**20 < row["host_memory"] <= row["host_memory_peak"] < 2**40
    tokens = records(stages["zero2"], "tokens")
    assert tokens == sorted(tokens)
