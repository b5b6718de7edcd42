"""The user's jobs as the queue and the accounting know them, joined with their run folders; and the one job that
`jobs ID`, or --job of another command, names.

A run folder is read from the job's script: what dsrun's own script exports, or what --output says."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import Any

from dsrun.errors import ToolError, UsageError
from dsrun.launch.program import slug
from dsrun.refusals import Refusals
from dsrun.runs.folder import RunFolder, is_run
from dsrun.runs.records import plain
from dsrun.runs.tail import RunProgress, last_cause, progress
from dsrun.slurm.jobs.status import FINAL, JobStatus, explain_reason, read_jobs, task_order
from dsrun.system import slurm, variables
from dsrun.system.shell import commands, expand, live

_EXPORT = re.compile(rf"^\s*(?:export {variables.OUTPUT}=|start_job (?!--per-job))(.*)$", re.MULTILINE)
_FLAG = re.compile(r"(?:^|\s)--output(?:[_-]dir)?(?:=|\s+)(\S.*)$", re.MULTILINE)
_ANSI = re.compile(r"\$'((?:\\.|[^'\\])*)'")


def job_output_folder(script: str, *, work_dir: str, variables: Mapping[str, str]) -> str | None:
    """The absolute path of the job's run folder; None where the script does not say, or not in words we read.

    `variables` are those the job's shell has, as far as they are known; PWD is `work_dir`."""
    known = {**variables, "PWD": work_dir}
    body = "\n".join(line for line in script.splitlines() if not line.lstrip().startswith("#"))
    for pattern in (_EXPORT, _FLAG):
        for found in pattern.finditer(body):
            word = shell_word(found[1], known)
            if word:
                return str(PurePosixPath(work_dir) / word)
    return None


def job_environment(*, label: str, number: str, name: str) -> dict[str, str]:
    """What a job's shell has by its number: `label` is "6_1" for a task of an array, else the `number` itself.

    "job" is dsrun's own name for the label in the script it renders."""
    array, _, task = label.partition("_")
    own = {"SLURM_ARRAY_JOB_ID": array, "SLURM_ARRAY_TASK_ID": task} if task else {}
    return {"SLURM_JOB_ID": number, "SLURM_JOBID": number, "SLURM_JOB_NAME": name, "job": label, **own}


def _requoted(ansi: re.Match[str]) -> str:
    return quote(ansi[1].encode("latin-1", "backslashreplace").decode("unicode_escape"))


def shell_word(text: str, variables: Mapping[str, str]) -> str | None:
    """The first shell word of `text` with its variables filled in; None when one of them is not known.

    Other expansions (commands, arithmetic, ${x:-y}) are not done: None for these too."""
    first = next(iter(commands(_ANSI.sub(_requoted, text))), None)
    word = expand(first.words[0], variables) if first else ""
    return None if re.search(r"[$`]", word) else live(word)


# The same things from both sources, in the order of SlurmJob's fields. The name comes last: it may hold anything.
_SQUEUE = tuple("iATrPNDMlVSeZj")
_SACCT = (
    *("JobID", "JobIDRaw", "State", "Reason", "Partition", "NodeList", "NNodes"),
    *("Elapsed", "Timelimit", "Submit", "Start", "End", "WorkDir", "JobName"),
)
_NOTHING = frozenset({"", "None", "N/A", "Unknown", "None assigned", "(null)"})
_AT_ONCE = 8  # queries to the controller


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """One job, or one task of an array (`id` "6_1"; "6_[2-3]" for those that have not started).

    Times are SLURM's, local, "2026-11-21T08:43:34"; "" where there is none. `run` is the run folder as far as it is
    known, `cause` that of the failure it ended or waits with (a code of docs/diagnose.md), `finished` whether the run
    reached its end. `expected_start` is when SLURM expects a waiting job to start."""

    id: str
    number: str
    state: str
    reason: str
    partition: str
    nodes: str
    node_count: int
    elapsed: str
    time_limit: str
    submitted: str
    started: str
    ended: str
    work_dir: str
    name: str
    run: str | None = None
    progress: RunProgress | None = None
    cause: str | None = None
    finished: bool = False
    expected_start: str = ""

    @property
    def is_final(self) -> bool:
        return self.state in FINAL

    @property
    def explained_reason(self) -> str:
        """SLURM's reason and what it means; of a cancelled job it is only what that last waited for."""
        meaning = None if self.state == "CANCELLED" else explain_reason(self.reason)
        return self.reason + (f": {meaning}" if meaning else "")

    def as_json(self) -> dict[str, Any]:
        """As docs/slurm.md describes it; what is not known is null, and a loss that is not finite in "nonfinite"."""
        return plain({name: value if value != "" else None for name, value in asdict(self).items()})


def read_rows(rows: Iterable[Sequence[str]], *, recorded: bool = False) -> list[SlurmJob]:
    """Jobs from the rows of squeue, or of sacct (`recorded`).

    The accounting keeps why a job last waited, and shows it for ever: that counts only while the job waits."""
    jobs = [_job(["" if field in _NOTHING else field for field in row]) for row in rows]
    return [replace(job, reason="") if recorded and job.state != "PENDING" else job for job in jobs]


def _job(row: list[str]) -> SlurmJob:
    known: dict[str, Any] = dict(zip(SlurmJob.__annotations__, row, strict=False))
    state = (known["state"].split() or ["UNKNOWN"])[0]  # "CANCELLED by 1000"
    count = known["node_count"]
    known |= {"state": state, "node_count": int(count) if count.isdecimal() else 0}
    # The queue gives a waiting job the start it expects, and a running job the end of its time limit.
    if state == "PENDING":
        known |= {"expected_start": known["started"], "started": ""}
    if state not in FINAL:
        known["ended"] = ""
    return SlurmJob(**known)


def merge_jobs(
    queued: Iterable[SlurmJob], recorded: Iterable[SlurmJob], *, since: datetime | None = None
) -> list[SlurmJob]:
    """Each job once, as the queue has it where both do: running ones first, then waiting, then the last to end.

    Jobs that ended before `since` (local time) are left out."""
    jobs = {job.id: job for job in recorded} | {job.id: job for job in queued}
    # Times in ISO format sort as text; a job without one stays.
    first = since.isoformat() if since else ""
    recent = [job for job in jobs.values() if not (job.is_final and job.ended) or job.ended >= first]
    active = sorted(
        (job for job in recent if not job.is_final), key=lambda job: (job.state != "RUNNING", task_order(job.id))
    )
    over = sorted(
        (job for job in recent if job.is_final), key=lambda job: (job.ended, task_order(job.id)), reverse=True
    )
    return [*active, *over]


@dataclass(frozen=True, kw_only=True)
class FoundJobs:
    """The jobs that were asked for, and how many more there are."""

    jobs: list[SlurmJob]
    more: int = 0


def my_jobs(
    *,
    hours: float = 24,
    job_id: str | None = None,
    wanted: Callable[[SlurmJob], bool] = lambda _: True,
    limit: int | None = None,
) -> FoundJobs:
    """This user's jobs with their run folders: active ones, and those that ended in the last `hours`.

    Of those that are `wanted` the first `limit`; the controller is asked for the scripts of only these. With `job_id`
    that job, or all tasks of that array. Raises UsageError when there is no such job, MissingError without SLURM, and
    ToolError when the controller does not answer."""
    queued = read_rows(slurm.queue(_SQUEUE, job_id=job_id))
    try:
        recorded = read_rows(slurm.history(_SACCT, hours=hours, job_id=job_id) or (), recorded=True)
    except ToolError:  # an accounting database that is away: the queue is what matters
        recorded = []
    since = None if job_id else datetime.now() - timedelta(hours=hours)
    jobs = merge_jobs(queued, recorded, since=since)
    if job_id and not jobs:
        raise UsageError(f"SLURM knows no job {job_id}", fix="dsrun jobs lists yours")
    chosen = [job for job in jobs if wanted(job)]
    return FoundJobs(
        jobs=with_output_folders(chosen[:limit], slurm.batch_script), more=len(chosen[limit:]) if limit else 0
    )


def with_output_folders(jobs: Sequence[SlurmJob], script_of: Callable[[str], str | None]) -> list[SlurmJob]:
    """The jobs with their run folders and how far these are; `script_of` gives the script of a job's number."""
    script = cache(script_of)  # one for all tasks of an array

    def joined(job: SlurmJob) -> SlurmJob:
        folder = _folder(job, script)
        if folder is None:
            return job
        run = RunFolder(Path(folder))
        return replace(
            job,
            run=folder,
            progress=progress(run.metrics),
            cause=last_cause(run.events),
            finished=run.finished.exists(),
        )

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(joined, jobs))


def _folder(job: SlurmJob, script_of: Callable[[str], str | None]) -> str | None:
    """Where dsrun's scripts put a run when nothing else is said, if it is there; else what the script says."""
    usual = Path(job.work_dir or "/") / "runs" / f"{slug(job.name)}-{job.id}"
    if usual.is_dir():
        return str(usual)
    never_ran = job.is_final and not job.nodes
    script = None if never_ran or "[" in job.id else script_of(job.id.partition("_")[0])
    if script is None:
        return None
    kept = {name: os.environ[name] for name in ("HOME", "USER", "SCRATCH", "WORK") if name in os.environ}
    variables = kept | job_environment(label=job.id, number=job.number, name=job.name)
    return job_output_folder(script, work_dir=job.work_dir, variables=variables)


_ID = re.compile(r"[1-9]\d{0,9}(_\d{1,9})?", re.ASCII)
_refuse = Refusals(__file__).check


def check_id(text: str) -> None:
    """Raise UsageError for what is not the number of a job or of a task of an array."""
    _refuse("id", text=text, is_id=_ID.fullmatch)


def one_job(job_id: str) -> SlurmJob:
    """The job, or the task of an array. Raises UsageError for an array of several, and as `my_jobs` does."""
    check_id(job_id)
    jobs = my_jobs(job_id=job_id).jobs
    _refuse("array", id=job_id, jobs=jobs, tasks=", ".join(job.id for job in jobs[:5]))
    return jobs[0]


def controller_view(job_id: str) -> JobStatus | None:
    """What the controller says of the job; None where it has forgotten it."""
    text = slurm.job(job_id)
    return next(iter(read_jobs(text)), None) if text else None


def running_job(job_id: str, *, own: bool = False) -> SlurmJob:
    """The job, which runs now. Raises MissingError for one that does not, and with `own` UsageError for one of another
    user, in which only root may start anything."""
    job = one_job(job_id)
    _refuse("running", job=job)
    _refuse("own", job=job, owner=_other_owner(job) if own else "")
    return job


def run_of_job(job_id: str) -> Path:
    """The run folder of a job that runs now. Raises as `running_job`, and UsageError without such a folder."""
    job = running_job(job_id)
    owner = "" if job.run else _other_owner(job)
    _refuse("run", job=job, owner=owner, is_there=is_run(Path(job.run or "")))
    return Path(job.run or "")


def _other_owner(job: SlurmJob) -> str:
    """Whose job it is, where this process may not act as that user; "" where it may."""
    view, user = controller_view(job.id), slurm.user()
    return "" if view is None or user in (view.user, "root") else view.user
