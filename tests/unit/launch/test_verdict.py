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


def test_a_rank_that_knows_why_comes_before_one_that_failed_earlier(tmp_path, capsys):
    failure(tmp_path, 0, 1, time=1.0)
    failure(tmp_path, 1, 2, time=2.0, expected=True, message="the data has no column 'text'")
    assert main([str(tmp_path), "143"]) == 0
    out = capsys.readouterr()
    assert out.out == "2\n"
    assert out.err == "error: rank 1: the data has no column 'text'\n"


def test_the_earliest_of_equals(tmp_path, capsys):
    failure(tmp_path, 3, 9, time=2.0)
    failure(tmp_path, 1, 7, time=1.0)
    main([str(tmp_path), "143"])
    assert capsys.readouterr().out == "7\n"


def test_without_a_word_the_code_of_srun_stands(tmp_path, capsys):
    main([str(tmp_path), "137"])
    assert capsys.readouterr() == ("137\n", "")
