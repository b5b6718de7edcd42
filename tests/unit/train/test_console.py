"""What the console prints: numbers, progress lines, failures."""

from __future__ import annotations

import io
import json
import signal
from pathlib import Path

import pytest

from dsrun.errors import UsageError
from dsrun.system import variables
from dsrun.system.terminal.display import cells
from dsrun.train.base.console import (
    ERROR_STYLE,
    SHOWN_LENGTH,
    Console,
    Internal,
    TrainingBar,
    duration,
    number,
    shortened,
)
from dsrun.train.base.rank_context import ProcessProgress, explain_failure, record_failure
from dsrun.train.export.final import check_room
from dsrun.train.loop.recording import format_metrics
from tests.ecs import parsed


@pytest.mark.parametrize(("seconds", "words"), [(0, "0:00"), (61, "1:01"), (3599.7, "1:00:00"), (7322, "2:02:02")])
def test_duration_format(seconds, words):
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (12345, "12,345"),
        (12345.6, "12,346"),
        (0.12345, "0.1235"),
        (3e-5, "3.0e-05"),
        (0.0, "0"),
        (float("nan"), "nan"),
    ],
)
def test_number_format(value, words):
    assert number(value) == words


def test_console_lines_in_transcript(tmp_path):
    out = io.StringIO()
    console = Console(out)
    console.record_in(tmp_path / "console.log")
    console.print("plain [bold] text with [brackets]")
    console.notice("once")
    console.notice("once")
    console.rows([("a", "1"), ("longer", "2")])
    assert out.getvalue() == "plain [bold] text with [brackets]\nnote: once\n  a       1\n  longer  2\n"
    assert (tmp_path / "console.log").read_text() == out.getvalue()


def test_console_as_json(tmp_path):
    """Each line is an event, each logged step a metric; console.log stays text."""
    out = io.StringIO()
    console = Console(out, width=80, as_json=True)
    console.record_in(tmp_path / "console.log")
    console.print("two [bold]\nlines")
    console.print("")
    console.notice("once")
    console.notice("once")
    console.rows([("a", "1"), ("longer", "2")])
    console.marked([("plain ", "read"), ("marked", "learned")])
    console.print("error: wrong", style=ERROR_STYLE)
    bar = TrainingBar(console, total=9, start=0)
    bar.figures(1, {"loss": 2.5, "lr": 1e-4, "tokens_per_s": 1000.0})
    bar.figures(2, {"loss": float("nan")})
    bar.stop()
    found = [parsed(line) for line in out.getvalue().splitlines(keepends=True)]
    assert [(line["event.action"], line["message"]) for line in found[:7]] == [
        ("output", "two [bold]"), ("output", "lines"), ("note", "once"), ("output", "a 1"), ("output", "longer 2"),
        ("output", "plain ⟦marked⟧"), ("error", "error: wrong"),
    ]  # fmt: skip
    first, second = found[7:]
    assert (first["event.kind"], first["event.action"]) == ("metric", "training-progress")
    assert (first["dsrun.step"], first["dsrun.max_steps"], first["dsrun.loss"]) == (1, 9, 2.5)
    assert second["dsrun.nonfinite"] == ["dsrun.loss"]
    assert "note: once\n  a       1\n" in (tmp_path / "console.log").read_text()


def test_console_silent_on_other_ranks(tmp_path):
    console = Console(None)
    console.record_in(tmp_path / "console.log")
    console.print("words")
    assert not (tmp_path / "console.log").exists()


def test_progress_line_outside_terminal():
    """Progress outside a terminal is a line with loss, speed and ETA."""
    out = io.StringIO()
    bar = TrainingBar(Console(out), total=20, start=10)
    bar.figures(15, {"loss": 1.5, "lr": 1e-4, "tokens_per_s": 12345.6}, last=True)
    line = out.getvalue()
    assert line.startswith("step 15/20  loss 1.5  lr 1.0e-04  12,346 tokens/s  ETA ")


@pytest.mark.parametrize(("step", "eta"), [(50, "?"), (75, "1:40"), (100, "0:00")])
def test_eta_of_a_resumed_run_is_by_its_own_steps(step, eta):
    """From step 50 on, in 100 seconds."""
    out = io.StringIO()
    bar = TrainingBar(Console(out), total=100, start=50)
    bar.began -= 100
    bar.figures(step, {"loss": 1.5}, last=True)
    assert out.getvalue().rstrip().endswith(f"ETA {eta}")


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (UsageError("bad", fix="do better"), 2, "bad (do better)"),
        (KeyboardInterrupt(), 128 + signal.SIGINT, "interrupted"),
        (SystemExit(128 + signal.SIGTERM), 128 + signal.SIGTERM, "ended by a signal"),
        (RuntimeError("CUDA out of memory. Tried"), 1, "--micro-batch-size"),
        (
            RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. shm"),
            1,
            "a larger /dev/shm",
        ),
        (
            RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."),
            1,
            "--dataloader-num-workers",
        ),
        (OSError(28, "No space left on device"), 1, "another --output"),
        (ValueError("first line\nsecond line"), 1, "ValueError: first line second line"),
    ],
)
def test_failure_message_is_one_line_with_advice(error, code, words):
    found, message = explain_failure(error)
    assert found == code
    assert words in message
    assert "\n" not in message


def test_failure_report_left_for_launcher(tmp_path, monkeypatch):
    monkeypatch.setenv(variables.FAILURES, str(tmp_path))
    record_failure(UsageError("bad"), rank=3, log=None, progress=ProcessProgress())
    facts = json.loads((tmp_path / "rank-3.json").read_text())
    assert (facts["exit_code"], facts["message"], facts["expected"]) == (2, "bad", True)


@pytest.mark.parametrize(
    ("free", "checkpoints", "fits"), [(5_000, True, False), (40_000, True, True), (5_000, False, True)]
)
def test_disk_space_for_checkpoint_and_model(free, checkpoints, fits):
    """1,000 trained fp32 parameters: 4 kB of weights each time, 12 kB of optimizer states."""
    room = {"parameters": 1000, "trainable": 1000, "weight_bytes": 4, "where": Path("runs/x")}
    if fits:
        check_room(free, checkpoints=checkpoints, **room)
    else:
        with pytest.raises(UsageError, match="B free"):
            check_room(free, checkpoints=checkpoints, **room)


def test_metric_number_format():
    """Scores have two decimals, and losses the digits that matter."""
    metrics = {
        "eval_loss": 0.0012345,
        "eval_bleu": 2.8e-12,
        "eval_exact_match": 99.21875,
        "eval_seconds": 61.0,
    }
    assert format_metrics(metrics, "eval_") == "loss 0.001234  exact match 99.22  bleu 0.00  (1:01)"


def test_losses_of_a_mixtures_sets_shown_beside_the_loss():
    metrics = {"eval_loss": 2.5, "eval_wiki_loss": 3.0, "eval_wiki_perplexity": 20.0, "eval_en-ro_loss": 2.0}
    assert format_metrics(metrics, "eval_") == "loss 2.5  wiki 3  en-ro 2"


def test_sample_shown_as_one_line_of_bounded_length():
    assert shortened("one\ntwo\t three ") == "one two three"
    assert shortened("x" * SHOWN_LENGTH) == "x" * SHOWN_LENGTH
    long = shortened("word " * 100)
    assert len(long) <= SHOWN_LENGTH
    assert long.endswith(" …")


@pytest.mark.parametrize("debug", [False, True])
def test_internals_on_the_terminal_with_debug_only(debug, tmp_path):
    out = io.StringIO()
    console = Console(out)
    console.debug = debug
    console.record_in(tmp_path / "console.log")
    console.rows([("packing", "samples share rows"), ("packing", Internal("by block masks"))])
    console.notice(Internal("summed in fp32"))
    console.print("next")
    whole = "  packing  samples share rows\n  packing  by block masks\nnote: summed in fp32\nnext\n"
    assert (tmp_path / "console.log").read_text() == whole
    assert out.getvalue() == (whole if debug else "  packing  samples share rows\nnext\n")


@pytest.mark.parametrize("width", [80, 60, 40])
def test_lines_fit_the_terminal_and_not_the_transcript(width, tmp_path, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    out = io.StringIO()
    console = Console(out, width=width)
    console.record_in(tmp_path / "console.log")
    words = " ".join(f"word{number}" for number in range(40))
    console.notice(words)
    console.rows([("model", words), ("task", words)])
    console.marked([(words, "read"), (words, "learned")])
    lines = out.getvalue().splitlines()
    assert max(map(cells, lines)) <= width
    assert " ".join(out.getvalue().split()).count(words) == 5
    kept = (tmp_path / "console.log").read_text().splitlines()
    assert len(kept) == 4
    start = lines.index(next(line for line in lines if line.startswith("  model")))
    assert lines[start + 1].startswith(" " * 9 + "word"), "it hangs below its value"


def test_figures_of_a_narrow_bar_are_left_out_whole(monkeypatch):
    out = io.StringIO()
    bar = TrainingBar(Console(out, width=60), total=316, start=0)
    bar.figures(10, {"loss": 0.008027, "lr": 5.4e-4, "tokens_per_s": 30830.0, "padding": 0.3})
    bar.stop()
    assert "…" not in out.getvalue()
    assert "loss 0.008027" in out.getvalue()
    assert "ETA" in out.getvalue()
