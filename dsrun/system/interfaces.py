"""Network interfaces of this machine, and which address its own name has."""

from __future__ import annotations

import ipaddress
import socket


def addresses() -> dict[str, list[str]]:
    """The IP addresses of each interface that is up, by the interface's name."""
    import psutil

    up = {name for name, facts in psutil.net_if_stats().items() if facts.isup}
    found: dict[str, list[str]] = {}
    for name, entries in psutil.net_if_addrs().items():
        own = [
            entry.address.partition("%")[0]
            for entry in entries
            if entry.family in (socket.AF_INET, socket.AF_INET6)
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


def plain_address(address: str) -> str:
    """`address` without its scope, and as IPv4 where it is one that an IPv6 socket has met."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return str(mapped or ip)
