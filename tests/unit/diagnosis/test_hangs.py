"""Which ranks stand apart in a hang, and the line that says so."""

from __future__ import annotations

import json
import pickle

import pytest

from dsrun.diagnosis.hangs import (
    RankStanding,
    RecordedOperation,
    blamed,
    groups,
    outliers,
    parse_dump,
    read_standings,
    summary,
)
from dsrun.diagnosis.stacks import StackPlace

REDUCE = StackPlace("collective", "all_reduce", "step (train.py:9)")
ELSEWHERE = StackPlace("collective", "all_reduce", "evaluate (train.py:70)")
BARRIER = StackPlace("collective", "barrier", "save (train.py:40)")
LOADER = StackPlace("loader", "DataLoader.__next__", "main (train.py:5)")
STOPPED = StackPlace("stopped", "stopped (SIGSTOP)")
READS = StackPlace("code", "check (nan.py:9)", "check (nan.py:9)")
UNKNOWN = StackPlace("unknown", "without a stack")
SYNC = StackPlace("gpu", "torch.cuda.synchronize", "step (train.py:9)")


def ranks(usual: StackPlace, count: int, apart: dict[int, StackPlace]) -> list[RankStanding]:
    return [RankStanding(rank, apart.get(rank, usual)) for rank in range(count)]


@pytest.mark.parametrize(
    ("standings", "apart", "line"),
    [
        (
            ranks(REDUCE, 32, {5: LOADER, 6: LOADER}),
            (5, 6),
            "30 of 32 ranks in all_reduce; ranks 5 and 6 in DataLoader.__next__",
        ),
        (ranks(REDUCE, 8, {3: BARRIER}), (3,), "7 of 8 ranks in all_reduce; rank 3 in barrier"),
        (
            ranks(REDUCE, 8, {3: ELSEWHERE}),
            (3,),
            "7 of 8 ranks in all_reduce called by step (train.py:9); "
            "rank 3 in all_reduce called by evaluate (train.py:70)",
        ),
        (ranks(REDUCE, 4, {2: STOPPED, 1: LOADER}), (2,), None),
        (ranks(SYNC, 4, {0: LOADER}), (0,), "3 of 4 ranks in torch.cuda.synchronize; rank 0 in DataLoader.__next__"),
        (ranks(REDUCE, 4, {0: UNKNOWN}), (0,), "3 of 4 ranks in all_reduce; rank 0 without a stack"),
        (ranks(REDUCE, 4, {}), (), "4 of 4 ranks in all_reduce"),
        (ranks(LOADER, 4, {}), (), "4 of 4 ranks in DataLoader.__next__"),
        (ranks(REDUCE, 2, {1: BARRIER}), (), "rank 0 in all_reduce; rank 1 in barrier"),
        (ranks(READS, 8, {6: LOADER}), (6,), "7 of 8 ranks in check (nan.py:9); rank 6 in DataLoader.__next__"),
        (
            [
                RankStanding(rank, READS, None if rank == 1 else RecordedOperation("all_reduce", 7, "0", 7))
                for rank in range(2)
            ],
            (1,),
            "rank 0 in all_reduce #7; rank 1 in check (nan.py:9)",
        ),
        (ranks(UNKNOWN, 4, {}), (), ""),
        ([], (), ""),
    ],
)
def test_outliers_and_summary(standings, apart, line):
    assert outliers(standings) == apart
    assert line is None or summary(standings) == line


def test_summary_names_four_places_and_counts_the_rest():
    apart = {rank: StackPlace("code", f"f{rank} (a.py:1)") for rank in range(6)}
    assert summary(ranks(REDUCE, 20, apart)).endswith("rank 2 in f2 (a.py:1); 3 more elsewhere")
    many = dict.fromkeys(range(9), LOADER)
    assert summary(ranks(REDUCE, 32, many)).endswith("ranks 0, 1, 2, 3, 4, 5 and 3 more in DataLoader.__next__")


@pytest.mark.parametrize(
    ("apart", "silent", "rank"),
    [({1: LOADER}, 3, 1), ({1: LOADER, 3: LOADER}, 3, 3), ({1: LOADER, 2: LOADER}, 3, 1), ({}, 3, 3)],
)
def test_blamed_is_an_outlier_or_the_silent_rank(apart, silent, rank):
    assert blamed(ranks(REDUCE, 8, apart), silent) == rank


def entry(number: int, state: str, name: str = "nccl:all_reduce", group: str = "0") -> dict:
    return {
        "collective_seq_id": number, "state": state, "profiling_name": name, "process_group": (group, "default"),
        "is_p2p": False,
    }  # fmt: skip


DUMP = {
    "version": "2.10",
    "pg_config": {"0": {"ranks": "[0, 1]"}},
    "entries": [
        entry(480, "completed"),
        entry(481, "started"),
        entry(482, "scheduled", "nccl:_all_gather_base"),
        entry(7, "started", "nccl:broadcast", "1"),
    ],
}


@pytest.mark.parametrize("write", [pickle.dumps, lambda dump: json.dumps(dump).encode()], ids=["pickle", "json"])
def test_flight_recorder_dump(write):
    """The oldest operation that is not done, of all ranks before those of a part of them."""
    assert parse_dump(write(DUMP)) == RecordedOperation("all_reduce", 481, "0", 482)


class Harmful:
    def __reduce__(self):
        return print, ("called",)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04",
        b"{",
        b"[1]",
        pickle.dumps({"entries": 3}),
        pickle.dumps({"entries": [1, {"state": "started"}]}),
        pickle.dumps({"entries": [entry(1, "completed")]}),
        pickle.dumps({"entries": [Harmful()]}),
    ],
)
def test_dump_that_tells_nothing(content, capsys):
    """A pickle that would call anything is not loaded."""
    assert parse_dump(content) is None
    assert capsys.readouterr().out == ""


def test_rank_that_has_begun_fewer_operations_is_apart(tmp_path):
    """All stand in the same line; the flight recorder tells that one is an operation behind."""
    stacks = (
        'Thread 1 (idle): "MainThread"\n    all_reduce (torch/distributed/distributed_c10d.py:3)\n    step (train.py:9)'
    )
    for rank in range(4):
        (tmp_path / f"rank-{rank}.stacks.txt").write_text(stacks)
        number = 480 if rank == 2 else 481
        dump = pickle.dumps({"entries": [entry(number, "started")]})
        (tmp_path / f"flight-recorder-rank-{rank}").write_bytes(dump)
    (tmp_path / "nccl-ras.txt").write_text("…")
    standings = read_standings(tmp_path)
    assert outliers(standings) == (2,)
    assert summary(standings) == "3 of 4 ranks in all_reduce #481; rank 2 in all_reduce #480"
    assert [group.ranks for group in groups(standings)] == [(0, 1, 3), (2,)]
