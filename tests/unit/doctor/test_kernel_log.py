"""Xid errors in the kernel log."""

import os

import pytest

from dsrun.doctor.gpu import kernel_log
from dsrun.doctor.gpu.kernel_log import meaning, xids
from dsrun.doctor.gpu.nvml import GpuState
from tests.unit.doctor.recorded import found_by, levels_by_code, recorded

GPU = GpuState(index=2, name="NVIDIA H100", bus="0000:3b:00.0")
DRIVER = {"/proc/driver/nvidia/version": "NVRM version: 580", "/proc/uptime": "10000.0 1.0"}
LOST = "4,1203,9880000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus.\n"
PROGRAM = "4,1204,9900000000,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python, Ch 0008, MMU Fault\n"
QUIET = "6,1,100,-;Linux version 6.1\n SUBSYSTEM=pci\n"


def test_clean_kernel_log(tmp_path):
    assert levels_by_code("xid", recorded(tmp_path, DRIVER | {"/dev/kmsg": QUIET}, gpus=[GPU])) == {"xid": "info"}


def test_xid_of_a_lost_gpu(tmp_path):
    finding = found_by("xid", recorded(tmp_path, DRIVER | {"/dev/kmsg": QUIET + LOST}, gpus=[GPU]))[0]
    assert (finding.level, finding.code) == ("error", "xid_79")
    assert finding.message == (
        "GPU 2 (NVIDIA H100, 0000:3b:00.0): Xid 79, the GPU has fallen off the bus, 2 minutes ago"
    )
    assert "reboot" in finding.fix


def test_xid_of_long_ago_is_a_warning(tmp_path):
    files = DRIVER | {"/dev/kmsg": LOST, "/proc/uptime": f"{9880 + 3 * 86400}.0 1.0"}
    finding = found_by("xid", recorded(tmp_path, files, gpus=[GPU]))[0]
    assert (finding.level, finding.message[-10:]) == ("warning", "3 days ago")


def test_xid_of_a_program_is_no_fault_of_the_gpu(tmp_path):
    assert levels_by_code("xid", recorded(tmp_path, DRIVER | {"/dev/kmsg": PROGRAM * 2}, gpus=[GPU])) == {
        "xid_31": "info"
    }


def test_fatal_error_of_an_nvswitch(tmp_path):
    """Errors that are not fatal are frequent, and mended by the switch."""
    text = "4,1205,9900000000,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n"
    finding = found_by("xid", recorded(tmp_path, DRIVER | {"/dev/kmsg": text}, gpus=[GPU]))[0]
    assert (finding.level, finding.code) == ("error", "xid_switch_20034")
    assert finding.message == "NVSwitch at 0000:c1:00: fatal SXid 20034, 100 s ago"
    harmless = text.replace("Fatal", "Non-fatal")
    assert levels_by_code("xid", recorded(tmp_path, DRIVER | {"/dev/kmsg": harmless}, gpus=[GPU])) == {"xid": "info"}


def test_unknown_xid_shows_its_line(tmp_path):
    text = LOST.replace("79", "199").replace("fallen", "\x1b[31mfallen")
    finding = found_by("xid", recorded(tmp_path, DRIVER | {"/dev/kmsg": text}, gpus=[GPU]))[0]
    assert (finding.level, finding.code) == ("warning", "xid_199")
    assert '"NVRM: Xid (PCI:0000:3b:00): 199, pid=4711' in finding.message
    assert "\x1b" not in finding.message


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("dmesg", "[ 9880.000001] NVRM: Xid (PCI:0000:3b:00): 48, pid=1, name=x, DBE (double bit error)"),
        (
            "journalctl --dmesg --boot --no-pager --quiet --output=short-monotonic",
            "[ 9880.000001] node1 kernel: NVRM: Xid (PCI:0000:3b:00): 48, pid=1, name=x",
        ),
    ],
)
def test_kernel_log_through_programs(tmp_path, command, line):
    """Where /dev/kmsg may not be read, dmesg or the journal may be."""
    machine = recorded(tmp_path, DRIVER, gpus=[GPU], programs={command: f"{line}\n"})
    assert levels_by_code("xid", machine) == {"xid_48": "error"}


def test_kernel_log_that_may_not_be_read_is_skipped(tmp_path):
    """dmesg fails then; the journal is empty."""
    journal = "journalctl --dmesg --boot --no-pager --quiet --output=short-monotonic"
    assert levels_by_code("xid", recorded(tmp_path, DRIVER, gpus=[GPU], programs={"dmesg": (1, ""), journal: ""})) == {}


def test_no_driver_no_kernel_log(tmp_path):
    assert levels_by_code("xid", recorded(tmp_path, {"/dev/kmsg": LOST})) == {}


def test_reading_ends_where_the_kernel_has_no_more(tmp_path):
    """A pipe gives EAGAIN at its end, as /dev/kmsg does."""
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(path, os.O_WRONLY)
    os.write(writer, LOST.encode())
    try:
        assert [each.number for each in xids(kernel_log._records(path))] == [79]
    finally:
        os.close(writer)
        os.close(reader)


def test_every_xid_has_a_meaning_and_a_fix():
    for number in map(int, kernel_log._FACTS["xid"]):
        level, means, fix = meaning(number)
        assert level in ("error", "warning", "info")
        assert means
        assert fix
