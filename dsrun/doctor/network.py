"""Names, addresses and ports as this machine's checks see them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from dsrun.errors import UsageError
from dsrun.system import net

RESOLVE_S = 3.0
"""A name service that takes longer, as a resolver without a network does, holds up each rank's start."""
Answer = TypeVar("Answer")


class Network:
    """This machine's network; a recorded machine answers otherwise."""

    def hostname(self) -> str:
        """This machine's own name."""
        return socket.gethostname()

    def resolve(self, host: str) -> Sequence[str] | None:
        """The addresses of `host`; [] where no name service knows it, None where none answers within RESOLVE_S."""
        return _within(RESOLVE_S, lambda: net.resolve(host), None)

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
        """Whether `host` accepts a connection within `timeout_s` seconds, its name looked up."""
        return _within(timeout_s, lambda: net.reachable(host, port, timeout_s), False)


def _within(seconds: float, ask: Callable[[], Answer], otherwise: Answer) -> Answer:
    """What `ask` returns; `otherwise` where that takes longer. Looking up a name has no time limit of its own."""
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(ask()), daemon=True)
    thread.start()
    thread.join(seconds)
    return answers[0] if answers else otherwise
