"""The checks of hardware and host among all of them, and on the machine of this test."""

from dsrun.datafiles import toml_beside
from dsrun.doctor import check as running
from dsrun.doctor.gpu import deep, gpu_settings, health, kernel_log, links, presence
from dsrun.doctor.host import clock, cpu, host_memory, infiniband, limits, quota, storage
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.doctor.registry import CHECKS, DEEP_CHECKS
from dsrun.findings.checks import Check, run_checks

HOST = (limits, host_memory, storage, quota, infiniband, cpu, clock)
HARDWARE = [
    check
    for modules in ((presence, health, links, kernel_log, gpu_settings), HOST)
    for module in modules
    for check in vars(module).values()
    if isinstance(check, Check)
]


def test_every_hardware_check_is_registered():
    assert set(HARDWARE) <= set(CHECKS)
    assert set(deep.DEEP_CHECKS) == set(DEEP_CHECKS)
    codes = [each.code for each in (*CHECKS, *DEEP_CHECKS)]
    assert len(codes) == len(set(codes))
    assert codes == list(toml_beside(running.__file__, "checks.toml"))
    assert all(each.finds for each in (*HARDWARE, *DEEP_CHECKS)), "docs/doctor.md shows it"


def test_hardware_checks_of_this_machine(tmp_path):
    """None of them crashes, whatever machine this is, and nothing is left of the files that they write."""
    results = run_checks(HARDWARE, MachineFacts(), DoctorTarget(cwd=tmp_path), limit_s=60)
    broken = [each for result in results for each in result.findings if each.code.endswith(("_crashed", "_hangs"))]
    assert broken == []
    assert not list(tmp_path.iterdir())
