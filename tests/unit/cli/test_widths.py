"""Columns beside names of any script: Chinese characters take two."""

import pytest

from dsrun.cli.init.interview import InitQuestion, _print_question
from dsrun.cli.output import print_commands
from dsrun.system.terminal.display import cells

NAMES = ["data.jsonl", "训练数据.jsonl"]


def starts(lines: list[str], word: str) -> set[int]:
    return {cells(line[: line.index(word)]) for line in lines if word in line}


def test_comments_of_commands_stand_in_one_column(capsys: pytest.CaptureFixture[str]) -> None:
    print_commands({f"dsrun train --train-file {name}": "the data" for name in NAMES})
    assert len(starts(capsys.readouterr().out.splitlines(), "# the data")) == 1


def test_descriptions_of_choices_stand_in_one_column(capsys: pytest.CaptureFixture[str]) -> None:
    choices = [(name, "the data") for name in NAMES]
    _print_question(InitQuestion(flag="--train-file", text="Which?", check=str, choices=choices))
    assert len(starts(capsys.readouterr().err.splitlines(), "the data")) == 1
