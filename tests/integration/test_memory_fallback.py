"""Continuing with less memory: the same training in smaller micro batches, from the checkpoint of the larger ones."""

from __future__ import annotations

import json

import pytest

from dsrun.launch.memory_fallback import MemoryFallback
from dsrun.runs.folder import RunFolder
from dsrun.runs.records import read_records
from tests.integration.conftest import SHORT, many_runs, records

pytestmark = pytest.mark.train

STEPS = "6"


@pytest.fixture(scope="module")
def runs(tmp_path_factory, tiny, pairs):
    home = tmp_path_factory.mktemp("remedies")

    def flags(name, stage, *more):
        return [
            "--model", tiny["llama"], "--zero", stage, "--train-file", pairs["train"], *SHORT,
            "--validation-split-percentage", "0", "--save-every", "3", "--max-steps", STEPS,
            "--output", str(home / name), *more,
        ]  # fmt: skip

    whole = {stage: flags(f"whole-{stage}", stage) for stage in ("0", "3")}
    halved = {stage: flags(f"halved-{stage}", stage) for stage in ("0", "3")}
    auto = flags("auto", "2", "--micro-batch-size", "auto", "--global-batch-size", "32")
    often = flags("often", "0")
    often[often.index("--save-every") + 1] = "auto"
    many_runs([*whole.values(), *halved.values(), auto, often], ranks=2, scratch=home)
    for stage in halved:
        folder = RunFolder(home / f"halved-{stage}")
        # As after an out-of-memory error in step 4: the supervisor has written the fallback.
        folder.finished.unlink()
        folder.checkpoint(6).rename(home / f"gone-{stage}")
        fallback = MemoryFallback(halvings=1, recompute=True)
        (folder.path / "remedy.json").write_text(json.dumps(fallback.as_dict()))
    many_runs(list(halved.values()), ranks=2, scratch=home)
    return {path.name: RunFolder(path) for path in home.iterdir() if path.is_dir()}


def batch(folder):
    found = json.loads(folder.run_json.read_text())["batch"]
    return found["micro_batch"], found["accumulation"], found["global_batch"]


@pytest.mark.parametrize("stage", ["0", "3"])
def test_halved_micro_batch_resumes_with_same_losses(runs, stage):
    """Half the micro batch gives the same losses from the same checkpoint."""
    whole, halved = runs[f"whole-{stage}"], runs[f"halved-{stage}"]
    assert batch(whole) == (4, 1, 8)
    assert batch(halved) == (2, 2, 8)
    first, again = records(halved.path, "loss")[:6], records(halved.path, "loss")[6:]
    assert first == records(whole.path, "loss")
    assert again == pytest.approx(first[3:], rel=1e-5)
    assert json.loads(halved.run_json.read_text())["specs"]["train"]["gradient_checkpointing"] is True


def test_auto_micro_batch_starts_at_global_batch_per_rank(runs):
    """An automatic micro batch begins with a rank's whole share of the global batch."""
    assert batch(runs["auto"]) == (16, 1, 32)


def test_adaptive_save_interval_saves_last_step(runs):
    """Saving by the clock still saves the end."""
    assert [step for step, _ in runs["often"].checkpoints()] == [6]
    assert [row["kind"] for row in read_records(runs["often"].events)][-1] == "end"
