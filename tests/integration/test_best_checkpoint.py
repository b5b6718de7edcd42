"""The best checkpoint is there to be loaded, and the end of a run that stops early is in one."""

from __future__ import annotations

import json

import pytest
from safetensors.torch import load_file

from dsrun.runs.folder import RunFolder
from tests.integration.conftest import SHORT, many_runs, records
from tests.integration.many_runs import MAY_FAIL

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def runs(tmp_path_factory, tiny, pairs):
    """Name -> run folder. `damaged` is started again after its end, with a bit of its best checkpoint flipped."""
    home = tmp_path_factory.mktemp("best")

    def flags(name, *more):
        return [
            "--model", tiny["llama"], "--zero", "0", "--train-file", pairs["train"], "--validation-file",
            pairs["validation"], *SHORT, "--eval_strategy", "steps", "--eval_steps", "1", "--max-steps", "5",
            # The worst loss counts as the best, so that the first evaluation yields the best and no later one does.
            "--metric_for_best_model", "loss", "--greater_is_better", "true", "--output", str(home / name), *more,
        ]  # fmt: skip

    sparse = flags("sparse", "--load_best_model_at_end", "--save-every", "2", "--keep", "1")
    early = flags("early", "--save_strategy", "best", "--early-stopping", "2")
    damaged = flags("damaged", "--load_best_model_at_end", "--save-every", "2", "--keep", "1")
    many_runs([sparse, early, damaged], ranks=2, scratch=home)
    weights = home / "damaged" / "checkpoint-1" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 64
    weights.write_bytes(content)
    many_runs([[MAY_FAIL, *damaged]], ranks=2, scratch=home)
    return {name: RunFolder(home / name) for name in ("sparse", "early", "damaged")}


def state(folder, step):
    return json.loads((folder.checkpoint(step) / "trainer_state.json").read_text())


def test_best_checkpoint_between_two_saves_is_saved_and_loaded(runs):
    """A best evaluation between two regular saves gets a checkpoint, which becomes the final model."""
    folder = runs["sparse"]
    evaluations = records(folder.path, "eval_loss")
    assert max(evaluations) == evaluations[0]
    assert sorted(step for step, _ in folder.checkpoints()) == [1, 5]
    assert state(folder, 5)["best_global_step"] == 1
    final, best = (load_file(each / "model.safetensors") for each in (folder.model, folder.checkpoint(1)))
    assert all((final[name] == best[name]).all() for name in best)


def test_corrupt_best_checkpoint_is_not_loaded_as_final_model(runs):
    """Its file loads as well as the whole one, so that nothing else would tell."""
    run = runs["damaged"].path
    for rank in range(2):
        error = json.loads((run / f"error-{rank}.json").read_text())
        assert error["message"].startswith(
            "the best checkpoint, checkpoint-1, cannot be loaded: model.safetensors: contents differ"
        )
        assert error["cause"] == "checkpoint_corrupt"


def test_early_stopping_saves_checkpoint_of_its_last_step(runs):
    """The step at which early stopping's patience ends is saved, though it is not the best."""
    folder = runs["early"]
    # Three in training, and one of the best model at the end.
    *trained, final = records(folder.path, "eval_loss")
    assert len(trained) == 3
    assert final == pytest.approx(trained[0])
    assert sorted(step for step, _ in folder.checkpoints()) == [1, 3]
    counter = state(folder, 3)["stateful_callbacks"]["StopEarly"]["attributes"]
    assert counter["early_stopping_patience_counter"] == 2
