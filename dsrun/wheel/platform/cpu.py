"""For which processors the host code of a wheel is compiled, instead of DeepSpeed's fixed -march=native."""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dsrun.datafiles import toml_beside
from dsrun.errors import ToolError, UsageError, did_you_mean
from dsrun.system.process.proc import capture
from dsrun.wheel.platform.cxx import CxxCompiler, predefined

CPUINFO = Path("/proc/cpuinfo")
NATIVE = "native"
PORTABLE = "x86-64-v3"
_TIMEOUT_S = 60.0
TABLES = toml_beside(__file__)
X86_LEVELS, _ARM_LEVELS = (
    tuple((name, frozenset(flags)) for name, flags in TABLES[kind].items()) for kind in ("x86", "arm")
)
_LADDERS = (("x86-64", *TABLES["x86"]), ("armv8-a", *TABLES["arm"]))


@dataclass(frozen=True, kw_only=True)
class CpuLevel:
    """A CPU level as a compiler takes it: `flag` ("-march=x86-64-v3") and DeepSpeed's define for its vectors.

    Both are empty for "native": DeepSpeed's own flags stay."""

    name: str
    flag: str
    define: str


def level_of(flags: Iterable[str], *, arm: bool = False) -> str:
    """The highest level all of whose instructions are in `flags` (as in /proc/cpuinfo)."""
    have = frozenset(flags)
    reached = "armv8-a" if arm else "x86-64"
    for name, wanted in _ARM_LEVELS if arm else X86_LEVELS:
        if not wanted <= have:
            break
        reached = name
    return reached


def host_level(cpuinfo: str) -> str:
    """The level of the machine whose /proc/cpuinfo has the text `cpuinfo`.

    The lowest of its processors counts, for big and little cores. "native" on a machine of another kind, for whose
    processors there are no levels."""
    levels = set()
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            levels.add(level_of(value.split(), arm=key.strip() == "Features"))
    return common_level(levels) if levels else NATIVE


def common_level(levels: Iterable[str]) -> str:
    """The highest level that every one of `levels` includes. Raises UsageError for levels that do not compare."""
    given = set(levels)
    if len(given) == 1:
        return given.pop()
    for ladder in _LADDERS:
        if given and given <= set(ladder):
            return min(given, key=ladder.index)
    what = f"there is no CPU level common to {', '.join(sorted(given)) or 'no machine'}"
    raise UsageError(what, fix="build one wheel for each kind of machine: --cpu NAME")


def default_level(host: str) -> str:
    """The level to compile for when none is named and none known of the cluster.

    x86-64-v3, which every x86 server since 2015 has, or `host`'s own when that is lower; on Arm the baseline armv8-a;
    "native" elsewhere."""
    if host in _LADDERS[0]:
        return common_level([PORTABLE, host])
    return "armv8-a" if host in _LADDERS[1] else NATIVE


def identity(level: str, cpuinfo: str | None = None) -> str:
    """What a build's key needs of the level: its name; for "native" also the processor it stands for, by archspec's
    name of its kind ("zen4") and a digest of what it can do: "native.zen4.1a2b3c4d"."""
    if level != NATIVE:
        return level
    import archspec.cpu

    text = CPUINFO.read_text(encoding="utf-8", errors="replace") if cpuinfo is None else cpuinfo
    kinds = ["vendor_id", "cpu family", "model", "flags", "Features", "CPU implementer", "CPU part", "cpu", "isa"]
    lines = {line.strip() for line in text.splitlines() if line.partition(":")[0].strip() in kinds}
    digest = hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:8]
    return f"{NATIVE}.{archspec.cpu.host().name}.{digest}"


def resolve_level(cxx: CxxCompiler, name: str) -> CpuLevel:
    """Level `name` in the words of compiler `cxx`, which must know it as -march or (Arm, POWER) -mcpu.

    Raises UsageError with the nearest name this compiler knows."""
    if name == NATIVE:
        return CpuLevel(name=name, flag="", define="")
    if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", name):
        raise UsageError(f"--cpu {name!r} is not the name of a processor", fix="--cpu x86-64-v3")
    for option in ("-march", "-mcpu"):
        flag = f"{option}={name}"
        macros = predefined(cxx.path, [flag])
        if macros:
            define = next(define for define, wanted in TABLES["defines"].items() if macros.keys() >= set(wanted))
            return CpuLevel(name=name, flag=flag, define=f"-D{define}")
    near = did_you_mean(name, _known_names(cxx), "--cpu x86-64-v3, or another name that its -march takes")
    raise UsageError(f"{cxx} does not know the processor {name!r}", fix=near)


def _known_names(cxx: CxxCompiler) -> list[str]:
    """Processor names from the list that gcc and clang print with the refusal."""
    try:
        stderr = capture([str(cxx.path), "-march=?", "-E", "-x", "c++", "/dev/null"], seconds=_TIMEOUT_S).stderr
    except ToolError:
        return []
    return re.findall(r"[\w.+-]{4,}", stderr.partition(" are:")[2].partition("\n")[0])
