"""What `dsrun monitor` has found out at one moment, and its JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dsrun.findings.finding import Finding
from dsrun.monitoring.observations import observe
from dsrun.monitoring.run_status import RunState, RunStatus, status_json
from dsrun.runs.node_status import NodeStatus
from dsrun.runs.reader import RunHistory
from dsrun.runs.records import LedgerRecord, plain
from dsrun.slurm.jobs.queue import SlurmJob
from dsrun.system.terminal.display import utc_text

EVENTS = 20


@dataclass(frozen=True, kw_only=True)
class MonitorSnapshot:
    """`kind` tells where it comes from: a run folder, a log, or a SLURM job that has neither yet.

    `now` is in seconds since the epoch. `history` has the curves, and `nodes` what is known of ranks and GPUs.
    """

    kind: Literal["run", "log", "job"]
    now: float
    status: RunStatus
    history: RunHistory
    nodes: tuple[NodeStatus, ...] = ()
    job: SlurmJob | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether nothing will change any more: the run has ended, and so has its job, if it has one."""
        if self.job is not None:
            return self.job.is_final
        return self.status.is_over


def of_history(
    history: RunHistory, status: RunStatus, now: float, *, kind: Literal["run", "log"] = "run"
) -> MonitorSnapshot:
    """The snapshot of a run or log, with what is wrong with it."""
    nodes = () if status.is_over else history.present_nodes
    return MonitorSnapshot(
        kind=kind, now=now, status=status, history=history, nodes=nodes, findings=observe(status, nodes, now)
    )


def as_json(snapshot: MonitorSnapshot) -> dict[str, Any]:
    """The object that docs/monitor.md describes; what is not known is null."""
    job = snapshot.job
    return {
        "kind": snapshot.kind,
        "time": utc_text(snapshot.now),
        "status": status_json(snapshot.status),
        "nodes": [plain(asdict(node)) for node in snapshot.nodes],
        "findings": [finding.as_dict() for finding in snapshot.findings],
        "events": [plain(event) for event in last_events(snapshot.history.events)],
        "job": None if job is None else job.as_json(),
    }


def last_events(events: tuple[LedgerRecord, ...], count: int = EVENTS) -> list[Mapping[str, Any]]:
    """The last events but those that only tell of progress."""
    return [event for event in events[-10 * count :] if event.get("kind") != "progress"][-count:]


def waiting_for(job: SlurmJob, now: float) -> MonitorSnapshot:
    """A job that has neither a run folder nor a log yet, or that has never had one."""
    path = Path(job.run or job.work_dir or "/")
    status = RunStatus(path=path, state=_ending(job) if job.is_final else "starting")
    return MonitorSnapshot(kind="job", now=now, status=status, history=RunHistory(path=path), job=job)


def of_job(snapshot: MonitorSnapshot, job: SlurmJob) -> MonitorSnapshot:
    """The snapshot of the run or log of a job. What has not ended by itself ended with its job."""
    if not job.is_final or snapshot.status.is_over:
        return replace(snapshot, job=job)
    state: RunState = "killed" if snapshot.kind == "run" else _ending(job)
    status = replace(snapshot.status, state=state, eta_s=None)
    return replace(snapshot, status=status, job=job, nodes=(), findings=())


def _ending(job: SlurmJob) -> RunState:
    return "finished" if job.state == "COMPLETED" else "stopped" if job.state == "CANCELLED" else "failed"
