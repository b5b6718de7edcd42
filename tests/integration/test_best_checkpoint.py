"""The best checkpoint is there to be loaded, and the end of a run that stops early is in one."""

from __future__ import annotations

import json

import pytest
from safetensors.torch import load_file

from dsrun.runs.folder import RunFolder
from tests.integration.conftest import SHORT, many_runs, records

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def runs(tmp_path_factory, tiny, pairs):
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
    many_runs([sparse, early], ranks=2, scratch=home)
    return {name: RunFolder(home / name) for name in ("sparse", "early")}


def state(folder, step):
    return json.loads((folder.checkpoint(step) / "trainer_state.json").read_text())


def test_a_best_between_two_saves_is_saved_and_loaded(runs):
    folder = runs["sparse"]
    evaluations = records(folder.path, "eval_loss")
    assert max(evaluations) == evaluations[0]
    assert sorted(step for step, _ in folder.checkpoints()) == [1, 5]
    assert state(folder, 5)["best_global_step"] == 1
    final, best = (load_file(each / "model.safetensors") for each in (folder.model, folder.checkpoint(1)))
    assert all((final[name] == best[name]).all() for name in best)


def test_the_step_at_which_patience_ends_is_saved_though_it_is_not_the_best(runs):
    folder = runs["early"]
    # Three in training, and one of the best model at the end.
    *trained, final = records(folder.path, "eval_loss")
    assert len(trained) == 3
    assert final == pytest.approx(trained[0])
    assert sorted(step for step, _ in folder.checkpoints()) == [1, 3]
    counter = state(folder, 3)["stateful_callbacks"]["StopEarly"]["attributes"]
    assert counter["early_stopping_patience_counter"] == 2
