"""TCP ports for the rendezvous."""

import errno
import ipaddress
import random
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from dsrun.errors import UsageError

TRIES = 10
_LAST_PORT = 65535
_FIRST_CHOSEN = 20000
_RANGE_OF_KERNEL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_CHOICES = 1000


def free_port() -> int:
    """A port on which nothing on this machine listens, outside those that the kernel gives away by itself.

    Between this check and the server's start lie seconds. A port of those that the kernel gives to outgoing connections
    and to who binds to port 0 (gloo: several a rank) may be gone by then, so it is one below them, where there are
    enough."""
    chosen = range(_FIRST_CHOSEN, _first_of_kernel())
    for port in random.SystemRandom().sample(chosen, min(_CHOICES, len(chosen))):
        if port_is_free(port):
            return port
    with _socket(None) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _first_of_kernel() -> int:
    """The first port that the kernel gives away by itself (ip(7)), 0 where that is unknown."""
    try:
        return int(_RANGE_OF_KERNEL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def reachable(host: str, port: int = 443, timeout_s: float = 3.0) -> bool:
    """Whether `host` accepts a TCP connection on `port` within `timeout_s` seconds."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s):
            return True
    except (OSError, UnicodeError):
        return False


def port_is_free(port: int, host: str | None = None) -> bool:
    """Whether a server could listen on `port` of `host` (an address of this machine; None: all of them).

    Binds for a moment instead of trying to connect: that also sees ports another user's firewall hides,
    and takes a port in TIME_WAIT for what it is, free, as torch's TCPStore does with SO_REUSEADDR. A `host`
    that is not this machine counts as free, because nothing here can occupy it."""
    try:
        with _socket(host) as probe:
            probe.bind((host or "", port))
    except OSError as error:
        return error.errno not in (errno.EADDRINUSE, errno.EACCES)
    return True


def next_free_port(port: int, tries: int = TRIES) -> int | None:
    """The first free port after `port` among the next `tries`; None when all are taken."""
    following = range(port + 1, min(port + tries, _LAST_PORT) + 1)
    return next((candidate for candidate in following if port_is_free(candidate)), None)


def claim_port(port: int, find: bool | None) -> int:
    """`port` when it is free, with `find` else the next free one of the ten after it.

    Raises UsageError when the port is taken, naming its holder where the system tells, and the next free
    port. `find` is None for a command without --find-port, which is not recommended then."""
    if not 1 <= port <= _LAST_PORT:
        raise UsageError(f"--master-port {port} is not a valid port", fix=f"give a number from 1 to {_LAST_PORT}")
    if port_is_free(port):
        return port
    following = next_free_port(port)
    if find and following is not None:
        return following
    taken = f"port {port} is taken by {_holder(port) or 'another process'}"
    if following is None:
        raise UsageError(f"{taken}, and so are the {TRIES} after it", fix="leave --master-port out to get a free one")
    flags = f"--master-port {following}" + ("" if find is None else " or --find-port")
    raise UsageError(f"{taken}; the next free one is {following}", fix=flags)


def _socket(host: str | None) -> socket.socket:
    """A TCP socket on which binding to `host`, or to every address of both families, is tried."""
    if host is None and socket.has_dualstack_ipv6():
        probe = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    else:
        probe = socket.socket(socket.AF_INET6 if ":" in (host or "") else socket.AF_INET, socket.SOCK_STREAM)
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return probe


def _holder(port: int) -> str | None:
    """Program and process id that listen on `port`; other users' processes are hidden from all but root."""
    import psutil

    try:
        for connection in psutil.net_connections(kind="tcp"):
            if connection.pid and connection.laddr and connection.laddr[1] == port:
                return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
    except (psutil.Error, OSError):
        return None
    return None


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
    return resolve(socket.gethostname())


def resolve(host: str) -> list[str]:
    """The addresses of `host`, each once and without its scope; [] when no name service knows it."""
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # the latter for what cannot be a name: "..", or one that is too long
        return []
    return list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in entries))


def own_address(host: str) -> str | None:
    """The one address of this machine that `host` names; None where it names several or another machine's.

    The loopback counts only if nothing but that was named: this machine's own name often is 127.0.1.1 here, and its
    address in the network elsewhere."""
    named = resolve(host)
    if host == "localhost" or (host in named and ipaddress.ip_address(host).is_loopback):
        return named[0] if named else "127.0.0.1"
    own = {address for entries in addresses().values() for address in entries}
    found = [address for address in named if address in own and not ipaddress.ip_address(address).is_loopback]
    return found[0] if len(found) == 1 else None


def address_towards(host: str) -> str | None:
    """The address of this machine that packets to `host` leave from; None when there is no way. Sends nothing."""
    try:
        for family, kind, protocol, _, target in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind, protocol) as probe:
                # A datagram socket only chooses its route by it (connect(2)); port 9 is that of the discard protocol.
                probe.connect(target)
                return plain_address(probe.getsockname()[0])
    except OSError:
        return None
    return None


def is_this_machine(host: str) -> bool:
    """Whether `host` is an address or a name of this machine."""
    if host == socket.gethostname():
        return True
    found = set(resolve(host))
    return any(found.intersection(own) for own in addresses().values())


def behind_alias(host: str) -> str:
    """`host`, or where no name service knows it, the name or address that ssh's configuration has for it."""
    if resolve(host):
        return host
    with suppress(OSError, subprocess.TimeoutExpired):
        answer = subprocess.run(["ssh", "-G", "--", host], capture_output=True, text=True, timeout=_SSH_S, check=False)
        for line in answer.stdout.splitlines():
            key, _, value = line.partition(" ")
            if key == "hostname":
                return value
    return host


def plain_address(address: str) -> str:
    """`address` without its scope, and as IPv4 where it is one that an IPv6 socket has met."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return str(mapped or ip)
