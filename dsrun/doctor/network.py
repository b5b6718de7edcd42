"""Names, addresses and ports as this machine's checks see them."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

from dsrun.errors import UsageError
from dsrun.system import net


class Network:
    """This machine's network; a recorded machine answers otherwise."""

    def hostname(self) -> str:
        """This machine's own name."""
        return socket.gethostname()

    def resolve(self, host: str) -> Sequence[str]:
        """The addresses of `host`; [] where no name service knows it."""
        return net.resolve(host)

    def interfaces(self) -> Mapping[str, Sequence[str]]:
        """The addresses of each interface that is up, in the order of the system."""
        return net.addresses()

    def taken(self, port: int) -> str:
        """Why nothing can listen on `port`, and the next free one of the ten after it; "" where it is free."""
        try:
            net.claim_port(port, find=None)
        except UsageError as error:
            return error.message
        return ""

    def reachable(self, host: str, port: int, timeout_s: float) -> bool:
        """Whether `host` accepts a connection."""
        return net.reachable(host, port, timeout_s)
