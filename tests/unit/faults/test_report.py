"""The tables of docs/reliability.md."""

from tests.faults.cells import PHASES
from tests.faults.harness import Result
from tests.faults.report import summary, tables

RESULTS = [
    Result("SIGKILL-of-a-rank@forward", codes=[0], cause="rank_killed", detected_s=0.12),
    Result("SIGKILL-of-a-rank@saving", codes=[0], cause="rank_killed", detected_s=0.31, wrong=["2 left"]),
    Result("SIGTERM-to-a-rank@forward", codes=[75, 0]),
    Result("full disk", codes=[1, 0], cause="disk_full"),
]


def test_fault_report_row_per_fault_and_column_per_phase():
    lines = [line for line in tables(RESULTS).splitlines() if line.startswith("|")]
    rows = [[field.strip() for field in line.strip("|").split("|")] for line in lines]
    head, _, killed, stopped = rows[:4]
    assert head == ["fault", *PHASES]
    assert killed[0] == "SIGKILL of a rank"
    assert dict(zip(head, killed, strict=True))["forward"] == "0, 0.1 s"
    assert dict(zip(head, killed, strict=True))["saving"] == "0, 0.3 s **2 left**"
    assert dict(zip(head, stopped, strict=True))["forward"] == "75 → 0"
    assert rows[-1] == ["full disk", "1 → 0", "disk_full"]


def test_fault_report_summary_counts_failed_cells():
    """The summary counts the cells that failed."""
    assert summary(RESULTS) == "3 of 4 cells pass; slowest detection: 0.3 s"
