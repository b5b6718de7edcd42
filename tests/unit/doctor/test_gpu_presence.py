"""GPUs that cannot be reached: the driver, the bus, the fabric manager."""

from pathlib import Path

import pytest

from dsrun.doctor.gpu.nvml import NO_ANSWER, GpuState, NvmlAnswer
from dsrun.doctor.gpu.presence import usable
from tests.unit.doctor.recorded import found_by, levels_by_code, recorded

FIRST, SECOND = "0000:3b:00.0", "0000:86:00.0"
VERSION = {
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build"
}


def on_bus(address: str, kind: str = "0x030200", head: bytes = b"\xde\x10") -> dict[str, str | bytes]:
    folder = f"/sys/bus/pci/devices/{address}"
    return {f"{folder}/vendor": "0x10de\n", f"{folder}/class": f"{kind}\n", f"{folder}/config": head + b"\x00" * 62}


def begun(address: str, minor: int) -> dict[str, str]:
    """What the driver says of a GPU that it has begun with."""
    text = f"Model: NVIDIA H100\nBus Location: {address}\nDevice Minor: \t {minor}\n"
    return {f"/proc/driver/nvidia/gpus/{address}/information": text}


def gpus(*buses: str) -> list[GpuState]:
    return [GpuState(index=index, name="NVIDIA H100", bus=bus) for index, bus in enumerate(buses)]


def test_healthy_gpus_are_fine(tmp_path):
    files = {**VERSION, **on_bus(FIRST), **on_bus(SECOND), **begun(FIRST, 0), **begun(SECOND, 1)}
    machine = recorded(tmp_path, files | {"/dev/nvidia0": "", "/dev/nvidia1": ""}, gpus=gpus(FIRST, SECOND))
    assert [each.message for each in found_by("gpu_driver", machine)] == ["driver 580.65.06 answers for 2 GPUs"]
    assert levels_by_code("gpu_bus", machine) == {"gpu_bus": "info"}


def test_no_gpu_no_finding(tmp_path):
    machine = recorded(tmp_path, on_bus("0000:00:02.0", kind="0x060000"))
    assert [*found_by("gpu_driver", machine), *found_by("gpu_bus", machine), *found_by("fabric_manager", machine)] == []


@pytest.mark.parametrize(
    ("error", "loaded", "code"),
    [
        (18, True, "gpu_driver_mismatch"),
        (12, True, "gpu_driver_library"),
        (12, False, "gpu_driver_not_loaded"),
        (9, False, "gpu_driver_not_loaded"),
        (4, True, "gpu_driver_permission"),
        (999, True, "gpu_driver_fails"),
    ],
)
def test_driver_that_fails(tmp_path, error, loaded, code):
    answer = NvmlAnswer(error=error, message="Unknown Error")
    machine = recorded(tmp_path, on_bus(FIRST) | (VERSION if loaded else {}), nvml=lambda: answer)
    finding = found_by("gpu_driver", machine)[0]
    assert (finding.level, finding.code) == ("error", code)
    assert finding.fix


def test_driver_that_does_not_answer_in_time(tmp_path):
    answer = NvmlAnswer(error=NO_ANSWER, message="no answer within 6 s")
    machine = recorded(tmp_path, on_bus(FIRST) | VERSION, nvml=lambda: answer)
    assert levels_by_code("gpu_driver", machine) == {"gpu_driver_slow": "warning"}
    assert levels_by_code("gpu_bus", machine) == {}


def test_no_gpu_requested(tmp_path):
    assert levels_by_code("gpu_driver", recorded(tmp_path, VERSION | on_bus(FIRST))) == {"gpu_driver_none": "warning"}


@pytest.mark.parametrize("how", ["driver", "config", "nvml"])
def test_gpu_fallen_off_the_bus(tmp_path, how):
    """It is in the driver's list and not in NVML's; its configuration space reads as ones; NVML cannot open it."""
    files = {**VERSION, **on_bus(FIRST), **on_bus(SECOND), **begun(FIRST, 0), "/dev/nvidia0": "", "/dev/nvidia1": ""}
    answer = NvmlAnswer(gpus=tuple(gpus(FIRST)), lost=(1,) if how == "nvml" else ())
    if how == "driver":
        files |= begun(SECOND, 1)
    if how == "config":
        files |= on_bus(SECOND, head=b"\xff\xff")
    finding = found_by("gpu_bus", recorded(tmp_path, files, nvml=lambda: answer))[0]
    assert (finding.level, finding.code) == ("error", "gpu_bus_lost")
    assert finding.message.startswith("GPU 1 " if how == "nvml" else f"the GPU at {SECOND} ")


def test_gpus_of_other_jobs_are_not_lost(tmp_path):
    """A batch system or container hides them: their device files are not there."""
    files = {**VERSION, **on_bus(FIRST), **on_bus(SECOND), **begun(FIRST, 0), **begun(SECOND, 1), "/dev/nvidia0": ""}
    assert levels_by_code("gpu_bus", recorded(tmp_path, files, gpus=gpus(FIRST))) == {"gpu_bus": "info"}


def with_switch(root: Path, *, process: str, init: str = "systemd", fabric: int | None = None):
    files = on_bus("0000:c0:00.0", kind="0x068000") | {"/proc/1/comm": f"{init}\n", "/proc/77/comm": f"{process}\n"}
    return recorded(root, files, gpus=[GpuState(index=0, fabric=fabric)])


def test_fabric_manager(tmp_path):
    down = {"fabric_manager_down": "error"}
    assert levels_by_code("fabric_manager", with_switch(tmp_path, process="bash")) == down
    assert levels_by_code("fabric_manager", with_switch(tmp_path, process="nv-fabricmanage")) == {
        "fabric_manager": "info"
    }
    assert levels_by_code("fabric_manager", with_switch(tmp_path, process="bash", fabric=2)) == down
    assert levels_by_code("fabric_manager", with_switch(tmp_path, process="bash", fabric=3)) == {
        "fabric_manager": "info"
    }
    assert levels_by_code("fabric_manager", with_switch(tmp_path, process="bash", init="python")) == {}, (
        "a container sees no processes"
    )


@pytest.mark.parametrize(("visible", "indices"), [(None, [0, 1]), ("1", [1]), ("", []), ("GPU-b", [1]), ("0,7,1", [0])])
def test_usable_gpus(tmp_path, visible, indices):
    both = [GpuState(index=0, uuid="GPU-aa"), GpuState(index=1, uuid="GPU-bb")]
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert [each.index for each in usable(recorded(tmp_path, gpus=both, environ=environ))] == indices
