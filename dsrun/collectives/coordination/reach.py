"""Whether every node can open a TCP connection to every other one, before torch is imported."""

import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from dsrun.collectives.coordination.meeting import CONNECT_S

HostPort = tuple[str, int]
_AT_ONCE = 64


@contextmanager
def listening(address: str, ports: Iterable[int]) -> Iterator[list[HostPort]]:
    """Accept connections on `ports` of `address`, and on one that the kernel chooses, as gloo and NCCL listen on.

    A port that is taken is left out: by another member on this machine, which answers for it.
    """
    sockets = []
    for port in (*ports, 0):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with suppress(OSError):
            sockets.append(socket.create_server((address, port), family=family, backlog=1024))
    threads = [threading.Thread(target=_accept, args=(each,), name="listener", daemon=True) for each in sockets]
    for thread in threads:
        thread.start()
    try:
        yield [(address, int(each.getsockname()[1])) for each in sockets]
    finally:
        for each in sockets:
            # Closing alone would leave the thread in accept(), and the port taken.
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in threads:
            thread.join(timeout=CONNECT_S)


def _accept(listener: socket.socket) -> None:
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            connection.close()


def unreachable(peers: Sequence[tuple[int, Sequence[HostPort]]]) -> list[tuple[int, str, str]]:
    """The endpoints that cannot be reached: number of the peer, "host:port", and why."""
    tasks = [(peer, (str(host), int(port))) for peer, endpoints in peers for host, port in endpoints]
    if not tasks:
        return []
    with ThreadPoolExecutor(min(_AT_ONCE, len(tasks))) as pool:
        reasons = pool.map(_reason, [endpoint for _, endpoint in tasks])
        return [(peer, f"{host}:{port}", why) for (peer, (host, port)), why in zip(tasks, reasons, strict=True) if why]


def _reason(endpoint: HostPort) -> str | None:
    """Why a connection fails, None where it does not."""
    try:
        with socket.create_connection(endpoint, timeout=CONNECT_S):
            return None
    except TimeoutError:
        return f"no answer within {CONNECT_S:.0f} s"
    except OSError as error:
        return error.strerror or str(error)
