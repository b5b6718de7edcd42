"""InfiniBand and RoCE ports: state, rate and error counters, from /sys/class/infiniband."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dsrun.datafiles import toml_beside
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.findings.finding import Finding, finding_of, first_where, text_of
from dsrun.messages import Message, joined

FOLDER = "/sys/class/infiniband"
IB = "InfiniBand"
_LIMITS = toml_beside(__file__)["counter"]


class InfinibandPort(NamedTuple):
    """One port of a device: `state` ("ACTIVE", "DOWN", "INIT"), `physical` ("LinkUp", "Polling", "Disabled"), Gb/s."""

    device: str
    name: str
    state: str
    physical: str
    rate_gbps: float
    layer: str
    counters: dict[str, int]


def ports(machine: MachineFacts) -> list[InfinibandPort]:
    found = []
    for port in sorted(machine.path(FOLDER).glob("*/ports/*")):
        device, base = port.parent.parent.name, f"{FOLDER}/{port.parent.parent.name}/ports/{port.name}"
        state, physical = (_word(machine.text(f"{base}/{name}")) for name in ("state", "phys_state"))
        rate = re.match(r"[\d.]+", machine.text(f"{base}/rate") or "")
        layer = machine.text(f"{base}/link_layer") or IB
        texts = {name: machine.text(f"{base}/counters/{name}") or "" for name in _LIMITS}
        counters = {name: int(text) for name, text in texts.items() if text.isdigit()}
        name, gbps = f"{device}:{port.name}", float(rate[0]) if rate else 0.0
        found.append(InfinibandPort(device, name, state, physical, gbps, layer, counters))
    return found


def active_ports(machine: MachineFacts) -> list[InfinibandPort]:
    """Those that data can go through, unless NCCL_IB_DISABLE keeps NCCL from them."""
    if machine.environ.get("NCCL_IB_DISABLE") == "1":
        return []
    return [each for each in ports(machine) if each.state == "ACTIVE"]


def _word(text: str | None) -> str:
    """`4: ACTIVE` is ACTIVE."""
    return (text or "").partition(":")[2].strip()


def _chosen(machine: MachineFacts) -> list[InfinibandPort]:
    """The ports that NCCL_IB_HCA leaves, which names devices, with ports or without, "^" before those to leave out."""
    everyone = [] if machine.environ.get("NCCL_IB_DISABLE") == "1" else ports(machine)
    names = machine.environ.get("NCCL_IB_HCA", "").strip()
    if not names:
        return everyone
    leaves_out, exact = names.startswith("^"), names.lstrip("^").startswith("=")
    wanted = [each.strip() for each in names.lstrip("^=").split(",")]

    def is_named(port: InfinibandPort) -> bool:
        return port.name in wanted or any(
            port.device == each if exact else port.device.startswith(each) for each in wanted
        )

    return [each for each in everyone if is_named(each) != leaves_out]


def look(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    found = _chosen(machine)
    if not found:
        names = ", ".join(each.name for each in ports(machine))
        if names and (chosen := machine.environ.get("NCCL_IB_HCA")):
            yield finding_of("infiniband_none_chosen", chosen=chosen, names=names)
        return
    problems = [*_states(found), *_rates(found), *_errors(found)]
    yield from problems
    active = [each for each in found if each.state == "ACTIVE"]
    if active and not problems:
        rates = ", ".join(f"{each.name} {each.rate_gbps:g} Gb/s" for each in active)
        yield finding_of("infiniband", rates=rates)


def _states(found: Sequence[InfinibandPort]) -> Iterator[Finding]:
    active = [each for each in found if each.state == "ACTIVE"]
    for port in found:
        yield from first_where(__file__, "port", port=port, active=len(active), count=len(found))
    if found and not active and not any(each.state in ("INIT", "ARMED") for each in found):
        yield finding_of("infiniband_down.all", names=", ".join(each.name for each in found))


def _rates(found: Sequence[InfinibandPort]) -> Iterator[Finding]:
    """A port that runs slower than the others of its kind: a link that came up with fewer lanes or a lower speed."""
    for layer in sorted({each.layer for each in found}):
        alike = [each for each in found if each.layer == layer and each.state == "ACTIVE" and each.rate_gbps]
        # A node may have slower cards for storage: only a rate that most others exceed is one that fell.
        if len(alike) < 3:
            continue
        usual = sorted(each.rate_gbps for each in alike)[len(alike) // 2]
        for port in alike:
            if port.rate_gbps < usual:
                yield finding_of("infiniband_rate", name=port.name, rate=port.rate_gbps, usual=usual)


def _errors(found: Sequence[InfinibandPort]) -> Iterator[Finding]:
    for port in found:
        if port.state != "ACTIVE":
            continue
        high = {name: count for name, count in port.counters.items() if count > _LIMITS[name]["most"]}
        if high:
            counts = [
                text_of("infiniband_errors.count", count=count, means=Message(_LIMITS[name]["means"]))
                for name, count in high.items()
            ]
            yield finding_of("infiniband_errors", port=port.name, counts=joined("; ", counts), device=port.device)
