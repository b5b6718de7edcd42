"""`--task distill` on real engines: one curve on any ranks and stages, causal and seq2seq; resume."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass

import pytest

from dsrun.runs.records import read_records
from dsrun.train.loss.distill import METRICS
from tests.integration.conftest import FP32, dsrun, make_model, many_runs

pytestmark = pytest.mark.train

STEPS, SAVED = 6, 3


@dataclass(frozen=True)
class Case:
    kind: str
    stage: int
    micro: int
    ranks: int = 2
    lora: bool = False

    def __str__(self) -> str:
        return f"{self.kind}-{'lora-' if self.lora else ''}zero{self.stage}-{self.ranks}x{self.micro}"


CASES = [
    Case("llama", 0, 8, ranks=1), Case("llama", 0, 2), Case("llama", 2, 4), Case("llama", 3, 2),
    Case("t5", 0, 8, ranks=1), Case("t5", 3, 4),
    Case("llama", 0, 8, ranks=1, lora=True), Case("llama", 3, 4, lora=True),
]  # fmt: skip
RESUMED = [Case("llama", 2, 4), Case("llama", 3, 2)]


@pytest.fixture(scope="module")
def teachers(tmp_path_factory):
    """A causal LM with more rows than it has tokens for, and an encoder-decoder; other weights than those of
    `tiny`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    folder = tmp_path_factory.mktemp("teachers")
    found = {}
    for kind, auto in (("llama", AutoModelForCausalLM), ("t5", AutoModelForSeq2SeqLM)):
        path = make_model(folder / kind, kind)
        model = auto.from_pretrained(path)
        torch.manual_seed(1)
        for parameter in model.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
        if kind == "llama":
            model.resize_token_embeddings(70, mean_resizing=False)
        model.save_pretrained(path)
        found[kind] = str(path)
    return found


def flags(case, tiny, teachers, pairs, output):
    return [
        "--task", "distill", "--teacher", teachers[case.kind], "--model", tiny[case.kind], "--train-file",
        pairs["train"], "--validation-file", pairs["validation"], "--zero", str(case.stage), *FP32,
        "--distill-loss", "jsd", "--distill-alpha", "0.2", "--distill-temperature", "2",
        "--global-batch-size", "8", "--micro-batch-size", str(case.micro), "--learning-rate", "0.01", "--max-steps",
        str(STEPS), "--save-steps", str(SAVED), "--logging-steps", "1", *(["--lora", "4"] if case.lora else []),
        *(["--predict_with_generate", "false"] if case.kind == "t5" else []), "--output", str(output),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def runs(tiny, teachers, pairs, tmp_path_factory):
    """The folder of each case, and those of the cases that are resumed in the middle."""
    scratch = tmp_path_factory.mktemp("distill")
    whole = {case: scratch / str(case) for case in CASES}
    for ranks in (1, 2):
        argvs = [flags(case, tiny, teachers, pairs, folder) for case, folder in whole.items() if case.ranks == ranks]
        many_runs(argvs, ranks=ranks, scratch=scratch)
    resumed = {case: scratch / f"{case}-resumed" for case in RESUMED}
    for case, folder in resumed.items():
        name = f"checkpoint-{SAVED}"
        shutil.copytree(whole[case] / name, folder / name)
        shutil.copy(whole[case] / "run.json", folder)
    argvs = [flags(case, tiny, teachers, pairs, folder) for case, folder in resumed.items()]
    many_runs(argvs, ranks=2, scratch=scratch)
    return whole, resumed


def logged(folder, prefix=""):
    names = [f"eval_{name}" for name in ("loss", *METRICS)] if prefix else ["loss", "grad_norm"]
    rows = read_records(folder / "metrics.jsonl")
    return {row["step"]: [row[name] for name in names] for row in rows if f"{prefix}loss" in row}


@pytest.mark.parametrize(("kind", "lora"), [("llama", False), ("t5", False), ("llama", True)])
def test_distillation_equal_across_ranks_stages_micro_batches(runs, kind, lora):
    """Losses and evaluations are those of the whole batch on one rank."""
    whole, _ = runs
    first, *rest = [case for case in CASES if (case.kind, case.lora) == (kind, lora)]
    for prefix in ("", "eval_"):
        expected = logged(whole[first], prefix)
        assert expected
        for case in rest:
            found = logged(whole[case], prefix)
            assert list(found) == list(expected)
            for step, row in expected.items():
                assert found[step] == pytest.approx(row, rel=1e-3, abs=1e-5), (case, prefix, step)


def test_student_comes_closer_to_its_teacher(runs):
    losses = [row[0] for row in logged(runs[0][CASES[0]]).values()]
    assert losses[-1] < 0.98 * losses[0]


@pytest.mark.parametrize("case", RESUMED, ids=str)
def test_distillation_resume_is_bit_identical(runs, case):
    whole, resumed = (folders[case] for folders in runs)
    expected = {step: row for step, row in logged(whole).items() if step > SAVED}
    assert expected
    assert logged(resumed) == expected


def test_distillation_as_a_command(tiny, teachers, pairs, tmp_path):
    """The header, run.json and the card name the teacher; other vocabularies' rows are said to be left out."""
    ran = dsrun(
        *flags(Case("llama", 2, 4), tiny, teachers, pairs, tmp_path)[:-2], "--nproc", 2, "--eval-steps", 3,
        "--metric-for-best-model", "divergence", "--load-best-model-at-end", output=tmp_path / "run",
    ).ok()  # fmt: skip
    assert f"distill (jsd, from {teachers['llama']})" in ran.err
    assert "64 and 70 rows" in ran.err
    described = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (described["task"], described["specs"]["train"]["teacher"]) == ("distill", teachers["llama"])
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "- distill\n" in card
    assert "teacher: llama\n" in card
    assert "| divergence |" in card


def test_teacher_that_reads_otherwise_is_refused(tiny, teachers, pairs, tmp_path):
    """Another kind of model, or another tokenizer: before the first step, with code 2."""
    other = tmp_path / "other"
    shutil.copytree(teachers["llama"], other)
    words = json.loads((other / "tokenizer.json").read_text())
    vocabulary = words["model"]["vocab"]
    vocabulary["w3"], vocabulary["w4"] = vocabulary["w4"], vocabulary["w3"]
    (other / "tokenizer.json").write_text(json.dumps(words))
    for teacher, said in ((str(other), "2 token ids"), (teachers["t5"], "an encoder-decoder")):
        argv = flags(Case("llama", 0, 8), tiny, {"llama": teacher}, pairs, tmp_path)[:-2]
        ran = dsrun(*argv, output=tmp_path / "run")
        assert ran.code == 2
        assert said in ran.err
