"""Following a file of records that others write."""

from __future__ import annotations

from dsrun.runs.records import LineAppender
from dsrun.runs.tail import LineTail


def steps(tail: LineTail) -> list[int]:
    return [record["step"] for record in tail.new_records()]


def append(path, *numbers: int) -> None:
    with LineAppender(path) as ledger:
        for number in numbers:
            ledger.append({"step": number, "loss": float("nan")})


def test_only_new_records_are_read(tmp_path):
    path = tmp_path / "events.jsonl"
    append(path, 1)
    tail = LineTail(path, begin=None)
    assert steps(tail) == []
    append(path, 2, 3)
    (second, third) = tail.new_records()
    assert (second["step"], third["step"]) == (2, 3)
    assert second["loss"] != second["loss"]  # NaN, put back
    assert steps(tail) == []


def test_lines_of_the_tail_are_not_sampled_too(tmp_path):
    """The sample is of what lies before; its last line may end in the tail."""
    path = tmp_path / "events.jsonl"
    path.write_text("".join(f'{{"step": {step}}}\n' for step in range(100, 200)))
    found = steps(LineTail(path, whole=1000, tail=690, samples=500))
    assert [step for step in found if step > 150] == list(range(151, 200))
    assert set(found) == set(range(100, 200))


def test_file_may_come_later(tmp_path):
    path = tmp_path / "events.jsonl"
    tail = LineTail(path, begin=None)
    assert steps(tail) == []
    append(path, 1)
    assert steps(tail) == [1]


def test_begin_is_a_place_in_the_file(tmp_path):
    path = tmp_path / "events.jsonl"
    append(path, 1)
    begin = path.stat().st_size
    append(path, 2)
    assert steps(LineTail(path, begin=begin)) == [2]


def test_incomplete_line_is_waited_for(tmp_path):
    path = tmp_path / "events.jsonl"
    tail = LineTail(path, begin=None)
    path.write_bytes(b'{"step": 1}\n{"st')
    assert steps(tail) == [1]
    with path.open("ab") as file:
        file.write(b'ep": 2}\nnot JSON\n{"step": 3}\n')
    assert steps(tail) == [2, 3]


def test_successor_of_moved_file_is_read_from_its_first_line(tmp_path):
    path = tmp_path / "events.jsonl"
    append(path, *range(20))
    tail = LineTail(path, begin=None)
    path.rename(tmp_path / "earlier.jsonl")
    append(path, 1)
    assert steps(tail) == [1]
    path.write_bytes(b"")
    assert steps(tail) == []
    append(path, 2)
    assert steps(tail) == [2]


def test_file_that_is_gone_for_a_moment_is_not_read_again(tmp_path):
    path = tmp_path / "events.jsonl"
    append(path, 1)
    tail = LineTail(path, begin=0)
    assert steps(tail) == [1]
    path.rename(tmp_path / "aside")
    assert steps(tail) == []
    (tmp_path / "aside").rename(path)
    append(path, 2)
    assert steps(tail) == [2]
