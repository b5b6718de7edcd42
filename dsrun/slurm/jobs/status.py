"""One job at one moment, read from `scontrol show job` or from the accounting."""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from dsrun.datafiles import evaluate, toml_beside
from dsrun.system.slurm import jobs, value

# squeue(1), "Job state codes". The others (PENDING, RUNNING, COMPLETING, SUSPENDED, REQUEUED ...) go on.
FINAL = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED"}
    | {"NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"}
)
# A requeued job may show these for a moment before it is PENDING again.
MAYBE_FINAL = frozenset({"NODE_FAIL", "PREEMPTED", "BOOT_FAIL"})
_FIELDS = {"reason": "Reason", "nodes": "NodeList", "elapsed": "RunTime"}


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """A job, or one task of an array, whose `label` is then "6_1".

    `exit_code` and `signal` as SLURM gives them; `log` is None while SLURM does not know its name. `user` is "" where
    the accounting alone knows the job."""

    label: str
    state: str
    reason: str = ""
    nodes: str = ""
    elapsed: str = ""
    exit_code: int = 0
    signal: int = 0
    restarts: int = 0
    log: str | None = None
    user: str = ""

    @property
    def is_final(self) -> bool:
        return self.state in FINAL

    @property
    def result(self) -> int:
        """Its end as the exit code of a process: 0 for COMPLETED only, 128 + n for a death by signal n."""
        if self.state == "COMPLETED":
            return 0
        return self.exit_code or (128 + self.signal if self.signal else 1)


def read_jobs(text: str) -> tuple[JobStatus, ...]:
    """The jobs in the answer of `scontrol show job`, array tasks in the order of their numbers."""
    return tuple(sorted(map(_status, jobs(text)), key=lambda status: task_order(status.label)))


def task_order(label: str) -> tuple[int, int]:
    """Sorts jobs by number, and array tasks within; the tasks that have not started ("6_[2-3]") come first."""
    job, _, task = label.partition("_")
    return (int(job) if job.isdecimal() else 0, int(task) if task.isdecimal() else -1)


def _status(record: dict[str, str]) -> JobStatus:
    label = record["JobId"]
    if "ArrayJobId" in record:
        task = record["ArrayTaskId"]
        label = f"{record['ArrayJobId']}_{task if task.isdecimal() else f'[{task}]'}"
    restarts = record.get("Restarts", "")
    shown: dict[str, Any] = {field: value(record, key) or "" for field, key in _FIELDS.items()}
    # The name of the log of tasks that have not started holds SLURM's word for "no number".
    log = _log(record) if "[" not in label else None
    shown |= {"state": record.get("JobState", "UNKNOWN"), "restarts": int(restarts) if restarts.isdecimal() else 0}
    return JobStatus(label=label, log=log, user=_user(record), **shown, **_exit(record.get("ExitCode", "")))


def _exit(text: str) -> dict[str, Any]:
    """The exit code and the signal of "1:9"."""
    code = re.fullmatch(r"(\d+):(\d+)", text)
    return {"exit_code": int(code[1]), "signal": int(code[2])} if code else {}


def _user(record: dict[str, str]) -> str:
    """Whose job it is, of "ada(1000)"."""
    return record.get("UserId", "").partition("(")[0]


def _log(record: dict[str, str]) -> str | None:
    """StdOut; what SLURM has left of its patterns is filled in, of %N too, the first node by its short name."""
    text = value(record, "StdOut")
    if text is None or text == "/dev/null":
        return None
    names = {"record": record, "user": _user(record)}
    known = {letter: evaluate(value, names) for letter, value in toml_beside(__file__)["patterns"].items()}
    filled = re.sub(r"%(\d*)([jAaxuNnts%])", lambda found: known[found[2]].rjust(int(found[1] or 0), "0"), text)
    return str(PurePosixPath(record.get("WorkDir", "/")) / filled)


HISTORY_FIELDS = ("JobID", "State", "ExitCode", "NodeList", "Elapsed")


def from_history(row: tuple[str, ...]) -> JobStatus:
    """The job in a row of sacct with the fields HISTORY_FIELDS; its state may read "CANCELLED by 1000"."""
    label, state, code, nodes, elapsed = row
    state = (state.split() or ["UNKNOWN"])[0]
    nodes = "" if nodes == "None assigned" else nodes
    return JobStatus(label=label, state=state, nodes=nodes, elapsed=elapsed, **_exit(code))


def explain_reason(reason: str) -> str | None:
    """What `reason` means; None where there is nothing to add to SLURM's word."""
    meaning: str | None = toml_beside(__file__, "reasons.toml").get(reason.partition(",")[0].strip())
    return meaning
