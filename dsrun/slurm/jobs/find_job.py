"""The job that `jobs ID`, or --job of another command, names, by SLURM's own programs."""

import re
from pathlib import Path

from dsrun.refusals import Refusals
from dsrun.runs.find import is_run
from dsrun.slurm.jobs.queue import SlurmJob, my_jobs
from dsrun.slurm.jobs.status import JobStatus, read_jobs
from dsrun.system import slurm

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
