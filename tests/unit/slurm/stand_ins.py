"""A rendered script under the real bash, with stand-ins for SLURM's programs and for Python that record their words."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

from dsrun.launch.program import any_program, train_program
from dsrun.slurm.render.job_script import render_script
from dsrun.slurm.render.site import ClusterSite
from dsrun.slurm.render.spec import make_spec, run_file_value

MODULE = "torch.distributed.run"
RECORD = 'printf "%s\\0" "$#" "${0##*/}" "$@" >>"$STAND_INS/record"\n'
# srun runs the command of node 0 only, without srun's own options, which the template writes as --name=value.
SRUN = 'while [[ ${1-} == --* ]]; do shift; done\nSLURM_NODEID=0 exec "$@"\n'
SCONTROL = """\
case "$1 $2" in
    "show hostnames") echo "first-node" ;;
    "show job") cat "$STAND_INS/job" ;;
esac
"""
# With -c it is asked for its versions.
PYTHON = """\
[ "$1" != -c ] || { echo "${VERSIONS-0123456789ab}"; exit; }
env -0 >"$STAND_INS/environment"
source "$STAND_INS/worker"
"""
# A worker that trains to the end.
FINISHED = 'sleep 0.05; touch "$DSRUN_OUTPUT/FINISHED"; exit 0'
JOB = "JobId=12 JobName=x JobState=FAKED\n   JobState=RUNNING Reason=None\n   StdErr=log.txt\n"


@dataclass
class Finished:
    """How a script ended, and what it called: (program, words …) in order."""

    code: int
    stderr: str
    stdout: str
    calls: list[tuple[str, ...]]
    environment: dict[str, str] = field(default_factory=dict)

    def of(self, program: str) -> list[tuple[str, ...]]:
        """The words of every call of one program."""
        return [tuple(words) for name, *words in self.calls if name == program]

    @property
    def launched(self) -> tuple[str, ...]:
        """The words that torch.distributed.run was started with."""
        words = next(words for words in self.of("python") if MODULE in words)
        return words[words.index(MODULE) + 1 :]

    @property
    def supervisor(self) -> tuple[str, ...]:
        """The words that stand before those: of dsrun's own training they are a supervisor's."""
        words = next(words for words in self.of("python") if MODULE in words)
        return words[: words.index(MODULE)]

    @property
    def received(self) -> list[str]:
        """What the program would be started with: torch fills these words in (torch.distributed.elastic.utils.api)."""
        words = self.launched
        start = words.index("--")
        own = words[:start]
        entry, *rest = words[start + 1 :]
        filled = [Template(word).safe_substitute(local_rank="0") for word in rest]
        return [entry if "--no-python" in own else Template(entry).safe_substitute(local_rank="0"), *filled]


class Shell:
    """Runs scripts in an empty folder. `worker` is what a node's Python does, `job` what scontrol says of the job."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "it's here"
        self.tools = root / "tools"
        self.folder.mkdir()
        self.tools.mkdir()
        self.python = str(self.tools / "python")
        self.variables: dict[str, str] = {}
        self.started: list[subprocess.Popen[bytes]] = []
        self.put("srun", SRUN)
        self.put("scontrol", SCONTROL)
        self.put("python", PYTHON)
        for name in ("scancel", "sbcast"):
            self.put(name, "")
        self.worker = "exit 0"
        self.job = JOB

    def put(self, name: str, body: str) -> None:
        """Add a stand-in."""
        path = self.tools / name
        path.write_text(f"#!/bin/bash\n{RECORD}{body}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def start(self, script: str) -> subprocess.Popen[bytes]:
        """The script as slurmd starts it."""
        (self.tools / "worker").write_text(self.worker)
        (self.tools / "job").write_text(self.job)
        (self.tools / "record").write_bytes(b"")
        path = self.tools / "script"
        path.write_bytes(script.encode("utf-8", "surrogateescape"))
        variables = {
            "PATH": f"{self.tools}:/usr/bin:/bin",
            "HOME": str(self.tools),
            "LC_ALL": "C.UTF-8",
            "STAND_INS": str(self.tools),
            "SLURM_JOB_ID": "12",
            "SLURM_JOB_NODELIST": "first-node,second-node",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_CPUS_ON_NODE": "8",
            "TMPDIR": str(self.tools),
        } | self.variables
        self.started.append(
            subprocess.Popen(
                ["bash", path],
                cwd=self.folder,
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        )
        return self.started[-1]

    def end(self) -> None:
        """End what is left of all scripts."""
        for process in self.started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def run(self, script: str) -> Finished:
        """Run it to its end."""
        return self.ended(self.start(script))

    def ended(self, process: subprocess.Popen[bytes]) -> Finished:
        """Wait for a started script."""
        out, err = process.communicate(timeout=60)
        text = (self.tools / "record").read_bytes().decode("utf-8", "surrogateescape")
        words = text.split("\0")[:-1]
        calls = []
        while words:
            count = int(words[0]) + 2
            # Python that is asked for its versions runs nothing of the job.
            if words[1:3] != ["python", "-c"]:
                calls.append(tuple(words[1:count]))
            words = words[count:]
        seen = self.tools / "environment"
        pairs = seen.read_bytes().decode("utf-8", "surrogateescape").split("\0") if seen.exists() else []
        return Finished(
            process.returncode,
            err.decode("utf-8", "surrogateescape"),
            out.decode("utf-8", "surrogateescape"),
            calls,
            dict(pair.split("=", 1) for pair in pairs if "=" in pair),
        )

    def left(self) -> set[str]:
        """What lies in the job's folder."""
        return {path.name for path in self.folder.iterdir()}


def spec_of(**options: str | list[str]):
    """The spec of run.yaml's keys."""
    return make_spec(
        [
            run_file_value(key, words if isinstance(words, list) else [words], f"slurm.{key}")
            for key, words in options.items()
        ]
    )


def training(shell: Shell, **options) -> str:
    """The script of a training run, with these keys of run.yaml."""
    return render_script(
        spec_of(**options), train_program([]), ClusterSite(python=shell.python, own_python=shell.python)
    )


def other(shell: Shell, **options) -> str:
    """The script of any other program."""
    return render_script(
        spec_of(**options), any_program(["./x"]), ClusterSite(python=shell.python, own_python=shell.python)
    )


def requeued(done) -> bool:
    """Whether it has put its job back into the queue."""
    return any(words[0] == "requeue" for words in done.of("scontrol"))


def rendezvous(done):
    """torch.distributed.run's own options."""
    return dict(word.split("=", 1) for word in done.launched if word.startswith("--") and "=" in word)


# Waits for the signal that the stand-in for scancel stands for, as a worker that saves and leaves.
SAVES = 'until [ -e "$DSRUN_STOP_FILE" ]; do sleep 0.02; done; exit 0'
REQUEUE = ("requeue", "12")
PREEMPTED = JOB + "   PreemptEligibleTime=2026-11-21T08:00:00 PreemptTime=2026-11-21T08:00:05\n"


def until(condition, what: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def begun(shell: Shell, script: str):
    """Start it, and wait until the worker is there."""
    process = shell.start(script)
    until((shell.tools / "environment").exists, "the worker never started")
    return process


def signalled(shell: Shell, script: str, which: signal.Signals):
    """Run it, and send its batch shell a signal once the worker is there."""
    process = begun(shell, script)
    process.send_signal(which)
    return shell.ended(process)
