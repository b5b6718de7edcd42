"""Versions of packages: those that dsrun takes, and combinations that are known to be bad (system/known_bad.toml)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from dsrun.datafiles import toml_beside
from dsrun.doctor.job.settings import config_of
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.findings.finding import Finding, Level, finding_of, text_of
from dsrun.messages import Message
from dsrun.system import host
from dsrun.system.host import NEEDED, untested
from dsrun.zero.ops import stage_of


@dataclass(frozen=True, kw_only=True)
class KnownBad:
    """A row of dsrun/system/known_bad.toml: where all conditions hold, `message` and `fix` are told."""

    code: str
    packages: Mapping[str, str]
    level: Level
    message: str
    fix: str
    source: str
    stage: int | None = None
    arm: bool = False
    gpus: int = 0
    unless_variable: Mapping[str, str] = field(default_factory=dict)

    def holds(self, machine: MachineFacts, stage: int | None) -> bool:
        """Whether this machine, and a job of this ZeRO stage (None: unknown), is like that."""
        if not all(_matches(machine.packages.versions.get(name), text) for name, text in self.packages.items()):
            return False
        if self.stage is not None and stage is not None and stage != self.stage:
            return False
        if self.arm and "CPU implementer" not in (machine.text("/proc/cpuinfo") or ""):
            return False
        set_right = any(machine.environ.get(name) == value for name, value in self.unless_variable.items())
        return len(machine.gpus) >= self.gpus and not set_right


@cache
def known_bad_rows() -> tuple[KnownBad, ...]:
    return tuple(KnownBad(code=code, **row) for code, row in toml_beside(host.__file__, "known_bad.toml").items())


def _matches(version: str | None, specifiers: str) -> bool:
    try:
        return version is not None and Version(version) in SpecifierSet(specifiers, prereleases=True)
    except InvalidVersion:
        return False


def look(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """Rows that hold, and packages outside of the ranges in pyproject.toml."""
    versions = machine.packages.versions
    if not versions.keys() - {"python"}:
        return
    stage = stage_of(config_of(target)) if target.recipe else None
    found = [
        Finding(
            level=row.level if stage is not None or row.stage is None else "warning",
            code=f"versions_{row.code}",
            message=Message(row.message, **{name.replace("-", "_"): versions[name] for name in row.packages}),
            fix=text_of("versions.source", fix=Message(row.fix), source=row.source),
        )
        for row in known_bad_rows()
        if row.holds(machine, stage)
    ]
    found += [*_missing(machine, target), *_outside(versions)]
    yield from found
    strange = untested(versions)
    if strange:
        yield Finding(level="info", code="versions_untested", message=strange)
    elif not found:
        shown = (name for name in ("torch", "deepspeed", "transformers", "accelerate") if name in versions)
        yield finding_of("versions", shown=", ".join(f"{name} {versions[name]}" for name in shown))


def _missing(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """Training packages that are not there, beside others that are."""
    missing = [name for name in NEEDED if name not in machine.packages.versions]
    if missing:
        key = "versions_missing.one" if len(missing) == 1 else "versions_missing"
        level: Level = "error" if target.recipe and target.runs_on(machine) else "warning"
        yield finding_of(key, level=level, names=", ".join(missing))


def required() -> dict[str, SpecifierSet]:
    """The ranges of versions that `dsrun train` takes; {} where dsrun was not installed by a package manager."""
    try:
        texts = metadata.requires("dsrun") or []
    except metadata.PackageNotFoundError:
        return {}
    wanted = (Requirement(text) for text in texts)
    return {each.name: each.specifier for each in wanted if each.marker and "train" in str(each.marker)}


def _outside(versions: Mapping[str, str]) -> Iterator[Finding]:
    for name, specifier in required().items():
        installed = versions.get(name)
        if installed and not _matches(installed, str(specifier)):
            yield finding_of("versions_range", name=name, installed=installed, specifier=specifier)
