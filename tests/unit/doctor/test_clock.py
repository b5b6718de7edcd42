"""Whether the clock is right."""

import time

import pytest

from dsrun.doctor.machine_facts import DoctorTarget
from tests.unit.doctor.recorded import found_by, levels_by_code, recorded

CHRONY = "Stratum         : 4\nSystem time     : {} seconds {} of NTP time\nLeap status     : {}\n"
TIMEDATECTL = "timedatectl show --property=NTPSynchronized --value"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CHRONY.format("0.000012", "slow", "Normal"), {"clock": "info"}),
        (CHRONY.format("3.500000", "fast", "Normal"), {"clock_differs": "warning"}),
        (CHRONY.format("0.000000", "fast", "Not synchronised"), {"clock_unsynchronised": "warning"}),
    ],
)
def test_chrony(tmp_path, text, expected):
    assert (
        levels_by_code("clock", recorded(tmp_path, programs={"chronyc -n tracking": text}), DoctorTarget(cwd=tmp_path))
        == expected
    )


@pytest.mark.parametrize(("answer", "code"), [("yes\n", "clock"), ("no\n", "clock_unsynchronised")])
def test_timedatectl(tmp_path, answer, code):
    """Where chrony is not installed, or its daemon does not run."""
    programs = {"chronyc -n tracking": (1, "506 Cannot talk to daemon\n"), TIMEDATECTL: answer}
    assert list(levels_by_code("clock", recorded(tmp_path, programs=programs), DoctorTarget(cwd=tmp_path))) == [code]


def test_clock_is_skipped_where_nothing_tells(tmp_path):
    assert levels_by_code("clock", recorded(tmp_path), DoctorTarget(cwd=tmp_path)) == {}


@pytest.mark.parametrize(("ahead_s", "expected"), [(0.0, "clock"), (60.0, "clock_differs"), (-60.0, "clock_differs")])
def test_clock_of_the_file_server(tmp_path, ahead_s, expected):
    """The time stamp of a new file is the server's; nothing is left of that file."""
    runs = tmp_path / "runs"
    runs.mkdir()
    machine = recorded(
        tmp_path / "root", {"/proc/self/mounts": f"server:/x {runs} nfs4 rw 0 0\n"}, now=time.time() + ahead_s
    )
    findings = found_by("clock", machine, DoctorTarget(cwd=tmp_path))
    assert [each.code for each in findings] == [expected]
    assert ("ahead of" if ahead_s > 0 else "behind" if ahead_s < 0 else "agrees") in findings[0].message
    assert not list(runs.iterdir())
