"""Each GPU's memory errors, clocks, PCIe link and settings (persistence mode, MIG, compute mode), and how the GPUs
reach one another and the network: NVLink, peer-to-peer over PCIe, GPUDirect RDMA."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

from dsrun.datafiles import toml_beside
from dsrun.doctor.gpu.nvml import P2P_OK, GpuState, of_gpus
from dsrun.doctor.gpu.presence import usable
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.findings.finding import Finding, finding_of, findings_where, first_where, text_of
from dsrun.messages import Message
from dsrun.system.terminal.display import counted

BUSY = 2
"""The highest performance state under load: P0 to P2. An idle GPU (P8) lets its PCIe link run slowly."""


def look_at_ecc(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    gpus = usable(machine)
    found: list[Finding] = []
    for gpu in gpus:
        errors = counted(gpu.ecc_uncorrected or 0, "uncorrected ECC error")
        found += findings_where(__file__, "memory", gpu=gpu, errors=errors)
    yield from found
    if not found and any(each.ecc_uncorrected is not None for each in gpus):
        yield finding_of("ecc", gpus=of_gpus(gpus))


def look_at_clocks(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    gpus = [each for each in usable(machine) if each.throttle_reasons is not None]
    found = False
    for code, reason in toml_beside(__file__, "throttle_reasons.toml").items():
        slowed = [each for each in gpus if (each.throttle_reasons or 0) & int(reason["bit"])]
        if slowed:
            found = True
            heat = [f"{each.temperature_c} °C" for each in slowed if each.temperature_c is not None]
            at = f" ({', '.join(heat)})" if heat else ""
            message = text_of("gpu_clocks.slowed", gpus=of_gpus(slowed), at=at, means=Message(reason["means"]))
            yield Finding(level="warning", code=f"gpu_clocks_{code}", message=message, fix=Message(reason["fix"]))
    if limited := [each for each in gpus if each.is_power_limited]:
        found = True
        limit, default = limited[0].power_limit_w, limited[0].power_limit_default_w
        yield finding_of("gpu_clocks_power_limit", gpus=of_gpus(limited), limit=limit, default=default)
    if gpus and not found:
        yield finding_of("gpu_clocks", gpus=of_gpus(gpus))


def look_at_pcie(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    known = [each for each in usable(machine) if each.pcie_width and each.pcie_width_max]
    if known:
        found = [each for gpu in known for each in findings_where(__file__, "pcie", gpu=gpu, BUSY=BUSY)]
        yield from found or [finding_of("pcie", gpus=of_gpus(known))]


EXCLUSIVE = (1, 3)
PROHIBITED = 2
"""nvmlComputeMode_t: 0 default, 1 exclusive thread (since removed), 2 prohibited, 3 exclusive process."""


def look_at_settings(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    gpus = usable(machine)
    kinds: dict[str, Any] = {
        "shared": counted(len(gpus), "GPU"),
        "sleeping": [each for each in gpus if each.persistence is False],
        "parts": [each for each in gpus if each.mig],
        "closed": [each for each in gpus if each.compute_mode == PROHIBITED],
        "alone": [each for each in gpus if each.compute_mode in EXCLUSIVE],
    }
    found = findings_where(__file__, "settings", count=len(gpus), ranks=target.nproc, of_gpus=of_gpus, **kinds)
    if gpus:
        yield from list(found) or [finding_of("gpu_settings", gpus=of_gpus(gpus))]


TRANSLATES = ("DMA", "DMA-FQ")
"""Types of an IOMMU group whose devices' addresses are translated (the kernel's sysfs-kernel-iommu_groups)."""
PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")


def look_at_nvlink(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """Links that are up on one GPU and not on another of the same model; how many a machine joins, none tells."""
    gpus = [each for each in usable(machine) if each.nvlinks]
    joined = [each for each in gpus if any(each.nvlinks)]
    most = {gpu.name: max(sum(each.nvlinks) for each in gpus if each.name == gpu.name) for gpu in joined}
    problems = []
    for gpu in gpus:
        if (links := sum(gpu.nvlinks)) < most.get(gpu.name, 0):
            down = ", ".join(str(link) for link, up in enumerate(gpu.nvlinks) if not up)
            problems.append(finding_of("nvlink_down.fewer", gpu=gpu, links=links, most=most[gpu.name], down=down))
    if not joined and len(gpus) > 1 and all("SXM" in each.name for each in gpus):
        problems.append(finding_of("nvlink_down", gpus=of_gpus(gpus)))
    yield from problems
    if joined and not problems:
        yield finding_of("nvlink", links=max(most.values()), gpus=counted(len(joined), "GPU"))


def look_at_peers(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    gpus = usable(machine)
    if len(gpus) < 2:
        return
    blocked: dict[int, list[tuple[GpuState, GpuState]]] = {}
    for one, other in combinations(gpus, 2):
        state = one.peers[other.index] if other.index < len(one.peers) else None
        if state not in (None, P2P_OK):
            blocked.setdefault(state, []).append((one, other))
    for state, pairs in blocked.items():
        yield _blocked(state, pairs)
    bounced = _bounced(machine, gpus)
    if bounced:
        yield bounced
    if not blocked and not bounced and any(each.peers for each in gpus):
        yield finding_of("peer_access", gpus=of_gpus(gpus))


def _blocked(state: int, pairs: Sequence[tuple[GpuState, GpuState]]) -> Finding:
    row = toml_beside(__file__, "peer_states.toml")["state"].get(str(state), {})
    means = Message(row["means"]) if row else text_of("peer_access_blocked.state", state=state)
    (one, other), *others = pairs
    values: dict[str, Any] = {"one": one.index, "other": other.index, "more": len(others), "means": means}
    key = "peer_access_blocked.several" if len(pairs) > 1 else "peer_access_blocked"
    return finding_of(key, level=row.get("level"), fix=Message(row["fix"]) if row else None, **values)


def _bounced(machine: MachineFacts, gpus: Sequence[GpuState]) -> Finding | None:
    """Whether an IOMMU or PCIe access control (ACS) sends traffic between GPUs up to the CPU and back."""
    if " hypervisor " in f" {machine.text('/proc/cpuinfo') or ''} ".replace("\n", " ") or all(
        any(g.nvlinks) for g in gpus
    ):
        return None
    groups = [machine.text(f"/sys/bus/pci/devices/{each.bus}/iommu_group/type") for each in gpus if each.bus]
    translates = not {*groups}.isdisjoint(TRANSLATES)
    return next(first_where(__file__, "bounced", translates=translates, answer=machine.answer), None)


def look_at_rdma(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    folder = machine.path("/sys/class/infiniband")
    has_rdma = machine.environ.get("NCCL_IB_DISABLE") != "1" and folder.is_dir() and any(folder.iterdir())
    if usable(machine) and has_rdma:
        modules = {line.split()[0] for line in (machine.text("/proc/modules") or "").splitlines() if line}
        module = next((each for each in PEER_MODULES if each in modules), "")
        driver = machine.text("/proc/driver/nvidia/version") or ""
        words = (machine.text("/proc/sys/kernel/osrelease") or "0.0").split("-")[0].split(".")
        kernel = tuple(int(word) for word in words[:2] if word.isdigit())
        yield from first_where(__file__, "rdma", module=module, driver=driver, kernel=kernel)
