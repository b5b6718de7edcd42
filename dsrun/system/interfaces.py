"""Network interfaces of this machine, and which address its own name has."""

from __future__ import annotations

import ipaddress
import socket
import subprocess
from contextlib import suppress

# ssh -G only reads its configuration, which may run commands (`Match exec`).
_SSH_S = 10.0


def addresses() -> dict[str, list[str]]:
    """The IP addresses of each interface that is up, by the interface's name."""
    import psutil

    up = {name for name, facts in psutil.net_if_stats().items() if facts.isup}
    found: dict[str, list[str]] = {}
    for name, entries in psutil.net_if_addrs().items():
        own = [
            entry.address.partition("%")[0] for entry in entries if entry.family in (socket.AF_INET, socket.AF_INET6)
        ]
        if name in up and own:
            found[name] = own
    return found


def own_name_addresses() -> list[str]:
    """What this machine's own name resolves to; [] when it does not."""
    try:
        entries = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in entries))


def address_towards(host: str) -> str | None:
    """The address of this machine that packets to `host` leave from; None when there is no way. Sends nothing."""
    try:
        for family, kind, protocol, _, target in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(target)
                return plain_address(probe.getsockname()[0])
    except OSError:
        return None
    return None


def is_this_machine(host: str) -> bool:
    """Whether `host` is an address or a name of this machine."""
    if host == socket.gethostname():
        return True
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    own = {address for each in addresses().values() for address in each}
    return any(str(entry[4][0]).partition("%")[0] in own for entry in entries)


def behind_alias(host: str) -> str:
    """`host`, or where no name service knows it, the name or address that ssh's configuration has for it."""
    with suppress(OSError):
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return host
    with suppress(OSError, subprocess.TimeoutExpired):
        asked = subprocess.run(["ssh", "-G", "--", host], capture_output=True, text=True, timeout=_SSH_S, check=False)
        for line in asked.stdout.splitlines():
            key, _, value = line.partition(" ")
            if key == "hostname":
                return value
    return host


def plain_address(address: str) -> str:
    """`address` without its scope, and as IPv4 where it is one that an IPv6 socket has met."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return str(mapped or ip)
