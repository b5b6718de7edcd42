"""Ports for tests that name one before they listen on it.

A port that the kernel has chosen may be given to any connection of any process before it is used. These lie below those
that kernels choose from (32768 on Linux, 16000 in some sandboxes), and each process begins at another one.
"""

from __future__ import annotations

import os
from itertools import count

from dsrun.system.net import port_is_free

_FIRST, _MANY = 10240, 4736
_places = count(os.getpid() * 64)


def free_ports(number: int = 1) -> int:
    """The first of so many ports in a row on which nobody listens, and that this process has not been given yet."""
    for _ in range(_MANY):
        first = _FIRST + next(_places) % (_MANY - number)
        if all(port_is_free(port) for port in range(first, first + number)):
            for _ in range(number - 1):
                next(_places)
            return first
    raise AssertionError("all ports are taken")
