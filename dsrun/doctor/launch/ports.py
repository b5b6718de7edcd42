"""The port of the ranks' rendezvous, and where it is: MASTER_PORT, MASTER_ADDR, this machine's own name."""

import ipaddress
from collections.abc import Iterator

from dsrun.doctor.machine_facts import RESOLVE_S, DoctorTarget, MachineFacts
from dsrun.findings.finding import Finding
from dsrun.findings.texts import finding_of, text_of
from dsrun.launch.context import DEFAULT_PORT, LAST_PORT


def look_at_port(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """The port that was named must be free; without one dsrun takes a free one on one machine, and 29500 on several."""
    named, by = _named_port(machine, target)
    if isinstance(named, str):
        yield finding_of("port_invalid", by=by, named=named, last=LAST_PORT)
        return
    port = named or DEFAULT_PORT
    taken = machine.network.taken(port)
    if taken and named:
        key = "port_taken.variable" if by == "MASTER_PORT" else "port_taken"
        yield finding_of(key, by=by, taken=taken)
    elif taken:
        yield finding_of("port_default_taken", taken=taken)
    elif named and target.nodes > 1 and (next_taken := machine.network.taken(port + 1)):
        yield finding_of("port_next_taken", next_taken=next_taken, port=port)
    else:
        yield finding_of("port", port=port)


def _named_port(machine: MachineFacts, target: DoctorTarget) -> tuple[int | str | None, str]:
    """The port and what names it; the text where that is not a port."""
    if target.master_port is not None:
        return target.master_port, "--master-port"
    text = machine.environ.get("MASTER_PORT", "").strip()
    if not text:
        return None, ""
    return (int(text) if text.isascii() and text.isdigit() and 1 <= int(text) <= LAST_PORT else text), "MASTER_PORT"


def look_at_names(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """gloo and torch look up MASTER_ADDR and this machine's own name; Debian gives that the address 127.0.1.1."""
    address = target.master_addr or machine.environ.get("MASTER_ADDR", "").strip()
    own = machine.network.hostname()
    addresses = machine.network.resolve(own)
    found = _master(machine, target, address) if address else []
    several = (target.nodes > 1 and target.runs_on(machine)) or (bool(address) and not _is_local(machine, address))
    if addresses is None:
        found.append(finding_of("names_own_unknown.slow", own=own, seconds=RESOLVE_S))
    elif not addresses:
        found.append(finding_of("names_own_unknown", own=own))
    elif several and all(_is_loopback(each) for each in addresses):
        found.append(finding_of("names_own_loopback", own=own, address=addresses[0]))
    yield from found
    if not found and addresses:
        there = machine.network.resolve(address) if address else None
        yield (
            finding_of("names.master", own=own, address=addresses[0], master=address, there=there[0])
            if there
            else finding_of("names", own=own, address=addresses[0])
        )


def _master(machine: MachineFacts, target: DoctorTarget, address: str) -> list[Finding]:
    """Whether the name of node 0 is known here."""
    resolved = machine.network.resolve(address)
    if resolved:
        return []
    key = "names_master_addr.hangs" if resolved is None else "names_master_addr"
    if target.master_addr:
        return [finding_of(key, by="--master-addr", address=address)]
    return [finding_of(key, by="MASTER_ADDR", address=address, fix=text_of("names_master_addr.unset"))]


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _is_local(machine: MachineFacts, host: str) -> bool:
    own = {address for addresses in machine.network.interfaces().values() for address in addresses}
    return host == machine.network.hostname() or any(
        each in own or _is_loopback(each) for each in machine.network.resolve(host) or ()
    )
