"""The logs of a folder that is no run folder, put together by the job or run that wrote them."""

import re
from collections.abc import Iterable
from pathlib import Path

from dsrun.diagnosis.reading import is_binary

LOG = re.compile(r".*\.(log|out|err|txt|stdout|stderr)(\.(gz|bz2|xz|zst|zip))?|.*\.[oe]\d+(\.\d+)?|std(out|err)")
# slurm-71233_4.out, train-71233.err, train.o71233
_JOB = re.compile(
    r"(?:^slurm|[-_.%])[-_]?(\d{3,}(?:_\d+)?)\.(?:out|err|log|txt)|^slurm-(\d+(?:_\d+)?)\.|\.[oe](\d+(?:\.\d+)?)$"
)
# What tells one process of a run from the others.
_PROCESS = re.compile(
    r"(?i)(?:^|[-_.])(?:(?:local[-_]?)?rank|node|task|worker|host|proc|gpu|pod|attempt)?[-_.]?\d+(?=[-_.]|$)"
)
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")
# Names that tell streams apart, not runs.
_STREAMS = ("", "std", "log", "stdout", "stderr", "out", "err")
# Deeper than torch.distributed.run --log-dir goes: RUN/attempt_0/3/stderr.log.
_DEPTH = 5


def job_of(path: Path) -> str | None:
    """The number of the batch job in a log's name, None where there is none."""
    match = _JOB.search(path.name)
    return next(filter(None, match.groups())) if match else None


def logs_below(folder: Path) -> list[Path]:
    """All files of `folder` and its sub-folders that are called like logs and are text, in the order of their names."""
    found = (path for path in folder.rglob("*") if len(path.relative_to(folder).parts) <= _DEPTH)
    return sorted(path for path in found if LOG.fullmatch(path.name) and path.is_file() and _has_text(path))


def by_job(paths: Iterable[Path], folder: Path) -> dict[str, list[Path]]:
    """Logs by the job that wrote them: its number, else the names without ranks, nodes and tasks; logs that differ in
    nothing else are of one run."""
    jobs: dict[str, list[Path]] = {}
    for path in paths:
        job = job_of(path)
        jobs.setdefault(f"job {job}" if job else _run_of(path.relative_to(folder)), []).append(path)
    return jobs


def _run_of(path: Path) -> str:
    """What the log is called without its rank: its sub-folder, or its stem."""
    if len(path.parts) > 1 and not _PROCESS.search(path.parts[0]):
        return path.parts[0]
    name = path.stem if path.suffix in _PACKED else path.name
    stem = _PROCESS.sub("", name).rpartition(".")[0].strip("-_.")
    return "logs" if stem in _STREAMS else stem


def _has_text(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            begin = file.read(1 << 16)
    except OSError:
        return True  # reading it says why
    return bool(begin) and (path.suffix in _PACKED or not is_binary(begin))
