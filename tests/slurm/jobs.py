"""Users of a test cluster and their jobs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from dsrun.runs.folder import RunFolder
from dsrun.runs.records import read_records
from tests.slurm.cluster import CHECKOUT, Cluster
from tests.slurm.configuration import LOGIN
from tests.slurm.machine import SYSTEM_PATH

ENDED = {
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "NODE_FAIL",
    "PREEMPTED",
    "BOOT_FAIL",
    "OUT_OF_MEMORY",
}
PATIENCE_S = 300
"""Far more than anything takes here; two slow cores may start ten workers at once."""
SUBMITTED = re.compile(r"(?:Submitted batch job )?(\d+)\s*")
# The ranks of one run folder: they are forked by a process whose environment names the folder, and call themselves so.
RANKS = """
for folder in /proc/[0-9]*; do
    case $(cat "$folder/comm") in
        rank-*) grep -qzxF "DSRUN_OUTPUT=$1" "$folder/environ" && echo "${folder#/proc/}" ;;
    esac
done 2>/dev/null
true
"""


@dataclass(frozen=True)
class Person:
    """A user of the cluster, logged in on the login machine."""

    cluster: Cluster
    name: str
    home: Path

    def run(
        self,
        *words: object,
        cwd: Path | None = None,
        input: str | None = None,
        check: bool = True,
        env: dict[str, str] | None = None,
        machine: str = LOGIN,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in `cwd`, by default the home folder. Fails the test on an exit code other than 0."""
        variables = {
            "PATH": f"{Path(sys.executable).parent}:{SYSTEM_PATH}", "PYTHONPATH": str(CHECKOUT),
            "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **(env or {}),
        }  # fmt: skip
        argv = self.cluster.command(
            [str(word) for word in words],
            machine=machine,
            user=self.name,
            cwd=cwd or self.home,
            env=variables,
        )
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
            **({"stdin": subprocess.DEVNULL} if input is None else {"input": input}),
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{shlex.join(map(str, words))}\n{done.stdout}{done.stderr}"
        return done

    def dsrun(self, *words: object, **options: object) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "dsrun", *words, **options)

    def render(self, *options: object, program: Iterable[object] = (), cwd: Path | None = None) -> str:
        """The script of `dsrun render-slurm OPTIONS -- PROGRAM`."""
        after = ["--", *program] if program else []
        return self.dsrun("render-slurm", *options, *after, cwd=cwd).stdout

    def submit(self, *options: object, program: Iterable[object] = (), cwd: Path | None = None) -> Job:
        """`dsrun render-slurm OPTIONS -- PROGRAM | sbatch`, in `cwd`."""
        return self.sbatch(self.render(*options, program=program, cwd=cwd), cwd=cwd)

    def sbatch(self, script: str, *options: object, cwd: Path | None = None) -> Job:
        """Hand a script to sbatch."""
        said = self.run("sbatch", *options, input=script, cwd=cwd).stdout
        found = SUBMITTED.fullmatch(said)
        assert found, said
        return Job(self.cluster, int(found[1]), cwd or self.home)

    def folder(self, name: str) -> Path:
        """A new folder of this user's, on the disk that all machines share."""
        folder = self.home / name
        folder.mkdir()
        number = folder.parent.stat().st_uid
        os.chown(folder, number, number)
        return folder


@dataclass(frozen=True)
class Job:
    """A submitted job. `task` is an array's: scontrol numbers tasks of an array apart from their job id."""

    cluster: Cluster
    id: int
    cwd: Path
    task: int | None = None

    @property
    def name(self) -> str:
        return f"{self.id}" if self.task is None else f"{self.id}_{self.task}"

    def task_of(self, number: int) -> Job:
        """One task of an array."""
        return replace(self, task=number)

    def record(self) -> str:
        """What `scontrol show job` says."""
        return self.control("show", "job", self.name)

    def fact(self, key: str) -> str:
        """One value of the record, of those that hold no blanks."""
        record = self.record()
        found = re.search(rf"(?:^|\s){re.escape(key)}=(\S*)", record)
        assert found, f"{key} is not in\n{record}"
        return found[1]

    @property
    def state(self) -> str:
        return self.fact("JobState")

    @property
    def restarts(self) -> int:
        return int(self.fact("Restarts"))

    @property
    def exit_code(self) -> int:
        """The batch script's."""
        return int(self.fact("ExitCode").partition(":")[0])

    @property
    def log(self) -> str:
        """What the job has printed so far."""
        file = Path(self.fact("StdOut"))
        return file.read_text(errors="replace") if file.exists() else ""

    def control(self, *words: str) -> str:
        """scontrol, as the administrator."""
        done = subprocess.run(["scontrol", *words], env=self.cluster.env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def update(self, **facts: object) -> None:
        self.control("update", f"JobId={self.name}", *(f"{key}={value}" for key, value in facts.items()))

    def until(
        self, holds: Callable[[], object], what: str, *, seconds: float = PATIENCE_S, longest: float = 0.5
    ) -> None:
        """Wait until `holds()`; fails the test with what is known of the job when it does not.

        It is asked ten times a second at first, and at least every `longest` seconds: most ask SLURM or all machines,
        which takes processes here and the controller's time from the trainings beside.
        """
        began = time.monotonic()
        while not holds():
            waited = time.monotonic() - began
            if waited > seconds:
                raise AssertionError(f"job {self.name}: never {what}\n{self.story()}")
            time.sleep(min(longest, max(0.1, waited / 20)))

    def wait_for(self, state: str, *, seconds: float = PATIENCE_S) -> Job:
        """Wait for a state. Fails the test at once when the job ends in another."""

        def reached() -> bool:
            now = self.state
            assert now == state or now not in ENDED, f"job {self.name} is {now}, not {state}\n{self.story()}"
            return now == state

        self.until(reached, state, seconds=seconds)
        return self

    def wait_for_restart(self, number: int = 1) -> Job:
        """Wait until it was put back into the queue for the `number`th time.

        It then waits some seconds there, until the credential of its earlier start has expired. Do not shorten that
        (StartTime=now): the new start then gets the exit code that the old batch script still has to deliver. That
        script may still be at work: what it does after it has put the job back (ExcNodeList) has to be waited for.
        """
        self.until(lambda: self.restarts >= number, f"requeued {number} times")
        return self

    def story(self) -> str:
        """Record, log and the ends of the workers' and SLURM's logs: what one wants to read when a test fails."""
        logs = sorted(self.cwd.rglob("rank-*.log"))[-4:]
        ends = [f"== {log}\n{log.read_text(errors='replace')[-2000:]}" for log in logs]
        return "\n".join([self.record(), "== log", self.log[-6000:], *ends, self.cluster.logs()])

    def machines(self) -> list[str]:
        """The names of its nodes, the batch host first."""
        return self.control("show", "hostnames", self.fact("NodeList")).split()


@dataclass(frozen=True)
class Training:
    """A job that runs `dsrun train`, with its run folder."""

    job: Job
    folder: RunFolder

    @property
    def losses(self) -> dict[int, float]:
        """Training loss by step."""
        rows = read_records(self.folder.metrics) if self.folder.metrics.exists() else []
        return {row["step"]: row["loss"] for row in rows if "loss" in row}

    @property
    def events(self) -> list[str]:
        return [row["kind"] for row in read_records(self.folder.events)]

    def freeze_at(self, step: int) -> None:
        """Wait for a step and halt all workers there, so that what comes next meets them in mid-training."""

        asked = 0.0

        def reached() -> bool:
            nonlocal asked
            if max(self.losses, default=0) >= step:
                return True
            if time.monotonic() > asked + 1:
                state = self.job.state
                assert state not in ENDED, f"job {self.job.name} is {state} before step {step}\n{self.job.story()}"
                asked = time.monotonic()
            return False

        self.job.until(reached, f"at step {step}", longest=0.1)
        self._signal("STOP")
        assert not self.folder.finished.exists(), "too late: make the training longer"

    def thaw(self) -> None:
        self._signal("CONT")

    def workers(self) -> dict[str, list[int]]:
        """Its workers' process ids on each machine that has any; asks the machines, not SLURM."""
        found = {name: self._on(name) for name, machine in self.job.cluster.machines.items() if machine.process}
        return {name: pids for name, pids in found.items() if pids}

    def _signal(self, name: str) -> None:
        for machine, pids in self.workers().items():
            # A worker may end between the two commands.
            words = self.job.cluster.command(["kill", f"-{name}", *map(str, pids)], machine=machine)
            subprocess.run(words, capture_output=True, check=False)

    def _on(self, machine: str) -> list[int]:
        words = self.job.cluster.command(["sh", "-c", RANKS, "sh", str(self.folder.path)], machine=machine)
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        return [int(line) for line in done.stdout.split()]
