"""Checks side by side: the order of their results, crashes and hangs; the registry."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.doctor.registry import CHECKS
from dsrun.findings.checks import Check, run_checks
from dsrun.findings.finding import Finding
from tests.unit.doctor.recorded import recorded


def passes(_: MachineFacts, __: DoctorTarget) -> Iterator[Finding]:
    yield Finding(level="info", code="a", message="fine")


def crashes(_: MachineFacts, __: DoctorTarget) -> Iterator[Finding]:
    yield Finding(level="info", code="b", message="as far as this")
    raise ValueError("two\nlines")


def applies_to_nothing(_: MachineFacts, __: DoctorTarget) -> Iterator[Finding]:
    yield from ()


def test_results_in_the_order_of_the_checks(tmp_path: Path) -> None:
    checks = [Check("a", "A", passes), Check("c", "C", applies_to_nothing), Check("b", "B", crashes)]
    results = run_checks(checks, recorded(tmp_path), DoctorTarget(), limit_s=60)
    assert [(each.check.code, each.status) for each in results] == [("a", "pass"), ("c", "skip"), ("b", "warn")]


def test_crashing_check_is_a_warning_with_its_error(tmp_path: Path) -> None:
    (result,) = run_checks([Check("b", "B", crashes)], recorded(tmp_path), DoctorTarget(), limit_s=60)
    (found,) = result.findings
    assert (found.code, found.message) == ("b_crashed", "the check failed with ValueError: two lines")


def test_hanging_check_is_a_warning_and_holds_up_no_other(tmp_path: Path) -> None:
    for_ever = threading.Event()

    def hangs(_: MachineFacts, __: DoctorTarget) -> Iterator[Finding]:
        for_ever.wait()
        yield Finding(level="warning", code="h", message="too late")

    results = run_checks(
        [Check("h", "H", hangs), Check("a", "A", passes)], recorded(tmp_path), DoctorTarget(), limit_s=0.05
    )
    for_ever.set()
    assert [each.status for each in results] == ["warn", "pass"]
    assert results[0].findings[0].message == "the check did not end within 0.05 s"


def test_codes_of_checks_are_unique_and_none_begins_another() -> None:
    """So that --only and --skip choose what is meant."""
    names = [check.code for check in CHECKS]
    assert len(set(names)) == len(names)
    assert not [(one, other) for one in names for other in names if one != other and other.startswith(one)]


@pytest.mark.parametrize("check", CHECKS, ids=lambda each: each.code)
def test_check_of_bare_machine_does_not_crash(tmp_path: Path, check: Check) -> None:
    """No /proc, no packages, no GPU, no job."""
    found = list(check.look(recorded(tmp_path), DoctorTarget(cwd=tmp_path)))
    assert all(each.code.startswith(check.code) for each in found)


def test_file_system_of_folder(tmp_path: Path) -> None:
    inner = tmp_path / "a b"
    inner.mkdir()
    lines = [
        f"/dev/x / ext4 rw 0 0\ns:/x {tmp_path} nfs4 rw,nosuid 0 0",
        f"tmpfs {tmp_path}/a\\040b tmpfs rw 0 0",
        "short",
    ]
    here = recorded(tmp_path / "root", files={"/proc/self/mounts": "\n".join(lines)})
    assert [(each.kind, each.shared) for path in ("/", tmp_path, inner) if (each := here.mount(Path(path)))] == [
        ("ext4", False), ("nfs4", True), ("tmpfs", False),
    ]  # fmt: skip
    assert recorded(tmp_path / "bare").mount(tmp_path) is None
