"""The launchers and schedulers of launchers.toml, and which of them the environment shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from dsrun.datafiles import toml_beside


@dataclass(frozen=True)
class HostSource:
    """Where a list of machines is: in the variable `of`, or in the file or the output of the command that it names."""

    form: str
    of: str


@dataclass(frozen=True, kw_only=True)
class LauncherFacts:
    """What starts the command on each machine; the fields are explained in launchers.toml."""

    called: str
    source: str
    tool: str = ""
    rank: str = ""
    size: str = ""
    local_size: str = ""
    nodes: str = ""
    hosts: HostSource | None = None
    own: str = ""
    address: str = ""
    port: str = ""
    job: str = ""
    requires: Sequence[str] = ()
    unless: Sequence[str] = ()
    where: Mapping[str, str] = field(default_factory=dict)
    starts_by_srun: bool = False
    flags_only: bool = False
    sweeps: bool = False
    yields: bool = False
    returns: bool = False
    recreated: bool = False

    @property
    def where_it_is(self) -> str:
        """For messages, after a comma."""
        return f"under {self.called}" if self.tool else self.called

    def matches(self, environ: Mapping[str, str]) -> bool:
        needed = [self.rank, self.own, *self.requires]
        if not self.sweeps:
            needed.append(self.size)
        if self.hosts and self.hosts.form != "command":
            needed.append(self.hosts.of)
        return (
            all(environ.get(name) for name in needed if name)
            and not any(environ.get(name) for name in self.unless)
            and all(environ.get(name) == value for name, value in self.where.items())
        )


@dataclass(frozen=True, kw_only=True)
class SchedulerFacts:
    """What starts the job's script on the first of several machines."""

    called: str
    source: str
    job: str
    hosts: HostSource

    def matches(self, environ: Mapping[str, str]) -> bool:
        """Whether this is in one of its jobs."""
        return bool(environ.get(self.job) and environ.get(self.hosts.of))


def _rows(kind: str) -> list[dict[str, Any]]:
    rows = toml_beside(__file__, "launchers.toml")[kind]
    return [{**row, "hosts": HostSource(**row["hosts"])} if "hosts" in row else row for row in rows]


@cache
def launchers() -> tuple[LauncherFacts, ...]:
    """All launchers, in the order in which they are looked for."""
    return tuple(LauncherFacts(**row) for row in _rows("launcher"))


@cache
def schedulers() -> tuple[SchedulerFacts, ...]:
    """All schedulers that give a list of machines."""
    return tuple(SchedulerFacts(**row) for row in _rows("scheduler"))


def scheduler_of(environ: Mapping[str, str]) -> SchedulerFacts | None:
    """The scheduler in whose job this is."""
    return next((each for each in schedulers() if each.matches(environ)), None)
