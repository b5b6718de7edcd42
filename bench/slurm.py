"""How long a job's script takes to render: for 10,000 nodes against one, and as a command against torchx."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from bench.processes import COMMAND_S, run
from bench.timing import ROUNDS, ratio_line
from dsrun.launch.program import any_program
from dsrun.slurm.render.job_script import render_script
from dsrun.slurm.render.options import SlurmSpec
from dsrun.slurm.render.site import ClusterSite

MANY = 10_000
RENDERINGS = 200
LIMIT_S = 0.005
"""A script has to be rendered within this time, once Jinja2 is loaded and the template compiled."""
ALIKE = 1.25
"""Renderings whose medians differ by less than this factor take the same time."""
TORCHX = "torchx==0.7.0"
INSTALL_S = 1800.0
NODES, GPUS = 4, 8
SCRIPT = ("train.py", "--x", "1")


def main() -> bool:
    """Print the ratios; whether rendering is fast enough, and as fast for many nodes as for one."""
    times = in_turn({f"{nodes} nodes": _rendering(nodes) for nodes in (1, MANY)})
    one, many = times.values()
    print(f"rendering for {MANY:,} nodes takes {many / one:.3g} × one node ({many * 1000:.2f} ms, {one * 1000:.2f} ms)")
    holds = many <= LIMIT_S and many < ALIKE * one
    print(f"at most {LIMIT_S * 1000:g} ms, and as long as for one node: {'yes' if holds else 'NO'}")
    with tempfile.TemporaryDirectory() as scratch:
        _against_torchx(Path(scratch))
    return holds


def in_turn(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Median wall time of each call in seconds, all of them in turn as `bench.timing.interleaved` does it."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for counted in [False] + [True] * RENDERINGS:
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            if counted:
                seconds[name].append(time.perf_counter() - begin)
    return {name: median(values) for name, values in seconds.items()}


def _rendering(nodes: int) -> Callable[[], str]:
    spec = SlurmSpec(nodes=nodes, gpus_per_node=str(GPUS), time="20:00:00")
    program = any_program(("python", *SCRIPT))
    return lambda: render_script(spec, program, ClusterSite())


def _against_torchx(scratch: Path) -> None:
    """CPU time of both commands for the same job; says so where torchx cannot be installed."""
    # It looks for the script it is to run; dsrun leaves that to the job.
    (scratch / SCRIPT[0]).touch()
    torchx = _install(scratch / "venv")
    if torchx is None:
        print("torchx: cannot be installed here, nothing to compare with")
        return
    run_main = "import sys; from dsrun.cli.main import main; sys.argv = ['dsrun', *sys.argv[1:]]; main()"
    job = ["--nodes", str(NODES), "--gpus-per-node", str(GPUS)]
    shape = ["-j", f"{NODES}x{GPUS}", "--gpu", str(GPUS), "--script", SCRIPT[0]]
    commands = {
        "dsrun render-slurm": [sys.executable, "-c", run_main, "render-slurm", *job, "--", "python", *SCRIPT],
        "torchx run --dryrun": [
            str(torchx),
            "run",
            "-s",
            "slurm",
            "--dryrun",
            "dist.ddp",
            *shape,
            "--",
            *SCRIPT[1:],
        ],
    }
    root = str(Path(__file__).parents[1])
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([root, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]),
    }
    times = cpu_in_turn(commands, scratch, env)
    print("CPU time: " + ratio_line(times, *commands))


def _install(folder: Path) -> Path | None:
    """torchx in an environment of its own; None where pip cannot get it."""
    venv = [sys.executable, "-m", "venv", folder]
    run(venv, what="python -m venv", limit_s=INSTALL_S, check=True)
    pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", TORCHX]
    done = run(pip, what=f"pip install {TORCHX}", limit_s=INSTALL_S, capture_output=True)
    return folder / "bin" / "torchx" if done.returncode == 0 else None


def cpu_in_turn(commands: Mapping[str, Sequence[str]], cwd: Path, env: Mapping[str, str]) -> dict[str, float]:
    """Median user and system time of each command in seconds, over ROUNDS runs of all of them in turn.

    Raises CalledProcessError when a command fails.
    """
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for counted in [False] + [True] * ROUNDS:
        for name, command in commands.items():
            began = _children()
            run(command, what=name, limit_s=COMMAND_S, cwd=cwd, env=env, capture_output=True, check=True)
            if counted:
                seconds[name].append(_children() - began)
    return {name: median(values) for name, values in seconds.items()}


def _children() -> float:
    """CPU seconds of all child processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system
