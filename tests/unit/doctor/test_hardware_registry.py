"""The checks of hardware and host among all of them, and on the machine of this test."""

from dsrun.datafiles import toml_beside
from dsrun.doctor import registry
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.doctor.registry import CHECKS, DEEP_CHECKS
from dsrun.findings.checks import run_checks

HARDWARE = [each for each in CHECKS if each.look.__module__.startswith(("dsrun.doctor.gpu", "dsrun.doctor.host"))]


def test_every_check_is_registered():
    codes = [each.code for each in (*CHECKS, *DEEP_CHECKS)]
    assert codes == list(toml_beside(registry.__file__, "checks.toml"))
    assert all(each.finds for each in (*CHECKS, *DEEP_CHECKS)), "docs/doctor.md shows it"
    looks = [each.look for each in (*CHECKS, *DEEP_CHECKS)]
    assert len(HARDWARE) > 20
    assert len(looks) == len(set(looks))


def test_hardware_checks_of_this_machine(tmp_path):
    """None of them crashes, whatever machine this is, and nothing is left of the files that they write."""
    results = run_checks(HARDWARE, MachineFacts(), DoctorTarget(cwd=tmp_path), limit_s=60)
    broken = [each for result in results for each in result.findings if each.code.endswith(("_crashed", "_hangs"))]
    assert broken == []
    assert not list(tmp_path.iterdir())
