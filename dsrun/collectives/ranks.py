"""The rank programs of this machine: started, given their tasks, and heard."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from dsrun.errors import one_line
from dsrun.launch.environment import has_libuv, network_variables, worker_environment
from dsrun.launch.training_job import LocalWorkers
from dsrun.system.net import addresses, own_name_addresses
from dsrun.system.process.process_end import with_pdeathsig

PROGRAM = "dsrun.collectives.program"
_LOG_TAIL = 4000

MemberMessage = dict[str, Any]
AnswerCallback = Callable[[int, MemberMessage], None]
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

    def send(self, local: int, message: MemberMessage) -> None:
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
