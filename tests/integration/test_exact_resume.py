"""A resumed run is the uninterrupted one to the bit: every step's loss, gradient norm and the final weights.

Not each combination of stage, model, data path, accumulation and place, but each pair of them.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from dsrun.runs.records import read_records
from tests.integration.conftest import SHORT, many_runs, phrase
from tests.sample_ledger import ledgers, not_once, seen, steps

pytestmark = [pytest.mark.train, pytest.mark.exhaustive]

RANKS = 2
STEPS = 10
SAMPLES = 53
# 53 samples in global batches of 8: an epoch is 7 steps, the last of which is short.
MIDDLE, EPOCH_END, SECOND_EPOCH = 4, 7, 8
DROPOUT = {"t5": "dropout_rate=0.1", "llama": "attention_dropout=0.1"}


@dataclass(frozen=True)
class Case:
    """One command line and the step after which it is interrupted."""

    stage: int
    model: str
    data: str
    accumulation: int
    after: int
    logging: int = 1
    background: bool = False

    def __str__(self) -> str:
        how = f"after{self.after}-log{self.logging}{'-async' if self.background else ''}"
        return f"zero{self.stage}-{self.model}-{self.data}-x{self.accumulation}-{how}"


CASES = [
    Case(0, "t5", "plain", 1, EPOCH_END),
    Case(0, "llama", "workers", 2, MIDDLE),
    Case(0, "llama", "stream", 1, SECOND_EPOCH),
    Case(0, "t5", "grouped", 2, MIDDLE),
    Case(1, "llama", "plain", 2, SECOND_EPOCH),
    Case(1, "t5", "workers", 1, MIDDLE),
    Case(1, "t5", "stream", 2, EPOCH_END),
    Case(1, "llama", "blocks", 1, EPOCH_END),
    Case(2, "t5", "plain", 2, MIDDLE),
    Case(2, "llama", "workers", 1, EPOCH_END),
    Case(2, "t5", "stream", 1, MIDDLE),
    Case(2, "llama", "blocks", 2, SECOND_EPOCH),
    Case(3, "llama", "plain", 1, MIDDLE),
    Case(3, "t5", "workers", 2, SECOND_EPOCH),
    Case(3, "llama", "stream-blocks", 2, MIDDLE),
    Case(3, "llama", "blocks", 1, MIDDLE),
    Case(3, "t5", "stream-worker", 1, EPOCH_END),
    Case(2, "llama", "stream-blocks", 1, SECOND_EPOCH),
    # Interrupted between two lines of the log: the next is the mean of steps before and after.
    Case(0, "llama", "plain", 1, MIDDLE, logging=3),
    Case(3, "t5", "stream", 2, SECOND_EPOCH, logging=3),
    # From a checkpoint written while the steps after it were made.
    Case(0, "t5", "plain", 2, MIDDLE, background=True),
    Case(2, "llama", "plain", 1, SECOND_EPOCH, background=True),
    Case(3, "t5", "workers", 1, EPOCH_END, background=True),
]


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """A text file that makes 53 blocks of 16 tokens, the last of them short."""
    file = tmp_path_factory.mktemp("documents") / "train.jsonl"
    rows, tokens = [], 0
    while tokens < 52 * 16:
        # The end token is one more.
        words = min(3 + len(rows) % 17, 52 * 16 + 5 - tokens - 1)
        rows.append({"text": phrase(len(rows), words)})
        tokens += words + 1
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def flags(case: Case, tiny, pairs, documents) -> list[str]:
    blocks = "blocks" in case.data
    more = {
        "workers": ["--dataloader-num-workers", "2"],
        "grouped": ["--train-sampling-strategy", "group_by_length"],
        "stream": ["--streaming"],
        "stream-worker": ["--streaming", "--dataloader-num-workers", "1"],
        "stream-blocks": ["--streaming"],
    }.get(case.data, [])
    if blocks:
        more = [*more, "--block-size", "16"]
    return [
        "--model", tiny[case.model], "--from-scratch", "--model-config", DROPOUT[case.model],
        "--zero", str(case.stage), "--train-file", documents if blocks else pairs["train"], *more, *SHORT,
        "--gradient-accumulation-steps", str(case.accumulation), "--max-steps", str(STEPS),
        "--save-steps", str(case.after), "--warmup-steps", "2", "--max-grad-norm", "0.5", "--sample-ledger",
        "--validation-split-percentage", "0", "--logging-steps", str(case.logging),
        *(["--async-save"] if case.background else []),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def folders(tiny, pairs, documents, tmp_path_factory):
    """For each case the folders of the whole run and of the one resumed from its checkpoint."""
    scratch = tmp_path_factory.mktemp("exact")
    made = {case: (scratch / f"{case}" / "whole", scratch / f"{case}" / "resumed") for case in CASES}
    lines = {case: flags(case, tiny, pairs, documents) for case in CASES}
    many_runs(
        [[*lines[case], "--output", str(whole)] for case, (whole, _) in made.items()],
        ranks=RANKS,
        scratch=scratch,
    )
    for case, (whole, resumed) in made.items():
        resumed.mkdir()
        shutil.copytree(whole / f"checkpoint-{case.after}", resumed / f"checkpoint-{case.after}")
        for file in ("run.json", "samples-rank-0.jsonl", "samples-rank-1.jsonl"):
            shutil.copy(whole / file, resumed)
    many_runs(
        [[*lines[case], "--output", str(resumed)] for case, (_, resumed) in made.items()],
        ranks=RANKS,
        scratch=scratch,
    )
    return made


def curve(folder: Path) -> dict[int, tuple[float, ...]]:
    """Loss, gradient norm, learning rate and tokens read so far by step."""
    rows = [row for row in read_records(folder / "metrics.jsonl") if "loss" in row]
    return {row["step"]: tuple(row[key] for key in ("loss", "grad_norm", "lr", "tokens")) for row in rows}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_resume_is_bit_identical_to_uninterrupted_run(folders, case):
    """Losses, gradient norms and final weights of a resumed run are those of the uninterrupted one."""
    whole, resumed = folders[case]
    expected = curve(whole)
    assert list(expected) == sorted({1, *range(case.logging, STEPS + 1, case.logging), STEPS})
    assert curve(resumed) == {step: row for step, row in expected.items() if step > case.after}
    weights = [(folder / "model" / "model.safetensors").read_bytes() for folder in (resumed, whole)]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_resume_sees_every_sample_once_per_epoch(folders, case):
    """By the ledgers of the whole run, and by those of a run that was killed at its end and went on from the
    checkpoint: what it does again counts once."""
    whole, resumed = (ledgers(folder) for folder in folders[case])
    assert not_once(whole, samples=SAMPLES) == []
    assert not_once(resumed, samples=SAMPLES) == []
    assert seen(resumed) == seen(whole)
    assert [step.attempts for step in steps(resumed).values()] == [(0,)] * case.after + [(0, 1)] * (STEPS - case.after)
    # All of the first epoch, and those of three steps of the second, which have eight samples on average.
    assert abs(len(seen(whole)) - SAMPLES - 24) <= 6
