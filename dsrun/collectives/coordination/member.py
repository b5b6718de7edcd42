"""A member's part: what this machine's process of the doctor does when the leader asks, also whether it can open a TCP
connection to every other node, before torch is imported; and its rank programs: started, given their tasks, and
heard."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass

from dsrun.collectives.coordination.meeting import CONNECT_S, LeaderUnreachable, MemberConnection, join
from dsrun.collectives.observations import node_facts
from dsrun.collectives.place import MemberPlace
from dsrun.errors import UsageError, one_line
from dsrun.findings.finding import Finding
from dsrun.launch.context import LocalWorkers, decide
from dsrun.launch.coordinator.transport import PeerMessage
from dsrun.launch.environment import has_libuv, network_variables, worker_environment
from dsrun.machine.gpus import visible_gpus
from dsrun.system.host import cores
from dsrun.system.net import addresses, own_name_addresses
from dsrun.system.process.process_end import with_pdeathsig

PROGRAM = "dsrun.collectives.program"
_LOG_TAIL = 4000

AnswerCallback = Callable[[int, PeerMessage], None]
"""Takes what a local rank has answered, in a thread of its own."""


def rank_environment(
    topology: LocalWorkers, environ: Mapping[str, str], *, local_address: str | None
) -> dict[str, str]:
    """The environment of the rank programs, as that of a training's ranks; `local_address` where there are several
    nodes."""
    changes: dict[str, str | None] = {**worker_environment(topology, environ, debug=False)}
    if local_address is not None:
        changes.pop("GLOO_SOCKET_IFNAME", None)
        found = network_variables(local_address, addresses(), own_name_addresses())
        changes |= {name: value for name, value in found.items() if name not in environ}
    if not has_libuv() and "USE_LIBUV" not in environ:
        changes["USE_LIBUV"] = "0"
    # The child's first use of CUDA has to come after the fork.
    changes["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    return {name: value for name, value in {**environ, **changes}.items() if value is not None}


class RankPrograms:
    """One program per rank of this machine; `answered` gets what they say, {"ended": why} as the last thing."""

    def __init__(self, count: int, env: Mapping[str, str], answered: AnswerCallback) -> None:
        self._answered = answered
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []
        self._closing = False
        # Without names, so that nothing is left of them, however this process ends.
        self._logs = [tempfile.TemporaryFile() for _ in range(count)]  # noqa: SIM115  see close()
        for local, log in enumerate(self._logs):
            process = subprocess.Popen(
                with_pdeathsig([sys.executable, "-m", PROGRAM], os.getpid()),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # With its forks one group, which is killed as a whole; Ctrl-C is for this process alone.
                start_new_session=True,
                env={**env, "LOCAL_RANK": str(local)},
            )
            self._processes.append(process)
            self._threads.append(threading.Thread(target=self._read, args=(local,), name="rank", daemon=True))
        for thread in self._threads:
            thread.start()

    def send(self, local: int, message: PeerMessage) -> None:
        stdin = self._processes[local].stdin
        if stdin:
            with suppress(OSError):  # it has ended, and that was answered
                stdin.write(json.dumps(message).encode() + b"\n")
                stdin.flush()

    def close(self) -> None:
        """End all of them, whatever they do."""
        self._closing = True
        for process in self._processes:
            if process.stdin:
                with suppress(OSError):
                    process.stdin.close()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process, thread in zip(self._processes, self._threads, strict=True):
            process.wait()
            thread.join()
        for log in self._logs:
            log.close()

    def _read(self, local: int) -> None:
        process = self._processes[local]
        for line in process.stdout or ():
            with suppress(ValueError):
                self._answered(local, json.loads(line))
        if not self._closing:
            self._answered(local, {"ended": self._last_words(local, process.wait())})

    def _last_words(self, local: int, code: int) -> str:
        log = self._logs[local].fileno()
        text = os.pread(log, _LOG_TAIL, max(0, os.fstat(log).st_size - _LOG_TAIL)).decode(errors="replace")
        lines: Sequence[str] = [line for line in text.splitlines() if line.strip()]
        last = one_line(Exception(lines[-1])) if lines else ""
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"{how}: {last}" if last else how


HostPort = tuple[str, int]
_AT_ONCE = 64


def take_part(
    place: MemberPlace,
    port: int,
    key: bytes,
    *,
    timeout_s: float,
    notify: Callable[[str], None],
    findings: Sequence[Finding] = (),
) -> PeerMessage:
    """This member's part of the test to its end: the leader's last message.

    Raises LeaderUnreachable where the leader cannot be reached or is lost, UsageError where it refuses this member."""
    topology = decide(nproc=place.ranks, visible_gpus=len(visible_gpus()), cores=cores(), use_cpu=False)
    facts = asdict(node_facts())
    more = {"findings": [each.as_dict() for each in findings if each.level != "info"]}

    def hello(_address: str, ahead_s: float) -> PeerMessage:
        ranks = {"ranks": topology.workers, "device": topology.device}
        return {"index": place.index, "count": place.count, "facts": facts, "ahead_s": ahead_s, **ranks, **more}

    membership = join(place.host, port + 1, key, hello, timeout_s=timeout_s, notify=notify)
    try:
        return _Member(place, port, topology, membership).follow()
    finally:
        membership.end()


@dataclass(eq=False)
class _Member:
    _place: MemberPlace
    _port: int
    _topology: LocalWorkers
    _membership: MemberConnection
    _programs: RankPrograms | None = None

    def follow(self) -> PeerMessage:
        """Do what the leader asks, to the end."""
        address = self._membership.local_address
        # The leader itself listens on the second port, which every member has reached when it joined.
        ports = () if self._place.count == 1 else (self._port, *(() if self._place.index == 0 else (self._port + 1,)))
        with ExitStack() as stack:
            listeners = stack.enter_context(ExitStack())
            endpoints = listeners.enter_context(listening(address, ports))
            self._membership.send({"address": address, "endpoints": endpoints})
            while (message := self._membership.next()) is not None:
                if "peers" in message:
                    peers = [(int(peer), [(str(h), int(p)) for h, p in found]) for peer, found in message["peers"]]
                    self._membership.send({"unreachable": unreachable(peers)})
                elif "start" in message:
                    # The store of the ranks takes the port over.
                    listeners.close()
                    self._programs = self._started(address if message["start"]["several"] else None)
                    stack.callback(self._programs.close)
                elif "tasks" in message and self._programs:
                    for local, task in message["tasks"].items():
                        self._programs.send(int(local), {**task, "device": self._device(int(local))})
                elif "cancel" in message and self._programs:
                    for local in message["cancel"]:
                        self._programs.send(int(local), {"cancel": True})
                elif "refused" in message:
                    what = f"{self._place.host}:{self._port + 1} refuses node {self._place.index}"
                    fix = "all nodes need the same --nodes, --master-addr, --master-port and DSRUN_SECRET"
                    raise UsageError(f"{what}: {message['refused']}", fix=fix)
                elif "end" in message:
                    return message
        raise LeaderUnreachable("it has left the test, or its machine is lost")

    def _started(self, local_address: str | None) -> RankPrograms:
        env = rank_environment(self._topology, os.environ, local_address=local_address)
        send = self._membership.send
        return RankPrograms(self._topology.workers, env, lambda local, answer: send({"local": local, **answer}))

    def _device(self, local: int) -> int | None:
        """The number of the GPU of a rank; srun may have left a task one GPU of its own, or all of the node's."""
        if self._topology.device == "cpu":
            return None
        if self._place.local_rank is None:
            return local
        return self._place.local_rank % max(1, len(visible_gpus()))


@contextmanager
def listening(address: str, ports: Iterable[int]) -> Iterator[list[HostPort]]:
    """Accept connections on `ports` of `address`, and on one that the kernel chooses, as gloo and NCCL listen on.

    A port that is taken is left out: by another member on this machine, which answers for it."""
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
