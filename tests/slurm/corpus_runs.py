"""Submits many sbatch scripts at once, where launchers and Python are stand-ins, and says what became of each."""

from __future__ import annotations

import compileall
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.script_corpus import FOLDER
from tests.slurm.jobs import ENDED, PATIENCE_S, Person
from tests.slurm.stand_ins import launchers

STARTER = """\
#!{python} -ISB
import sys
sys.path.insert(0, {folder!r})
from stand_ins.launchers import run
run({name!r})
"""
# sbatch's answers, one file for each folder.
SUBMIT = """
while read -r folder; do
    cd "$folder" && sbatch --parsable script.sh >submitted 2>refused </dev/null
done
"""
SIGNAL = re.compile(r"^#SBATCH --signal=(?P<batch>B:)?(?:SIG)?(?P<name>\w+)@", re.MULTILINE)
SAVING_S = 0.3
SAVED_NEVER_S = 8
"""What a program takes that must not find the time to save."""


@dataclass
class Run:
    """One submission, and at its end what is to be seen of it."""

    text: str
    folder: Path
    worlds: int
    fails: bool
    id: int | None = None
    jobs: list[dict[str, str]] = field(default_factory=list)
    """Each task of an array, or the one job, as scontrol shows it."""
    signalled: bool = False
    requeued: bool = False

    @property
    def saves(self) -> bool:
        """Whether its program is to save on a signal: Lightning's scripts here only give it the time."""
        return SIGNAL.search(self.text) is not None and "--trainer." not in self.text

    @property
    def lines(self) -> list[dict[str, Any]]:
        file = self.folder / "ranks.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def faults(self) -> list[str]:
        """What is wrong with it; nothing, where all ranks have met on all GPUs and the job ended as it should."""
        if self.id is None:
            return ["refused: " + (self.folder / "refused").read_text().strip()]
        found = [fault for job in self.jobs for fault in self._faults_of_job(job)]
        ready = [line["ready"] for line in self.lines if "ready" in line]
        saved = [line["saved"] for line in self.lines if "saved" in line]
        if self.saves and not ready:
            found.append("never ready for the signal")
        if sorted(ready) != sorted(saved):
            found.append(f"ranks {ready} were to save, {saved} did")
        if self.saves and "scontrol requeue" in self.text and not self.requeued:
            found.append("not requeued")
        return found

    def _faults_of_job(self, job: dict[str, str]) -> Iterator[str]:
        if self.fails:
            if job["JobState"] != "FAILED":
                yield f"the training failed, and the job is {job['JobState']}"
            return
        if job["JobState"] != "COMPLETED" and not self.saves:
            yield f"{job['JobState']} with exit code {job['ExitCode']}"
        log = Path(job["StdOut"])
        if not log.is_file() or "%" in log.name or "$" in str(log):
            yield f"no log of its own at {log}"
        ranks = [line for line in self.lines if line["job"] == job["JobId"] and "rank" in line]
        worlds = {line["world"]: [each for each in ranks if each["world"] == line["world"]] for line in ranks}
        if len(worlds) != self.worlds:
            yield f"{len(worlds)} trainings, not {self.worlds}"
        for members in worlds.values():
            if sorted(each["rank"] for each in members) != list(range(members[0]["size"])):
                yield f"ranks {[each['rank'] for each in members]} of {members[0]['size']}"
            if len({each["gpu"] for each in members}) < len(members):
                yield "two ranks on one GPU"
        used, given = {each["gpu"] for each in ranks}, _gpus_of(job)
        if len(used) < given:
            yield f"{len(used)} of {given} GPUs have a rank"


class Site:
    """A user with stand-ins on the cluster, the folders that scripts name, and all that is submitted together."""

    def __init__(self, user: Person, name: str) -> None:
        self._user = user
        self._root = user.folder(name)
        self._bin = self._root / "bin"
        self._runs: list[Run] = []
        shutil.copytree(FOLDER / "home", self._root / "home")
        self._bin.mkdir()
        shutil.copytree(Path(launchers.__file__).parent, self._root / "stand_ins")
        compileall.compile_dir(self._root / "stand_ins", quiet=1)
        python = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}")
        for program in launchers.PROGRAMS:
            file = self._bin / program
            file.write_text(STARTER.format(python=python, folder=str(self._root), name=program))
            file.chmod(0o755)
        self._file("home/.secrets/hf_token", "not a token")
        self._file("home/.secrets/wandb", "not a key")

    def add(
        self, name: str, text: str, *, patience_s: float, training_s: float = 0, worlds: int = 1, fails: bool = False
    ) -> Run:
        """A script to be submitted. Ranks that do not meet give up after `patience_s`; others train `training_s`."""
        folder = self._root / name
        folder.mkdir()
        # Folders that no test may make on this machine.
        text = re.sub(r"(?<![\w./~}])/opt/", f"{self._root}/opt/", text)
        for path in re.findall(r"(?:source|\.|export PATH=)\s+\"?(\S+/bin)/activate", text):
            place = re.sub(r"^(~|\$HOME)(?=/)", "home", path)
            shown = place.removeprefix(f"{self._root}/") if place != path or path.startswith("/") else f"{name}/{path}"
            self._file(f"{shown}/activate", f"export PATH={self._bin}:$PATH\n")
        for program in re.findall(rf"{re.escape(str(self._root))}/(opt/\S+/bin)/python", text):
            (self._root / program).mkdir(parents=True, exist_ok=True)
            if not (self._root / program / "python").exists():
                (self._root / program / "python").symlink_to(self._bin / "python")
        run = Run(text, folder, worlds, fails)
        then = "fails" if fails else "saves" if run.saves else "ends"
        # Where the script is broken, the time to save ends with the job.
        meeting = {
            "patience_s": patience_s, "signal_patience_s": 3 * patience_s, "training_s": training_s, "then": then,
            "conda": "conda activate" in text,
            "saving_s": SAVING_S if patience_s > SAVED_NEVER_S else SAVED_NEVER_S,
        }  # fmt: skip
        (folder / "meeting").write_text("".join(f"{key} {value}\n" for key, value in meeting.items()))
        (folder / "script.sh").write_text(text)
        self._runs.append(run)
        return run

    def run(self) -> None:
        """Submit them all, send the signals that SLURM would send, and wait for the end of the last job."""
        for path in [self._root, *self._root.rglob("*")]:
            os.chown(path, self._user.home.stat().st_uid, -1, follow_symlinks=False)
        # Those that wait for a signal take longest.
        self._runs.sort(key=lambda run: not run.saves)
        folders = "".join(f"{run.folder}\n" for run in self._runs)
        env = {
            "PATH": f"{self._bin}:/usr/bin:/bin",
            "HOME": str(self._root / "home"),
            "BASH_FUNC_module%%": "() { :; }",
        }
        with ThreadPoolExecutor(1) as pool:
            submitting = pool.submit(self._user.run, "bash", "-c", SUBMIT, input=folders, env=env)
            end = time.monotonic() + PATIENCE_S
            # What was submitted before the look at the jobs is among them.
            while not (submitting.done() and self._ended()):
                if not submitting.done():
                    self._ended()
                if time.monotonic() > end:
                    raise AssertionError(f"jobs that do not end:\n{self._user.run('squeue').stdout}")
                time.sleep(0.4)
            submitting.result()

    def _ended(self) -> bool:
        for run in self._runs:
            answer = run.folder / "submitted"
            if run.id is None and answer.exists() and (said := answer.read_text()).endswith("\n"):
                run.id = int(said)
        records = list(_records(self._user.run("scontrol", "-o", "-a", "show", "jobs").stdout))
        for run in self._runs:
            run.jobs = [each for each in records if str(run.id) in (each["JobId"], each.get("ArrayJobId"))]
            if run.saves and run.jobs:
                self._signal(run)
        ended = all(job["JobState"] in ENDED for run in self._runs for job in run.jobs)
        return ended and all(run.jobs or run.id is None for run in self._runs)

    def _signal(self, run: Run) -> None:
        """Do as SLURM does before the time limit; a job that is back in the queue has shown what it can."""
        [job] = run.jobs
        found = SIGNAL.search(run.text)
        sizes = [line["size"] for line in run.lines if "size" in line]
        if found and not run.signalled and sizes and sizes[0] == sum("ready" in line for line in run.lines):
            run.signalled = True
            batch = ["--batch"] if found["batch"] else []
            self._user.run("scancel", *batch, f"--signal={found['name']}", str(run.id), check=False)
        if int(job["Restarts"]) > 0 and job["JobState"] == "PENDING":
            run.requeued = True
            self._user.run("scancel", str(run.id))

    def _file(self, name: str, text: str) -> None:
        file = self._root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def _gpus_of(job: dict[str, str]) -> int:
    """How many it asked for: an exclusive job is given all of its nodes."""
    for key, many in (("TresPerNode", "NumNodes"), ("TresPerJob", ""), ("TresPerTask", "NumTasks")):
        if found := re.fullmatch(r"gres:gpu(?::[a-z]\w*)?:(\d+)", job.get(key, "")):
            return int(found[1]) * int(job.get(many, "1").partition("-")[0])
    return 0


def _records(said: str) -> Iterable[dict[str, str]]:
    """The jobs of `scontrol -o show jobs`."""
    for line in said.splitlines():
        if line.startswith("JobId="):
            yield dict(re.findall(r"(?:^|\s)([A-Z]\w+)=(\S*)", line))
