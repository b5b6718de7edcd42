"""The launchers and schedulers of launchers.toml, which of them the environment shows, and their lists of machines, the
first machine first.

Pure, but for `read`, which reads the file and runs the command that launchers.toml names."""

import json
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from dsrun.datafiles import toml_beside
from dsrun.launch.refusals import refusal, refuse
from dsrun.system.env import shortened

_NAME = re.compile(r"[A-Za-z0-9_.:%][A-Za-z0-9_.:%-]*")
_COMMAND_S = 20.0
# Vertex AI's worker pools that train; the other two are of TensorFlow's parameter servers and evaluators.
_POOLS = ("workerpool0", "workerpool1")


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


HostReader = Callable[[HostSource, Mapping[str, str]], str]


def read(source: HostSource, environ: Mapping[str, str]) -> str:
    """The text of the list. Raises UsageError for a file that cannot be read, and a command that fails."""
    if source.form == "file":
        try:
            return Path(environ[source.of]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError, ValueError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or error
            raise refusal("hosts.unreadable", variable=source.of, file=environ[source.of], why=why) from None
    if source.form == "command":
        try:
            done = subprocess.run(source.of.split(), capture_output=True, text=True, timeout=_COMMAND_S, check=True)
        except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as error:
            reason = "not found" if isinstance(error, FileNotFoundError) else error
            raise refusal("hosts.silent", command=source.of, reason=reason) from None
        return done.stdout
    return environ[source.of]


def machines(source: HostSource, environ: Mapping[str, str], text_of: HostReader = read) -> tuple[str, ...]:
    """The machines of a list, each once. Raises UsageError for what is no such list."""
    text = text_of(source, environ)
    try:
        names = tuple(dict.fromkeys(_FORMS[source.form](text)))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        names = ()
    if not names or not all(isinstance(name, str) and _NAME.fullmatch(name) for name in names):
        refuse("not_hosts", source=source, text=shortened(text.strip()))
    return names


def cluster_rank(text: str) -> int:
    """This machine's number by Vertex AI's CLUSTER_SPEC: in its own pool, after those of the pools before it."""
    spec = json.loads(text)
    pool, index = spec["task"]["type"], int(spec["task"].get("index", 0))
    if pool not in _POOLS:
        raise ValueError(pool)
    before = _POOLS[: _POOLS.index(pool)]
    return index + sum(len(spec["cluster"].get(each, ())) for each in before)


def _counted(text: str) -> list[str]:
    """LSF's "gpu1 8 gpu2 8"."""
    words = text.split()
    if len(words) % 2 or not all(count.isdigit() for count in words[1::2]):
        raise ValueError(text)
    return words[::2]


def _json(text: str) -> list[str]:
    names = json.loads(text)
    if not isinstance(names, list):
        raise ValueError(text)
    return names


def _cluster_spec(text: str) -> list[str]:
    cluster: dict[str, Any] = json.loads(text)["cluster"]
    return [address.rpartition(":")[0] or address for pool in _POOLS for address in cluster.get(pool, ())]


_FORMS: Mapping[str, Callable[[str], list[str]]] = {
    "file": lambda text: [line.split()[0] for line in text.splitlines() if line.strip()],
    "command": str.split,
    "comma": lambda text: [name.strip() for name in text.split(",")],
    "json": _json,
    "counted": _counted,
    "cluster_spec": _cluster_spec,
}
