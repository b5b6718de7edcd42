"""NVLink, direct access between GPUs, GPUDirect RDMA."""

import pytest

from dsrun.doctor.gpu.nvml import GpuState
from tests.unit.doctor.recorded import found_by, levels_by_code, recorded

BARE = {"/proc/cpuinfo": "flags\t\t: fpu sse2 avx2\n"}


def pair(*, links: tuple[tuple[bool, ...], ...] = ((), ()), state: int | None = 0, name: str = "NVIDIA A100-PCIE-40GB"):
    peers = ((0, state), (state, 0))
    return [
        GpuState(index=index, name=name, bus=f"0000:{3 + index}b:00.0", nvlinks=links[index], peers=peers[index])
        for index in (0, 1)
    ]


def iommu(kind: str) -> dict[str, str]:
    return {f"/sys/bus/pci/devices/0000:{number}b:00.0/iommu_group/type": f"{kind}\n" for number in (3, 4)}


def test_all_nvlinks_are_up(tmp_path):
    assert levels_by_code("nvlink", recorded(tmp_path, gpus=pair(links=((True,) * 12,) * 2))) == {"nvlink": "info"}


def test_nvlink_down(tmp_path):
    """One GPU has fewer links than the other."""
    machine = recorded(tmp_path, gpus=pair(links=((True,) * 4, (True, False, True, False))))
    finding = found_by("nvlink", machine)[0]
    assert (finding.level, finding.code) == ("warning", "nvlink_down")
    assert finding.message.endswith("2 NVLinks are up, 4 of others; down: 1, 3")


def test_no_nvlink_is_up(tmp_path):
    """A board without a bridge has none; between SXM modules there always are some."""
    none = ((False,) * 12,) * 2
    assert levels_by_code("nvlink", recorded(tmp_path, gpus=pair(links=none))) == {}
    sxm = pair(links=none, name="NVIDIA A100-SXM4-80GB")
    assert levels_by_code("nvlink", recorded(tmp_path, gpus=sxm)) == {"nvlink_down": "warning"}


def test_direct_access(tmp_path):
    assert levels_by_code("peer_access", recorded(tmp_path, BARE | iommu("identity"), gpus=pair())) == {
        "peer_access": "info"
    }
    assert levels_by_code("peer_access", recorded(tmp_path, BARE, gpus=pair()[:1])) == {}, "a single GPU has no peer"


@pytest.mark.parametrize(
    ("state", "level"), [(1, "warning"), (2, "info"), (3, "warning"), (4, "warning"), (77, "warning")]
)
def test_direct_access_blocked(tmp_path, state, level):
    finding = found_by("peer_access", recorded(tmp_path, BARE, gpus=pair(state=state)))[0]
    assert (finding.level, finding.code) == (level, "peer_access_blocked")
    assert "between GPU 0 and 1" in finding.message


def test_iommu_between_gpus(tmp_path):
    """A virtual machine cannot do without, and NVLink does not need PCIe."""
    files = BARE | iommu("DMA-FQ")
    assert levels_by_code("peer_access", recorded(tmp_path, files, gpus=pair())) == {"peer_access_iommu": "warning"}
    linked = pair(links=((True,) * 12,) * 2)
    assert levels_by_code("peer_access", recorded(tmp_path, files, gpus=linked)) == {"peer_access": "info"}
    virtual = files | {"/proc/cpuinfo": "flags\t\t: fpu hypervisor avx2\n"}
    assert levels_by_code("peer_access", recorded(tmp_path, virtual, gpus=pair())) == {"peer_access": "info"}


def test_pcie_access_control(tmp_path):
    lspci = "00:01.0 PCI bridge: Intel\n\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+\n"
    on = recorded(tmp_path, BARE, gpus=pair(), programs={"lspci -vvv": lspci})
    assert levels_by_code("peer_access", on) == {"peer_access_acs": "warning"}
    off = recorded(tmp_path, BARE, gpus=pair(), programs={"lspci -vvv": lspci.replace("Valid+", "Valid-")})
    assert levels_by_code("peer_access", off) == {"peer_access": "info"}


def rdma(
    root, *, modules: str = "nvidia 1 0\n", version: str = "NVIDIA UNIX x86_64 Kernel Module", kernel: str = "6.8.0-45"
):
    files = {
        "/sys/class/infiniband/mlx5_0/node_type": "1: CA\n",
        "/proc/modules": modules,
        "/proc/driver/nvidia/version": f"NVRM version: {version}  580.65.06\n",
        "/proc/sys/kernel/osrelease": f"{kernel}-generic\n",
    }
    return recorded(root, files, gpus=pair())


def test_gpudirect_rdma(tmp_path):
    assert levels_by_code("gpudirect", rdma(tmp_path)) == {"gpudirect_no_peermem": "warning"}
    assert levels_by_code("gpudirect", rdma(tmp_path, modules="nvidia_peermem 16384 0 - Live 0x0\n")) == {
        "gpudirect": "info"
    }


def test_gpudirect_through_dma_buf(tmp_path):
    """With the open kernel modules, from Linux 5.12 on."""
    open_module = "NVIDIA UNIX Open Kernel Module for x86_64"
    assert levels_by_code("gpudirect", rdma(tmp_path, version=open_module)) == {"gpudirect": "info"}
    old = rdma(tmp_path, version=open_module, kernel="5.4.0-100")
    assert levels_by_code("gpudirect", old) == {"gpudirect_no_peermem": "warning"}


def test_gpudirect_needs_a_card(tmp_path):
    assert levels_by_code("gpudirect", recorded(tmp_path, gpus=pair())) == {}
