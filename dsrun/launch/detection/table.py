"""The launchers and schedulers of launchers.toml, and which of them the environment shows."""

from collections.abc import Iterator, Mapping
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
    requires: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
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


@cache
def _table() -> tuple[tuple[LauncherFacts, ...], tuple[SchedulerFacts, ...]]:
    table = toml_beside(__file__, "launchers.toml")
    return (
        tuple(LauncherFacts(**dict(_typed(entry))) for entry in table["launcher"]),
        tuple(SchedulerFacts(**dict(_typed(entry))) for entry in table["scheduler"]),
    )


def _typed(entry: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in entry.items():
        if name == "hosts":
            yield name, HostSource(**value)
        else:
            yield name, tuple(value) if isinstance(value, list) else value


def launchers() -> tuple[LauncherFacts, ...]:
    """All launchers, in the order in which they are looked for."""
    return _table()[0]


def schedulers() -> tuple[SchedulerFacts, ...]:
    """All schedulers that give a list of machines."""
    return _table()[1]


def scheduler_of(environ: Mapping[str, str]) -> SchedulerFacts | None:
    """The scheduler in whose job this is."""
    return next((each for each in schedulers() if each.matches(environ)), None)
