"""What it costs a run to be watched: its steps with `dsrun monitor` and a scraped `dsrun exporter` beside it, and
without, in turn within one run of two gloo ranks on CPU.

The watchers run on the run's own cores, of which the ranks leave none; on a node with more cores, or another node, they
cost less. What a rank's heartbeat costs is timed by itself.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from bench.cpu_clock import cpu_seconds
from bench.processes import LimitedProcess
from bench.recovery_runs import Dsrun, make_data, make_model
from dsrun.runs.heartbeat import HeartbeatWriter

WINDOWS = 12
WINDOW_S = 15.0
REFRESH_S = 2.0
SCRAPE_S = 15.0
START_S = 300.0
"""Of a watcher, which takes a second."""
LIMIT = 1.01
"""A step may take so many times as long while the run is watched."""
BEATS = 20_000


def main() -> bool:
    """Print what watching costs; whether the limit holds."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the run is ended, too
    with tempfile.TemporaryDirectory(prefix="watching-") as scratch:
        run = Dsrun(Path(scratch, "run"), make_model(Path(scratch, "model")), make_data(Path(scratch, "data.jsonl")))
        try:
            run.wait("step 50", lambda: len(run.steps()) > 50)
            plain, watched, share = _windows(run)
        finally:
            run.end()
        beat = _beat_s(Path(scratch, "beats"))
    ratio = watched / plain
    print(f"a step takes {ratio:.3f} × as long while watched ({1000 * watched:.1f} ms against {1000 * plain:.1f} ms)")
    print(f"the watchers take {100 * share:.2f}% of a core")
    print(f"a heartbeat takes {1e6 * beat:.0f} µs, {100 * beat / plain:.3f}% of such a step")
    print(f"at most {LIMIT:g} ×: {'yes' if ratio <= LIMIT else 'NO'}")
    return ratio <= LIMIT


def _windows(run: Dsrun) -> tuple[float, float, float]:
    """Median seconds of a step in the windows without watchers and in those with them, which alternate; and the share
    of a core that the watchers take after their start."""
    medians: dict[bool, list[float]] = {False: [], True: []}
    shares: list[float] = []
    for window in range(2 * WINDOWS):
        is_watched = window % 2 == 1
        with _watchers(run.folder) if is_watched else nullcontext(None) as watchers:
            begin = time.time()
            used = watchers.cpu_s() if watchers else 0.0
            while time.time() < begin + WINDOW_S:
                time.sleep(0.2)
                if watchers:
                    watchers.scrape_if_due()
            end = time.time()
            if watchers:
                shares.append((watchers.cpu_s() - used) / (end - begin))
        times = [at for at, _ in run.steps() if begin <= at <= end]
        medians[is_watched].append(median(after - before for before, after in pairwise(times)))
    return median(medians[False]), median(medians[True]), median(shares)


@dataclass
class Watchers:
    """A monitor and an exporter of one run."""

    monitor: LimitedProcess
    exporter: LimitedProcess
    url: str
    scraped: float = 0.0

    def cpu_s(self) -> float:
        return cpu_seconds(self.monitor.pid) + cpu_seconds(self.exporter.pid)

    def scrape_if_due(self) -> None:
        if time.monotonic() - self.scraped >= SCRAPE_S:
            self.scraped = time.monotonic()
            with urllib.request.urlopen(self.url, timeout=10) as answer:
                answer.read()


@contextmanager
def _watchers(run: Path) -> Iterator[Watchers]:
    """Both, once they are under way."""
    command = [sys.executable, "-m", "dsrun"]
    kinds = {"limit_s": START_S, "stderr": subprocess.PIPE, "text": True}
    started: list[LimitedProcess] = []
    try:
        words = ["monitor", str(run), "--interval", str(REFRESH_S)]
        started.append(LimitedProcess([*command, *words], what="dsrun monitor", stdout=subprocess.PIPE, **kinds))
        words = ["exporter", str(run), "--port", "0"]
        started.append(LimitedProcess([*command, *words], what="dsrun exporter", **kinds))
        monitor, exporter = started
        monitor.line("stdout")
        url = re.search(r"http://\S+/metrics", exporter.line("stderr"))
        assert url is not None
        yield Watchers(monitor, exporter, url[0])
    finally:
        for each in started:
            each.end(grace_s=0)


def _beat_s(folder: Path) -> float:
    """Seconds of one heartbeat of a step."""
    heart = HeartbeatWriter(folder, 0)
    began = time.perf_counter()
    for step in range(BEATS):
        heart.step(step)
    return (time.perf_counter() - began) / BEATS
