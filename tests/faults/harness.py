"""Runs a cell: the disturbed run, the same command again where a user would give it, and the oracle's verdict."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dsrun.runs.records import read_records
from tests.faults.cells import HUNG, Cell
from tests.faults.oracle import findings
from tests.forkserver.client import HEAVY
from tests.integration.conftest import FP32, make_model, phrase
from tests.processes import noticed_after

INJECT = Path(__file__).with_name("inject")
ROOT = Path(__file__).parents[2]
LEFT_SECONDS = 5.0
LONGEST_SECONDS = 600
STEPS = 8
SAMPLES = 53


@dataclass
class Result:
    """What came of one cell; `wrong` is empty when all is as it has to be."""

    name: str
    codes: list[int] = field(default_factory=list)
    cause: str | None = None
    detected_s: float | None = None
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


class Bench:
    """A folder with the model, the data, the undisturbed run, and a run that was stopped half-way."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.model = str(make_model(folder / "model-t5", "t5"))
        self.data = {
            name: self._pairs(name, *span) for name, span in (("train", (0, SAMPLES)), ("validation", (100, 11)))
        }
        self.whole = folder / "whole"
        self.half = folder / "half"

    def _pairs(self, name: str, start: int, count: int) -> str:
        path = self.folder / f"{name}.jsonl"
        rows = [
            {"source": text, "target": " ".join(reversed(text.split()))}
            for text in (phrase(i, 2 + i % 9) for i in range(start, start + count))
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    def prepare(self) -> None:
        """The undisturbed run, and one that left after step 4 as it was told to."""
        done = self.train(self.whole)
        if done.returncode != 0:
            raise RuntimeError(f"the undisturbed run failed: {done.stderr}")
        stop = {
            "point": "forward",
            "action": "TERM rank",
            "rank": 0,
            "call": 4,
            "marker": str(self.folder / "half-way"),
        }
        done = self.train(self.half, fault=stop)
        if done.returncode != 75:
            raise RuntimeError(f"the half run ended with {done.returncode}: {done.stderr}")

    def train(
        self,
        run: Path,
        *,
        fault: dict[str, object] | None = None,
        cell: str = "none",
        flags: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        """`dsrun train` on two ranks under ZeRO-2, a checkpoint every second step, to its end."""
        argv = [
            sys.executable, "-m", "dsrun", "train", "--model", self.model, "--zero", "2", "--nproc", "2",
            "--train-file", self.data["train"], "--validation-file", self.data["validation"], *FP32,
            "--global-batch-size", "8", "--learning-rate", "0.01", "--logging-steps", "1", "--sample-ledger",
            "--max-steps", str(STEPS), "--save-every", "2", "--eval-strategy", "steps", "--eval-steps", "4",
            "--output", str(run), *flags,
        ]  # fmt: skip
        env = {
            **os.environ,
            "DSRUN_CELL": cell,
            "DSRUN_CACHE": str(run.with_name(f"{run.name}-cache")),
            "HF_HUB_OFFLINE": "1",
        }
        env["PYTHONPATH"] = os.pathsep.join(
            [*([str(INJECT)] if fault else []), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        if fault:
            env["DSRUN_FAULT"] = json.dumps(fault)
        with HEAVY.popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        ) as process:  # fmt: skip
            try:
                out, err = process.communicate(timeout=LONGEST_SECONDS)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                end(cell)
                out, err = process.communicate()
                err += f"\nended by the harness after {LONGEST_SECONDS} s"
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def run(self, cell: Cell) -> Result:
        """Carry out `cell` in a folder of its own, which is removed where all went well."""
        mark = uuid.uuid4().hex
        run = self.folder / f"{cell.name}-{mark[:6]}"
        if cell.phase == "resuming":
            shutil.copytree(self.half, run, symlinks=True)
        fault: dict[str, object] = {
            "point": cell.phase, "action": cell.action, "rank": cell.rank, "call": cell.call,
            "marker": str(run.with_name(f"{run.name}-struck")) if cell.once else None,
            "step": None if cell.once else cell.call - 1,
        }  # fmt: skip
        result = Result(cell.name)
        said = self._first(cell, run, fault, mark, result)
        if result.codes[0] != 0 and cell.again:
            done = self.train(run, fault=fault, cell=mark, flags=cell.flags)
            result.codes.append(done.returncode)
            said += done.stderr
            if done.returncode != 0:
                result.wrong.append(f"the same command again ended with {done.returncode}")
        if cell.once and not Path(str(fault["marker"])).exists():
            result.wrong.append("the fault never struck")
        self._judge_records(cell, run, result)
        if cell.again and not result.wrong:
            result.wrong += findings(run, self.whole, samples=SAMPLES, relative=cell.relative)
        if result.wrong:
            (self.folder / f"{run.name}.said").write_text(said)
        else:
            shutil.rmtree(run)
        return result

    def _first(self, cell: Cell, run: Path, fault: dict[str, object], mark: str, result: Result) -> str:
        done = self.train(run, fault=fault, cell=mark, flags=cell.flags)
        result.codes.append(done.returncode)
        if done.returncode not in cell.ends:
            result.wrong.append(f"exit code {done.returncode} and not {' or '.join(map(str, cell.ends))}")
        left = left_after(mark, LEFT_SECONDS)
        if left:
            result.wrong.append(f"{len(left)} processes outlived it: {left[0]}")
            end(mark)
        return done.stderr

    def _judge_records(self, cell: Cell, run: Path, result: Result) -> None:
        failures = [each for each in read_records(run / "events.jsonl") if each["kind"] == "failure"]
        if failures:
            result.cause = failures[-1].get("cause")
            result.detected_s = noticed_after(failures[0]) if "seconds" in failures[0] else None
        if cell.cause is not None and result.cause != cell.cause:
            result.wrong.append(f"cause {result.cause} and not {cell.cause}")
        limit = 1.0 if cell.cause != HUNG else 15.0
        if cell.cause is not None and result.detected_s is not None and result.detected_s > limit:
            result.wrong.append(f"noticed after {result.detected_s:.1f} s")


def marked(mark: str) -> dict[int, str]:
    """Processes, living and no zombies, that were started for the cell `mark`, with their command lines."""
    found = {}
    wanted = f"DSRUN_CELL={mark}".encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                if state not in "ZX":
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
        except OSError:
            continue
    return found


def left_after(mark: str, seconds: float) -> list[str]:
    """The command lines of those still there when the time is up."""
    deadline = time.monotonic() + seconds
    while (found := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return list(found.values())


def end(mark: str) -> None:
    """Kill what a cell left behind."""
    for pid in marked(mark):
        os.kill(pid, signal.SIGKILL)
