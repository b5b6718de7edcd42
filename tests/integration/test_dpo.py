"""`--task dpo` on real engines: one curve on any ranks, stages and micro batches; exact resume; what is evaluated."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass

import pytest

from dsrun.runs.records import read_records
from dsrun.train.loss.dpo import METRICS
from tests.integration.conftest import FP32, dsrun, many_runs

pytestmark = pytest.mark.train

STEPS, SAVED, LOGGED = 8, 4, 3


@dataclass(frozen=True)
class Case:
    stage: int
    micro: int
    ranks: int = 2
    lora: bool = False

    def __str__(self) -> str:
        return f"{'lora-' if self.lora else ''}zero{self.stage}-{self.ranks}x{self.micro}"


WEIGHTS = [Case(0, 2, ranks=1), Case(0, 4), Case(2, 2), Case(3, 4)]
ADAPTERS = [Case(0, 8, ranks=1, lora=True), Case(2, 4, lora=True), Case(3, 2, lora=True)]
RESUMED = [Case(2, 2), Case(3, 4), Case(3, 2, lora=True)]


def flags(case, tiny, preferences, output):
    return [
        "--task", "dpo", "--model", tiny["llama"], "--train-file", preferences["train"], "--validation-file",
        preferences["validation"], "--zero", str(case.stage), *FP32, "--global-batch-size", "8", "--micro-batch-size",
        str(case.micro), "--learning-rate", "0.01", "--max-steps", str(STEPS), "--save-steps", str(SAVED),
        "--logging-steps", str(LOGGED), *(["--lora", "4"] if case.lora else []), "--output", str(output),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def runs(tiny, preferences, tmp_path_factory):
    """The folder of each case, and those of the cases that are resumed in the middle."""
    scratch = tmp_path_factory.mktemp("dpo")
    whole = {case: scratch / str(case) for case in WEIGHTS + ADAPTERS}
    for ranks in (1, 2):
        argvs = [flags(case, tiny, preferences, folder) for case, folder in whole.items() if case.ranks == ranks]
        many_runs(argvs, ranks=ranks, scratch=scratch)
    resumed = {case: scratch / f"{case}-resumed" for case in RESUMED}
    for case, folder in resumed.items():
        name = f"checkpoint-{SAVED}"
        shutil.copytree(whole[case] / name, folder / name)
        shutil.copy(whole[case] / "run.json", folder)
    many_runs([flags(case, tiny, preferences, folder) for case, folder in resumed.items()], ranks=2, scratch=scratch)
    return whole, resumed


def logged(folder, key="loss"):
    """What the log lines of training say, by step; the evaluation's for a key that begins with eval_."""
    names = [f"eval_{name}" for name in ("loss", *METRICS)] if key == "eval_loss" else ["loss", "grad_norm", *METRICS]
    return {row["step"]: [row[name] for name in names] for row in read_records(folder / "metrics.jsonl") if key in row}


@pytest.mark.parametrize("cases", [WEIGHTS, ADAPTERS], ids=["weights", "adapters"])
def test_dpo_curves_equal_across_ranks_stages_micro_batches(runs, cases):
    """Losses, rewards and evaluations are those of the whole batch on one rank, whatever it is cut into."""
    whole, _ = runs
    for key in ("loss", "eval_loss"):
        expected = logged(whole[cases[0]], key)
        assert expected
        for case in cases[1:]:
            found = logged(whole[case], key)
            assert list(found) == list(expected)
            for step, row in expected.items():
                assert found[step] == pytest.approx(row, rel=1e-3, abs=1e-5), (case, key, step)


def test_dpo_learns_what_is_preferred(runs):
    """The loss falls below log 2, and the chosen answers gain on the rejected ones."""
    rows = [row for row in read_records(runs[0][WEIGHTS[0]] / "metrics.jsonl") if "loss" in row]
    assert rows[0]["loss"] > 0.69
    assert rows[-1]["loss"] < 0.65
    assert rows[-1]["rewards/margins"] > 0.1


@pytest.mark.parametrize("case", RESUMED, ids=str)
def test_dpo_resume_is_bit_identical(runs, case):
    """The reference is the model as it was before training, and a log line counts all of its steps."""
    whole, resumed = (folders[case] for folders in runs)
    expected = {step: row for step, row in logged(whole).items() if step > SAVED}
    assert list(expected) == [6, 8]
    assert logged(resumed) == expected
    name = "adapter/adapter_model.safetensors" if case.lora else "model/model.safetensors"
    assert (resumed / name).read_bytes() == (whole / name).read_bytes()


def test_dpo_as_a_command(tiny, preferences, tmp_path):
    """As typed: the best checkpoint by its accuracy, the header, run.json."""
    ran = dsrun(
        *flags(Case(2, 4), tiny, preferences, tmp_path / "run")[:-2], "--nproc", 2, "--eval-steps", 4,
        "--dpo-beta", 0.2, "--metric-for-best-model", "rewards/accuracies", "--load-best-model-at-end",
        output=tmp_path / "run",
    ).ok()  # fmt: skip
    assert "dpo (sigmoid, beta 0.2)" in ran.err
    assert "rewards/accuracies" in ran.err
    assert json.loads((tmp_path / "run" / "run.json").read_text())["task"] == "dpo"
