"""The exit code of the worker that failed first, for batch scripts."""

from __future__ import annotations

import json

from dsrun.launch.verdict import main


def failure(folder, rank, code, *, time, expected=False, message="lost its peers"):
    facts = {
        "rank": rank,
        "exit_code": code,
        "message": message,
        "time": time,
        "log": None,
        "expected": expected,
    }
    (folder / f"rank-{rank}.json").write_text(json.dumps(facts))


def test_worker_exit_code_prefers_root_cause(tmp_path, capsys):
    """A rank that knows why it failed comes before one that failed earlier."""
    failure(tmp_path, 0, 1, time=1.0)
    failure(tmp_path, 1, 2, time=2.0, expected=True, message="the data has no column 'text'")
    assert main([str(tmp_path), "143"]) == 0
    out = capsys.readouterr()
    assert out.out == "2\n"
    assert out.err == "error: rank 1: the data has no column 'text'\n"


def test_worker_exit_code_of_earliest_failure(tmp_path, capsys):
    """Among equals the earliest failure counts."""
    failure(tmp_path, 3, 9, time=2.0)
    failure(tmp_path, 1, 7, time=1.0)
    main([str(tmp_path), "143"])
    assert capsys.readouterr().out == "7\n"


def test_worker_exit_code_falls_back_to_srun(tmp_path, capsys):
    """Without a failure file the exit code of srun stands."""
    main([str(tmp_path), "137"])
    assert capsys.readouterr() == ("137\n", "")
