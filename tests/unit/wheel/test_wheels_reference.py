from pathlib import Path

import pytest

from dsrun.hardware.gpus import gpu_table
from dsrun.wheel.reference import PART, markdown
from dsrun.wheel.target.gpus import product_lines

PAGE = Path(__file__).parents[3] / "docs" / "wheels.md"


def test_wheels_page_is_up_to_date():
    text = PAGE.read_text(encoding="utf-8")
    assert PART.inserted(text) == text


def test_wheels_page_lists_every_gpu_by_capability():
    table = markdown().partition("### By torch release")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")]
    listed = {row[0].removeprefix("| "): set(row[1].split(", ")) for row in rows}
    for gpu in gpu_table():
        names = listed[f"{gpu.capability[0]}.{gpu.capability[1]}"]
        assert any(gpu.name.startswith(name.partition(" Active")[0]) for name in names), gpu.name
    assert product_lines((9, 0))[0] == "H100"


@pytest.mark.parametrize(
    "row",
    [
        "| 6.0 | Tesla P100, Quadro GP100 | up to 12.9 | up to 2.7 (12.6) |",
        "| 10.0 | B200, GB200, B100 | 12.8 and later | 2.8 (12.8) and later |",
        "| 3.7 | Tesla K80 | up to 11.8 | none |",
        "| 2.13 | 13.0 | 7.5, 8.0, 8.6, 9.0, 10.0, 12.0 |",
    ],
)
def test_wheels_page_table_rows(row):
    assert row in markdown().splitlines()
