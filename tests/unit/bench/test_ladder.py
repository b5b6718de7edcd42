"""bench/ladder: its data, how the cost of a run is read, and the table."""

from __future__ import annotations

import json
from statistics import correlation, mean, quantiles

import pytest

from bench.cpu_clock import CpuClock
from bench.ladder import print_goals, print_table
from bench.ladder.data import LONGEST, make_data, pair_lengths
from bench.ladder.rungs import PACKED, PADDED, RUNGS, TRL, Cost, Ladder


def rung(name):
    return next(each for each in RUNGS if each.name == name)


def test_lengths_are_those_of_instructions(tmp_path):
    """Mean 90 and 99th percentile 432, but for the cut tail."""
    pairs = pair_lengths(20_000)
    for side in zip(*pairs, strict=True):
        assert mean(side) == pytest.approx(89, abs=2)
        assert quantiles(side, n=100)[98] == pytest.approx(432, rel=0.06)
        assert max(side) == LONGEST
    assert correlation(*zip(*pairs, strict=True)) > 0.8
    lengths = make_data(tmp_path / "train.jsonl", seq2seq=True, samples=20)
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").open()]
    assert [(len(row["input_ids"]), len(row["labels"])) for row in rows] == lengths == pair_lengths(20)


def write(file, rows):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def at(second):
    return f"1970-01-01T00:01:{second:02}+00:00"


def test_cost_leaves_the_first_steps_out(tmp_path):
    """Tokens, time and padding from the second step's line to the last, whoever wrote them: 300 tokens in 4 seconds."""
    ladder = Ladder(tmp_path, tmp_path, tmp_path, seq2seq=False, steps=4, warm_up=2)
    clock = CpuClock(0, [(60.0, 5.0), (70.0, 25.0)])
    tokens, cells = [1000, 1100, 1200, 1400], [9000, 9200, 9500, 9800]
    own = [
        {"step": n + 1, "time": at(2 * n), "tokens": tokens[n], "loss": 1.0, "host_memory_peak": 7,
         "padding": 1 - (tokens[n] - tokens[n - 1]) / (cells[n] - cells[n - 1]) if n else 0.5}
        for n in range(4)
    ]  # fmt: skip
    write(tmp_path / "own" / "run" / "metrics.jsonl", own)
    for rank in (0, 1):
        half = [
            {"step": n + 1, "time": at(2 * n), "tokens": tokens[n] // 2, "cells": cells[n] // 2, "host_memory_peak": 7}
            for n in range(4)
        ]
        write(tmp_path / "plain" / f"metrics-{rank}.jsonl", half)
    for name, folder in ((PACKED, "own"), (PADDED, "plain")):
        cost = ladder._cost(rung(name), tmp_path / folder, clock)
        assert (cost.tokens, cost.wall_s, cost.memory) == (300, 4, 7)
        assert cost.cpu_s == pytest.approx(8)
        assert cost.padding == pytest.approx(0.5)
        assert cost.speed == pytest.approx(300 / 8)


def test_all_train_with_the_same_settings(tmp_path):
    """The same model, data, DeepSpeed JSON and arguments stand in the commands of dsrun and of its peers."""
    data = tmp_path / "train.jsonl"
    make_data(data, seq2seq=False, samples=50)
    ladder = Ladder(tmp_path, tmp_path / "model", data, seq2seq=False, steps=4, warm_up=2)
    own = ladder._dsrun(rung(PACKED), tmp_path)
    ladder._plain(rung(TRL), tmp_path)
    recipe = json.loads((tmp_path / "recipe.json").read_text())
    flags = dict(zip(own[4::2], own[5::2], strict=False))
    for name, value in recipe["arguments"].items():
        if f"--{name}" in flags:
            assert flags[f"--{name}"] == str(value)
    assert flags["--deepspeed"] == recipe["arguments"]["deepspeed"]
    assert flags["--train-file"] == recipe["data"]


def test_missed_goal_is_printed(capsys):
    def costs(speed):
        return [Cost(tokens=speed * 10, cpu_s=10, wall_s=5, padding=0.1, memory=2**30) for _ in range(2)]

    found = {PADDED: costs(100), TRL: costs(200), PACKED: costs(300)}
    print_table("causal", found, 0.001)
    assert not print_goals("causal", found, flash=False)
    out = capsys.readouterr().out
    assert "dsrun, packing                    300        600    10.0%      1.00    30%    3.00" in out
    assert f"3.00 × the tokens per second of {PADDED}; goal 2.5 ×: met" in out
    assert f"1.50 × the tokens per second of {TRL}; goal 2 ×: MISSED" in out
    assert print_goals("causal", found, flash=True)
