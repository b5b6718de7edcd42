"""The machine a wheel is to run on, as plain values."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from packaging.tags import Tag, compatible_tags, cpython_tags

from dsrun.errors import ToolError
from dsrun.system.files import parse_json
from dsrun.system.process.proc import capture
from dsrun.wheel.platform.arch import ComputeCapability
from dsrun.wheel.verify import probe
from dsrun.wheel.verify.fatbin import sm

PROBE = Path(probe.__file__)
_PROBE_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class WheelGpu:
    """A GPU of a machine, or that a wheel is built for; `name` may be only "sm_90"."""

    name: str
    capability: ComputeCapability


@dataclass(frozen=True, kw_only=True)
class ProbedMachine:
    """What dsrun/wheel/verify/probe.py found; None is unknown. `python` is CPython's tag, `abi` its ABI: "cp311".

    `driver_cuda` is the newest CUDA the driver knows ("12.4"); `cpu_flags` are /proc/cpuinfo's, and `absent` the
    libraries asked for that the loader would not find."""

    node: str
    python: str
    abi: str
    python_version: str
    machine: str
    glibc: str | None = None
    glibcxx: str | None = None
    torch: str | None = None
    torch_cuda: str | None = None
    cxx11_abi: bool | None = None
    driver: str | None = None
    driver_cuda: str | None = None
    gpus: tuple[WheelGpu, ...] = ()
    cpu_flags: frozenset[str] = frozenset()
    absent: tuple[str, ...] = ()

    def tags(self) -> frozenset[Tag]:
        """The tags of wheels that its pip accepts (PEP 425), the platform's by its C library (PEP 600, PEP 513)."""
        version = int(self.python[2]), int(self.python[3:])
        platforms = [*_manylinux(self.machine, self.glibc), f"linux_{self.machine}"]
        own = cpython_tags(version, abis=[self.abi], platforms=platforms)
        return frozenset([*own, *compatible_tags(version, interpreter=self.python, platforms=platforms)])

    def as_dict(self) -> dict[str, Any]:
        """As plain JSON values, without the processor's hundred flags."""
        gpus = [{"name": gpu.name, "compute_capability": "{}.{}".format(*gpu.capability)} for gpu in self.gpus]
        rest = {name: value for name, value in vars(self).items() if name not in ("cpu_flags", "gpus")}
        return {**rest, "absent": list(self.absent), "gpus": gpus}


_OLD_NAMES = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}


def _manylinux(machine: str, glibc: str | None) -> Iterator[str]:
    for minor in range(int((glibc or "2.0").split(".")[1]), 4, -1):
        yield f"manylinux_2_{minor}_{machine}"
        if minor in _OLD_NAMES:
            yield f"{_OLD_NAMES[minor]}_{machine}"


def machine_from(facts: Mapping[str, Any], node: str | None = None) -> ProbedMachine:
    """The machine that a probe's JSON describes; `node` is what the user calls it."""
    gpus = tuple(
        WheelGpu(name=each["name"], capability=(each["capability"][0], each["capability"][1])) for each in facts["gpus"]
    )
    collections = {"cpu_flags": frozenset(facts["cpu_flags"]), "absent": tuple(facts["absent"]), "gpus": gpus}
    return ProbedMachine(**{**facts, **collections, "node": node or str(facts["node"])})


def this_machine(needed: Iterable[str], python: str = sys.executable) -> ProbedMachine:
    """This machine with the environment of the interpreter `python`; torch is not imported.

    Raises MissingError when there is no such interpreter, and ToolError when it does not run."""
    answer = capture([python, str(PROBE), *needed], seconds=_PROBE_SECONDS)
    return machine_from(last_object(answer, python))


def last_object(answer: CompletedProcess[str], program: str) -> dict[str, Any]:
    """The JSON object in the last line of a program's stdout; a login shell may have printed before it.

    Raises ToolError with the last line of stderr when there is none."""
    for line in reversed(answer.stdout.splitlines()):
        if line.startswith("{"):
            with suppress(ValueError):
                found: dict[str, Any] = parse_json(line)
                return found
    stderr = answer.stderr.strip().splitlines()
    raise ToolError(f"{program} failed with exit code {answer.returncode}: {stderr[-1] if stderr else 'no output'}")


def gpus_for(capabilities: Iterable[ComputeCapability]) -> tuple[WheelGpu, ...]:
    """GPUs of which only the compute capability is known."""
    return tuple(WheelGpu(name=sm(capability), capability=capability) for capability in capabilities)
