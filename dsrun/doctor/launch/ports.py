"""The port of the ranks' rendezvous, and where it is: MASTER_PORT, MASTER_ADDR, this machine's own name."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from dsrun.doctor.check import Check, failure, fine, warning
from dsrun.doctor.machine import RESOLVE_S, Machine, Target
from dsrun.findings.finding import Finding
from dsrun.launch.context import DEFAULT_PORT, LAST_PORT
from dsrun.messages import Message


def look_at_port(machine: Machine, target: Target) -> Iterator[Finding]:
    """The port that was named must be free; without one dsrun takes a free one on one machine, and 29500 on several."""
    named, by = _named_port(machine, target)
    if isinstance(named, str):
        yield failure(
            "port_invalid",
            Message("{by}={named!r} is not a valid port", by=by, named=named),
            Message("give a number from 1 to {last}", last=LAST_PORT),
        )
        return
    port = named or DEFAULT_PORT
    taken = machine.network.taken(port)
    if taken and named:
        fix = Message(
            "unset MASTER_PORT, and a free one is taken"
            if by == "MASTER_PORT"
            else "leave it out, and a free one is taken"
        )
        yield failure("port_taken", Message("{by}: {taken}", by=by, taken=taken), fix)
    elif taken:
        yield warning(
            "port_default_taken",
            Message(
                "{taken}; on one machine dsrun takes another by itself, but torchrun and jobs of several "
                "nodes want this one",
                taken=taken,
            ),
            Message("give another port: --master-port"),
        )
    elif named and target.nodes > 1 and (next_taken := machine.network.taken(port + 1)):
        yield failure(
            "port_next_taken",
            Message("{next_taken}, which dsrun's own protocol needs beside {port}", next_taken=next_taken, port=port),
            Message("give another --master-port"),
        )
    else:
        yield fine("port", Message("{port} is free", port=port))


def _named_port(machine: Machine, target: Target) -> tuple[int | str | None, str]:
    """The port and what names it; the text where that is not a port."""
    if target.master_port is not None:
        return target.master_port, "--master-port"
    text = machine.environ.get("MASTER_PORT", "").strip()
    if not text:
        return None, ""
    return (int(text) if text.isascii() and text.isdigit() and 1 <= int(text) <= LAST_PORT else text), "MASTER_PORT"


PORT = Check(
    "port",
    "rendezvous port",
    look_at_port,
    finds="a port of --master-port, MASTER_PORT or the default that is taken, with its holder and the next free one",
)


def look_at_names(machine: Machine, target: Target) -> Iterator[Finding]:
    """gloo and torch look up MASTER_ADDR and this machine's own name; Debian gives that the address 127.0.1.1."""
    address = target.master_addr or machine.environ.get("MASTER_ADDR", "").strip()
    own = machine.network.hostname()
    addresses = machine.network.resolve(own)
    found = _master(machine, target, address) if address else []
    several = (target.nodes > 1 and target.runs_on(machine)) or (bool(address) and not _is_local(machine, address))
    if not addresses:
        what = (
            Message(
                "looking up this machine's own name {own} takes more than {seconds:g} s", own=own, seconds=RESOLVE_S
            )
            if addresses is None
            else Message(
                "looking up this machine's own name {own} finds no address: gloo fails, or waits 10 s", own=own
            )
        )
        found.append(
            warning(
                "names_own_unknown",
                what,
                f"echo '127.0.1.1 {own}' | sudo tee -a /etc/hosts",
            )
        )
    elif several and all(_is_loopback(each) for each in addresses):
        found.append(
            warning(
                "names_own_loopback",
                Message(
                    "{own} resolves to {address}, which gloo gives to other nodes: dsrun sets "
                    "GLOO_SOCKET_IFNAME against that, torchrun does not",
                    own=own,
                    address=addresses[0],
                ),
                Message("correct the line of {own} in /etc/hosts, or export GLOO_SOCKET_IFNAME=INTERFACE", own=own),
            )
        )
    yield from found
    if not found and addresses:
        there = machine.network.resolve(address) if address else None
        message = Message(
            "{own} is {address}; MASTER_ADDR {master} is {there}" if there else "{own} is {address}",
            own=own,
            address=addresses[0],
            master=address,
            there=there[0] if there else "",
        )
        yield fine("names", message)


def _master(machine: Machine, target: Target, address: str) -> list[Finding]:
    """Whether the name of node 0 is known here."""
    resolved = machine.network.resolve(address)
    if resolved:
        return []
    by = "--master-addr" if target.master_addr else "MASTER_ADDR"
    fix = Message(
        "give the IP address of node 0" if target.master_addr else "give the IP address of node 0, or unset MASTER_ADDR"
    )
    message = Message(
        "{by} is {address}, whose lookup does not end: ranks would wait for it until they time out"
        if resolved is None
        else "{by} is {address}, which no name service knows: ranks would wait for it until they time out",
        by=by,
        address=address,
    )
    return [failure("names_master_addr", message, fix)]


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _is_local(machine: Machine, host: str) -> bool:
    own = {address for addresses in machine.network.interfaces().values() for address in addresses}
    return host == machine.network.hostname() or any(
        each in own or _is_loopback(each) for each in machine.network.resolve(host) or ()
    )


NAMES = Check(
    "names",
    "names and addresses",
    look_at_names,
    finds="a MASTER_ADDR that no name service knows; an own name without an address, or with 127.0.1.1",
)
