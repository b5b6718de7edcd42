"""A mixture of three kinds of data on real engines: exact resume, the loss of each set, and its evaluation."""

from __future__ import annotations

import json
import shutil
from collections import Counter

import pytest

from dsrun.runs.records import read_records
from tests.integration.conftest import SHORT, many_runs, phrase
from tests.integration.many_runs import MAY_FAIL
from tests.sample_ledger import ledgers, seen, steps

pytestmark = pytest.mark.train

STEPS = 9
AFTER = 4
"""The step after which the run is interrupted: between two lines of the log, and before the first epoch's end."""
SETS = ("docs", "pairs", "chats")


@pytest.fixture(scope="module")
def mix(tmp_path_factory):
    """mix(weights): a mixture of blocks, prompts and questions as JSON."""
    folder = tmp_path_factory.mktemp("sets")

    def write(name, rows):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(folder / f"{name}.jsonl")

    # 18 blocks of 16 tokens, with the end of each document.
    docs = write("docs", [{"text": phrase(i, 15)} for i in range(18)])
    pairs = [{"prompt": phrase(i, 3) + " ", "completion": phrase(i + 1, 2 + i % 3)} for i in range(20)]
    train, dev = write("pairs", pairs[:14]), write("dev", pairs[14:])
    chats = write("chats", [{"question": phrase(i, 2), "answer": phrase(i + 5, 3)} for i in range(10)])

    def mixture(weights):
        sets = {
            "docs": {"train_file": docs, "validation_file": docs},
            "pairs": {"train_file": train, "validation_file": dev},
            "chats": {"train_file": chats, "validation_split_percentage": 0},
        }
        return json.dumps({"sets": {name: {**sets[name], "weight": weights[name]} for name in SETS}}), dev

    return mixture


@pytest.fixture(scope="module")
def runs(tmp_path_factory, tiny, mix):
    home = tmp_path_factory.mktemp("mixtures")
    mixture, dev = mix({"docs": 1, "pairs": 1, "chats": 2})
    flags = ["--model", tiny["llama"], "--zero", "2", *SHORT, "--block-size", "16", "--predict-with-generate"]
    lines = [
        *flags, "--from-scratch", "--model-config", "attention_dropout=0.1", "--max-steps", str(STEPS), "--save-steps",
        str(AFTER), "--eval_steps", "3", "--micro-batch-size", "2", "--logging-steps", "3", "--sample-ledger",
        "--metric_for_best_model", "pairs_loss",
    ]  # fmt: skip
    whole, resumed = home / "whole", home / "resumed"
    many_runs([[*lines, "--mix", mixture, "--output", str(whole)]], ranks=2, scratch=home)
    for folder in ("resumed", "changed"):
        (home / folder).mkdir()
        shutil.copytree(whole / f"checkpoint-{AFTER}", home / folder / f"checkpoint-{AFTER}")
        for file in ("run.json", "samples-rank-0.jsonl", "samples-rank-1.jsonl"):
            shutil.copy(whole / file, home / folder)
    changed, _ = mix({"docs": 1, "pairs": 1, "chats": 3})
    scores = [*lines[:-1], "docs_bleu"]
    alone = [*flags[2:], "--do-eval", "--validation-file", dev]
    many_runs(
        [
            [*lines, "--mix", mixture, "--output", str(resumed)],
            ["--model", str(whole / "model"), *alone, "--output", str(home / "alone")],
            [MAY_FAIL, *lines, "--mix", changed, "--output", str(home / "changed")],
            [MAY_FAIL, *scores, "--mix", mixture, "--output", str(home / "scores")],
        ],
        ranks=2,
        scratch=home,
    )
    return home


def lines_of(folder):
    """Training lines of metrics.jsonl by step, and the evaluations, without what depends on the clock."""
    rows = read_records(folder / "metrics.jsonl")
    losses = {
        row["step"]: {k: v for k, v in row.items() if "loss" in k or k == "tokens"} for row in rows if "loss" in row
    }
    evaluations = [{k: v for k, v in row.items() if k[:5] == "eval_" and "second" not in k} for row in rows]
    return losses, [row for row in evaluations if row]


def test_resumed_mixture_is_bit_identical(runs):
    """Losses, those of the sets over a log window that the interruption falls into, evaluations and weights."""
    whole, resumed = (lines_of(runs / name) for name in ("whole", "resumed"))
    assert resumed[0] == {step: row for step, row in whole[0].items() if step > AFTER}
    assert resumed[1] == whole[1][1:]
    weights = [(runs / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "resumed")]
    assert weights[0] == weights[1]


def test_resumed_mixture_takes_the_same_samples(runs):
    whole, resumed = ({step: each.ids for step, each in steps(ledgers(runs / n)).items()} for n in ("whole", "resumed"))
    assert whole == resumed


def test_an_epoch_takes_each_set_by_its_weight(runs):
    """42 samples an epoch in six steps: a half of them of the smallest set, which is gone through twice and more."""
    found = seen(ledgers(runs / "whole"))
    ends = {"docs": 18, "pairs": 32, "chats": 42}
    taken = Counter()
    for (epoch, sample), times in found.items():
        if epoch == 0:
            taken[next(name for name, end in ends.items() if sample < end)] += times
    assert taken == {"docs": 11, "pairs": 10, "chats": 21}
    chats = [found[0, sample] for sample in range(32, 42)]
    assert set(chats) == {2, 3}


def test_loss_of_each_set_logged_beside_the_loss(runs):
    losses, _ = lines_of(runs / "whole")
    for row in losses.values():
        parts = [row[f"loss/{name}"] for name in SETS if f"loss/{name}" in row]
        assert parts
        assert min(parts) - 0.2 < row["loss"] < max(parts) + 0.2
    assert all({f"loss/{name}" for name in SETS} <= set(losses[step]) for step in (3, 6, 9))


def test_each_set_is_evaluated_as_if_alone(runs):
    """The final model's loss and scores over one set are those of a run that has no other data."""
    *_, last = lines_of(runs / "whole")[1]
    (alone,) = lines_of(runs / "alone")[1]
    names = [name.removeprefix("eval_") for name in alone]
    assert {"loss", "perplexity", "bleu", "exact_match"} <= set(names)
    assert {name: last[f"eval_pairs_{name}"] for name in names} == pytest.approx({n: alone[f"eval_{n}"] for n in names})
    assert last["eval_docs_loss"] != last["eval_pairs_loss"]
    assert min(last["eval_docs_loss"], last["eval_pairs_loss"]) < last["eval_loss"]
    # Running text has no prompts to generate from, and chats no evaluation data.
    assert "eval_docs_bleu" not in last
    assert not any(name.startswith("eval_chats") for name in last)
    state = json.loads((runs / "whole" / f"checkpoint-{STEPS}" / "trainer_state.json").read_text())
    evaluations = lines_of(runs / "whole")[1]
    assert state["best_metric"] == min(row["eval_pairs_loss"] for row in evaluations)


def test_other_weights_are_other_training_data(runs):
    error = json.loads((runs / "changed" / "error-0.json").read_text())
    assert "checkpoint-4 was saved with other training data" in error["message"]


def test_score_of_a_set_without_prompts_refused_as_best_metric(runs):
    error = json.loads((runs / "scores" / "error-0.json").read_text())
    assert error["message"] == "--metric-for-best-model docs_bleu: the evaluation data of set docs has no prompts"


def test_mixture_recorded_in_run_json(runs):
    recorded = json.loads((runs / "whole" / "run.json").read_text())["specs"]["train"]["mix"]
    assert {name: options["weight"] for name, options in recorded["sets"].items()} == {
        "docs": 1,
        "pairs": 1,
        "chats": 2,
    }
