"""Several builds side by side: `python -m dsrun.wheel.compile.parallel PLAN.json`.

PLAN: {"width": N, "builds": [{"label", "argv", "cwd", "env"}, …]}. Every line a build prints goes to stdout as
`LABEL<TAB>line`; `LABEL<TAB>!begin` and `LABEL<TAB>!end CODE` stand around it. After the first build that fails no
other is started, those that run are ended, and the exit code is 1. SIGTERM, which the kernel sends when dsrun dies,
ends all of them. Each build leads a process group, so that its end is also that of ninja and the compilers below it,
which would go on to the last file. The standard library only: it runs for a build's whole time."""

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

BEGIN = "!begin"
END = "!end"
_POLL_S = 0.1


class _ParallelBuilds:
    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._running: list[subprocess.Popen[bytes]] = []
        self.failed = False

    def write_line(self, label: str, text: str) -> None:
        """Write one whole line, whichever other build prints."""
        with self._guard:
            sys.stdout.write(f"{label}\t{text}\n")
            sys.stdout.flush()

    def run(self, build: dict[str, Any]) -> None:
        label = build["label"]
        with self._guard:
            if self.failed:
                return
            process = subprocess.Popen(
                build["argv"],
                cwd=build["cwd"],
                env=build["env"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
            self._running.append(process)
        self.write_line(label, BEGIN)
        assert process.stdout is not None
        for line in process.stdout:
            self.write_line(label, line.decode(errors="replace").rstrip())
        code = process.wait()
        ended = self._left(process, code)
        if not ended:
            self.write_line(label, f"{END} {code}")

    def _left(self, process: subprocess.Popen[bytes], code: int) -> bool:
        """Note the end of a build; the first failure ends the others. Whether this one was ended by another's."""
        with self._guard:
            self._running.remove(process)
            before, self.failed = self.failed, self.failed or code != 0
            if code != 0 and not before:
                self._end_running(signal.SIGTERM)
            return before and code != 0

    def _end_running(self, signum: int) -> None:
        """Send `signum` to the builds that run and everything below them. Hold the guard."""
        for process in self._running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signum)

    def end_all(self, signum: int, _frame: object) -> None:
        """Signal handler: pass the signal on to all builds, and die of it."""
        signal.signal(signum, signal.SIG_DFL)
        with self._guard:
            self._end_running(signum)
            os.kill(os.getpid(), signum)


def main(plan: Path) -> int:
    given = json.loads(plan.read_text(encoding="utf-8"))
    builds = _ParallelBuilds()
    signal.signal(signal.SIGTERM, builds.end_all)
    with ThreadPoolExecutor(given["width"]) as pool:
        running = [pool.submit(builds.run, build) for build in given["builds"]]
        # The handler runs in this thread, which a signal that the kernel gives to another one does not wake up: as when
        # it comes while the process is stopped.
        while wait(running, timeout=_POLL_S).not_done:
            pass
        for each in running:
            each.result()
    return int(builds.failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
