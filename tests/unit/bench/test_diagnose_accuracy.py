"""How `python -m bench diagnose --accuracy` judges verdicts."""

import re
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.diagnose_accuracy import Label, judge, labels_of
from dsrun.diagnosis.candidates import LogLine
from dsrun.diagnosis.diagnose import RunVerdict
from dsrun.diagnosis.rules import cause_named


def verdict(code: str, evidence: str = "", excerpt: str = "") -> RunVerdict:
    lines = (LogLine("a.txt", 3, excerpt),) if excerpt else ()
    return RunVerdict(cause=cause_named(code), evidence=evidence, excerpt=lines)


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (verdict("cuda_oom"), "right"),
        (verdict("host_oom_killed"), "acceptable"),
        (verdict("disk_full", "the very line"), "wrong"),
        (verdict("unknown", "the very line"), "right line only"),
        (verdict("unknown", "other", excerpt="before the very line"), "right line only"),
        (verdict("unknown", "other"), "unknown, another line"),
        (verdict("none"), "none"),
    ],
    ids=lambda each: each if isinstance(each, str) else each.cause.code,
)
def test_verdict_on_failure_is_judged_by_cause_then_line(found: RunVerdict, kind: str) -> None:
    assert judge(found, Label(("cuda_oom", "host_oom_killed"), "very line")) == kind


def test_line_that_no_label_names_is_never_the_right_one() -> None:
    assert judge(verdict("unknown", "a line"), Label(("cuda_oom",))) == "unknown, another line"


def figures(text: str) -> dict[str, tuple[str, ...]]:
    """Count and share by row."""
    rows = re.findall(r"^(\S.*?) +(\d+) +([\d.]+%)", text, re.M)
    return {name: (count, share) for name, count, share in rows}


def test_accuracy_of_labelled_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Coverage and precision are printed apart, and what is not right by name."""
    (tmp_path / "oom.txt").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    (tmp_path / "odd.txt").write_text("OSError: [Errno 28] No space left on device\n")
    (tmp_path / "key.txt").write_text("zed.Oops: KeyError\n" * 2 + "error: KeyError x\n")
    (tmp_path / "fine.txt").write_text("{'train_runtime': 12.0}\n")
    (tmp_path / "labels.toml").write_text(
        '["oom.txt"]\ncauses = ["cuda_oom"]\n["odd.txt"]\ncauses = ["nan_loss"]\n'
        '["key.txt"]\ncauses = ["no_such_code"]\nline = "KeyError"\n["fine.txt"]\nhealthy = true\n'
    )
    assert main(["diagnose", "--accuracy", str(tmp_path)]) == 1
    text = capsys.readouterr().out
    rows = figures(text)
    assert rows["right"] == rows["wrong"] == rows["right line only"] == ("1", "33.3%")
    assert rows["healthy right"] == ("1", "100.0%")
    assert (rows["coverage"], rows["precision"]) == (("2", "66.7%"), ("1", "50.0%"))
    assert "odd.txt: disk_full, not nan_loss" in text
    assert "oom.txt" not in text


def test_accuracy_of_folder_without_labels_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "--accuracy", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_corpus_is_labelled_by_its_folders() -> None:
    labels = labels_of(Path(__file__).parents[2] / "data" / "causes")
    assert labels["cuda_oom/tr-oom.txt"].causes == ("cuda_oom",)
    assert labels["none/tr-ok.txt"].healthy
