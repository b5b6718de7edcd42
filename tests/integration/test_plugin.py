"""The example plugins of docs/examples on real engines: what they make of data, loss, metrics and resuming."""

from __future__ import annotations

import json
import shutil
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dsrun.runs.records import read_records
from tests.integration.conftest import SHORT, dsrun, many_runs, phrase, records
from tests.integration.test_bad_input import refused

pytestmark = pytest.mark.train

EXAMPLES = Path(__file__).parents[2] / "docs/examples"


@pytest.fixture(autouse=True)
def examples(monkeypatch):
    """The examples in Python's path, as their users have them in the working folder."""
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES))


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    """Questions with a good, a fair and a bad answer each, and some that have only bad ones."""
    file = tmp_path_factory.mktemp("questions") / "questions.jsonl"
    ratings = [(5, 3, 1) if i % 4 else (1, 2, 0) for i in range(40)]
    rows = [
        {
            "question": phrase(i, 4),
            "answers": [{"text": phrase(i + rating, 3), "rating": rating} for rating in rated],
        }
        for i, rated in enumerate(ratings)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def test_loss_of_plugin_equal_on_one_and_two_ranks(tiny, pairs, tmp_path):
    """Whatever the ranks, micro batches and stages; and it is not the loss that there is without the plugin."""
    cases = list(product(("t5", "llama"), ("2", "3"), ((1, 8), (1, 2), (2, 2))))
    folders = {case: tmp_path / f"{case[0]}-{case[1]}-{case[2][0]}x{case[2][1]}" for case in cases}

    def argv(case, *more):
        model, stage, (_, micro) = case
        return ["--model", tiny[model], "--zero", stage, "--train-file", pairs["train"], *SHORT, "--max-steps", "4",
                "--micro-batch-size", str(micro), "--save-strategy", "no", *more]  # fmt: skip

    plugin = ["--plugin", "focal_loss:FocalLoss", "--predict-with-generate", "false"]
    for ranks in (1, 2):
        mine = [case for case in cases if case[2][0] == ranks]
        runs = [[*argv(case, *plugin), "--output", str(folders[case])] for case in mine]
        if ranks == 1:
            runs += [[*argv((m, "2", (1, 8))), "--output", str(tmp_path / f"{m}-stock")] for m in ("t5", "llama")]
        many_runs(runs, ranks=ranks, scratch=tmp_path)
    for model in ("t5", "llama"):
        reference = records(folders[model, "2", (1, 8)], "loss")
        assert max(reference) - min(reference) > 0.01, "a loss that does not move would agree with anything"
        assert reference[0] < 0.99 * records(tmp_path / f"{model}-stock", "loss")[0]
        for case in (case for case in cases if case[0] == model):
            assert records(folders[case], "loss") == pytest.approx(reference, rel=1e-4), case


def test_plugin_metric_decides_the_best_checkpoint(tiny, pairs, tmp_path):
    done = dsrun(
        "--model", tiny["t5"], "--train-file", pairs["train"], "--validation-file", pairs["validation"], *SHORT,
        "--zero", "2", "--nproc", "2", "--plugin", "focal_loss:FocalLoss", "--metric-for-best-model", "last_word",
        "--early-stopping", "1", "--eval-strategy", "steps", "--eval-steps", "2", "--max-steps", "8",
        output=tmp_path / "run",
    ).ok()  # fmt: skip
    assert all("eval_last_word" in row and "eval_perplexity" in row for row in done.evaluations)
    assert "last word" in done.err
    run = json.loads((tmp_path / "run/run.json").read_text())
    assert run["plugin"]["name"] == "focal_loss:FocalLoss"
    assert run["plugin"]["file"] == str(EXAMPLES / "focal_loss.py")
    assert f"best         last_word {max(row['eval_last_word'] for row in done.evaluations):.4g}" in done.err


def test_plugin_run_resumes_exactly_and_tells_of_changes(tiny, questions, tmp_path, monkeypatch):
    """Rows and loss of a plugin: the resumed run is the uninterrupted one to the bit. A changed plugin is reported."""
    code = tmp_path / "code"
    code.mkdir()
    joined = (EXAMPLES / "rated_answers.py").read_text() + (EXAMPLES / "focal_loss.py").read_text().partition(
        "from __future__ import annotations\n"
    )[2]
    (code / "joined.py").write_text(f"{joined}\n\nclass Both(RatedAnswers, FocalLoss):\n    pass\n")
    monkeypatch.setenv("PYTHONPATH", str(code))
    flags = ["--model", tiny["llama"], "--zero", "2", "--train-file", questions, *SHORT, "--plugin", "joined:Both",
             "--max-steps", "6", "--save-steps", "3", "--nproc", "2", "--predict-with-generate", "false"]  # fmt: skip
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    first = dsrun(*flags, output=whole).ok()
    resumed.mkdir()
    shutil.copytree(whole / "checkpoint-3", resumed / "checkpoint-3")
    shutil.copy(whole / "run.json", resumed)
    with (code / "joined.py").open("a") as file:
        file.write("# changed\n")
    second = dsrun(*flags, output=resumed).ok()
    assert "the plugin was joined:Both (source" in second.err
    assert second.losses == first.losses[3:]
    ours, theirs = (load_file(run / "model/model.safetensors") for run in (resumed, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_plugin_rows_become_pairs(tiny, questions, tmp_path):
    """Two good answers of each question that has any; `dsrun prepare` makes the same, and training finds it."""
    flags = ["--model", tiny["t5"], "--zero", "0", "--train-file", questions, "--validation-file", questions, *SHORT,
             "--plugin", "rated_answers:RatedAnswers", "--max-steps", "2"]  # fmt: skip
    done = dsrun(*flags, output=tmp_path / "run").ok()
    assert "questions.jsonl: 60 train, 30 validation" in done.err
    assert len(read_records(tmp_path / "run/predictions-validation.jsonl")) == 30


def test_error_in_a_plugin_is_one_line(tiny, pairs, tmp_path, monkeypatch):
    (tmp_path / "wrong.py").write_text(
        "from dsrun.plugin import Plugin\n"
        "class Wrong(Plugin):\n"
        "    api_version = 1\n"
        "    def collate(self, batch, rows):\n"
        "        return batch | {'extra': batch['nonsuch']}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    flags = ["--model", tiny["t5"], "--train-file", pairs["train"], *SHORT, "--plugin", "wrong:Wrong", "--zero", "2"]
    for workers in ("0", "1"):
        done = dsrun(*flags, "--dataloader-num-workers", workers, output=tmp_path / f"run-{workers}")
        refused(done, "--plugin wrong:Wrong: collate() failed at", "wrong.py:5: KeyError: 'nonsuch'")
