"""What the run folder of a run on many nodes costs: its readers, and the file calls of its supervisors."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from io import StringIO
from pathlib import Path

from rich.console import Console

from bench.processes import LimitedProcess
from bench.scale_nodes import LIMIT_S
from dsrun.cli.monitor.section import TerminalSize
from dsrun.cli.monitor.sources import RunSource
from dsrun.cli.monitor.view import render_view
from dsrun.machine.gpu_samples import GpuSample
from dsrun.runs.folder import RunFolder
from dsrun.runs.node_status import NodeStatus, RankProgress, read_node_status, write_node_status
from dsrun.runs.records import EventLog, utc_now
from tests.ports import free_ports

GPUS = 8
"""On each node, with a rank each."""
LOOKS = 5
READ_S = 0.5
"""Limit of a look of `dsrun monitor`, in CPU seconds."""
REAL_NODES = (2, 6)
ATTEMPT_S = 5
"""Seconds that the program of a real run takes."""
SPREAD = 1.5
"""Times as many file calls a second as equal supervisors may make: what they poll for depends on when they start."""


def show_status(scratch: Path, nodes: int) -> bool:
    """Print the costs; whether a monitor's look is cheap enough, and more nodes cost each no more file calls."""
    folder = RunFolder.create(scratch / "run")
    EventLog(folder.events).append({"event": "start", "attempt": 0, "world_size": GPUS * nodes})
    for node in range(nodes):
        write_node_status(folder.path, _status(node, nodes))
    read = _cpu_s(lambda: read_node_status(folder.path))
    print(f"status of {nodes:,} nodes with {GPUS} ranks and GPUs each: read in {read:.2f} CPU s")
    with folder.acquire_as_supervisor():
        source, room = RunSource(folder.path), TerminalSize(width=120, height=50)
        text = StringIO()
        console = Console(file=text, width=120)
        look = _cpu_s(lambda: console.print(render_view(source.read(), room)))
    assert f"{nodes * GPUS} × H100" in text.getvalue()
    print(f"a look of `dsrun monitor`: {look:.2f} CPU s; at most {READ_S:g}: {'yes' if look <= READ_S else 'NO'}")
    return look <= READ_S and _show_file_calls(scratch)


def _status(node: int, nodes: int) -> NodeStatus:
    ranks = range(GPUS * node, GPUS * (node + 1))
    return NodeStatus(
        time=utc_now(), host=f"gpu{node:04}", node=node, attempt=0, world_size=GPUS * nodes,
        ranks=tuple(
            RankProgress(
                rank=rank, pid=1000 + rank, phase="train", step=123, silent_s=0.3, step_s=1.2, data_s=0.01,
                compute_s=1.0, wait_s=0.1, own_low_s=0.9,
            )
            for rank in ranks
        ),
        gpus=tuple(
            GpuSample(
                index=index, name="NVIDIA H100", uuid=f"GPU-{node:08}-{index}", utilization=0.97,
                memory_used=70 << 30, memory_total=80 << 30, power_w=600.0, power_limit_w=700.0, temperature_c=60,
                clock_mhz=1900, throttled=(),
            )
            for index in range(GPUS)
        ),
        cpu=0.2, memory_used=10 << 30, memory_total=1 << 40,
    )  # fmt: skip


def _cpu_s(look: Callable[[], object]) -> float:
    """CPU seconds of a call, the least of some."""
    seconds = []
    for _ in range(LOOKS):
        began = time.process_time()
        look()
        seconds.append(time.process_time() - began)
    return min(seconds)


def _show_file_calls(scratch: Path) -> bool:
    """Print how often a second real supervisors name a path in the run folder, in runs of few and of more nodes;
    whether a node of the larger run does it no more often."""
    strace = shutil.which("strace")
    if strace is None:
        print("file calls in an attempt: unknown, strace is not installed")
        return True
    few, many = (_file_calls(strace, scratch / f"{nodes}-nodes", nodes) for nodes in REAL_NODES)
    for what, place in (("node 0", 0), ("another node", -1)):
        rates = f"{few[place]:.1f} of {REAL_NODES[0]} nodes, {many[place]:.1f} of {REAL_NODES[1]}"
        print(f"file calls a second of {what}, start and end included: {rates}")
    holds = max(many[1:]) <= SPREAD * max(few[1:])
    print(f"file calls of a node do not grow with the nodes: {'yes' if holds else 'NO'}")
    return holds


def _file_calls(strace: str, scratch: Path, nodes: int) -> list[float]:
    """Of each node of a run of a program that waits, how many system calls of its supervisor and agent a second name a
    path in the run folder, from the first one to the last."""
    scratch.mkdir()
    run, port = scratch / "run", free_ports(2)
    program = ["--", sys.executable, "-c", f"import time; time.sleep({ATTEMPT_S})"]
    with ExitStack() as stack:
        started = []
        for node in range(nodes):
            trace = [strace, "-f", "-qq", "-ttt", "-e", "trace=%file", "-o", str(scratch / f"{node}.strace")]
            place = ["--nodes", nodes, "--node-rank", node, "--master-addr", "127.0.0.1", "--master-port", port]
            command = [sys.executable, "-m", "dsrun", "launch", *map(str, place), "--output", str(run), *program]
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            started.append(LimitedProcess([*trace, *command], what="dsrun launch", limit_s=LIMIT_S, **quiet))
            stack.enter_context(started[-1])
        for each in started:
            each.finish()
            if each.returncode:
                raise SystemExit(f"a run on {nodes} nodes ended with exit code {each.returncode}")
    return [_rate(scratch / f"{node}.strace", f'"{run}') for node in range(nodes)]


def _rate(trace: Path, path: str) -> float:
    """Lines of strace that name the path, a second: they begin with a process and the time."""
    times = [float(line.split()[1]) for line in trace.read_text(errors="replace").splitlines() if path in line]
    return len(times) / (times[-1] - times[0])
