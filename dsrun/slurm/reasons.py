"""SLURM's reasons for waiting and for failing, in plain words."""

from __future__ import annotations

# squeue(1), "JOB REASON CODES", with what to do about them.
_REASONS = {
    "AssocGrpGRES": "your account uses all the GPUs it may",
    "AssocMaxJobsLimit": "you have as many running jobs as your account may",
    "BadConstraints": "no node can ever satisfy it: cancel it, and let `dsrun render-slurm` check the next one",
    "BeginTime": "its start time has not come; a requeued job waits about two minutes",
    "Dependency": "a job that it depends on has not ended",
    "DependencyNeverSatisfied": "the job it depends on did not end as it should have: it will never start, cancel it",
    "InvalidAccount": "its account may not run jobs here",
    "InvalidQOS": "its QOS may not be used",
    "JobArrayTaskLimit": "as many tasks of the array run as its %N allows",
    "JobHeldAdmin": "held by an administrator",
    "JobHeldUser": "held by you: `scontrol release` lets it go",
    "JobHoldMaxRequeue": "requeued too often, now held: `scontrol release` lets it go",
    "Licenses": "waits for a licence",
    "MaxMemPerLimit": "asks for more memory than its partition allows: it will never start",
    "NodeDown": "a node it needs is down",
    "NonZeroExitCode": "the program ended with an error",
    "OutOfMemory": "it used more memory than it had asked for: raise --mem",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is inactive",
    "PartitionNodeLimit": "asks for more nodes than its partition allows: it will never start",
    "PartitionTimeLimit": "its time limit is above that of its partition: it will never start",
    "Priority": "other jobs come first",
    "QOSMaxGRESPerUser": "you use all the GPUs that your QOS allows",
    "QOSMaxJobsPerUserLimit": "you have as many running jobs as your QOS allows",
    "ReqNodeNotAvail": "a node it needs is down, or reserved for others",
    "Reservation": "its reservation has not begun",
    "Resources": "waits for nodes to come free",
    "TimeLimit": "it reached its time limit",
}


def explained(reason: str) -> str | None:
    """What `reason` means; None where there is nothing to add to SLURM's word."""
    name = reason.partition(",")[0].strip()
    return _REASONS.get(name)
