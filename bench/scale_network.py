"""`python -m bench.scale_network TO`: a network between the nodes of a simulated run, as a process that listens on a
port, which it prints, and hands each connection on to port TO of this machine.

What comes in is held back for a random while, and what counts as a lost packet until TCP would send it again.
"""

from __future__ import annotations

import asyncio
import random
import sys
from contextlib import suppress

from dsrun.launch.coordinator.transport import allow_open_files

DELAY_S = 0.05
"""At most, evenly distributed, in each direction."""
LOST = 0.02
RETRANSMIT_S = 0.2
"""Of a packet: Linux's least (TCP_RTO_MIN), doubled for each further loss."""
SEED = 1


class SlowNetwork:
    def __init__(self, to: int) -> None:
        self._to = to
        self._random = random.Random(SEED)

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Between a node and node 0, until one of them closes the connection."""
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction: packets keep their order, so a late one holds up those behind it."""
        loop = asyncio.get_running_loop()
        free_at = 0.0
        with suppress(OSError):
            while data := await reader.read(65536):
                free_at = max(free_at, loop.time() + self._seconds())
                loop.call_at(free_at, writer.write, data)
        await asyncio.sleep(max(0.0, free_at - loop.time()) + DELAY_S)
        writer.close()

    def _seconds(self) -> float:
        seconds, again = self._random.uniform(0.0, DELAY_S), RETRANSMIT_S
        while self._random.random() < LOST:
            seconds, again = seconds + again, 2 * again
        return seconds


async def main(to: int) -> None:
    network = SlowNetwork(to)
    server = await asyncio.start_server(network.connect, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    allow_open_files(4096)
    asyncio.run(main(int(sys.argv[1])))
