"""Whether this nvcc, this torch and this host compiler fit together, checked before anything is compiled."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dsrun.errors import ToolError
from dsrun.findings.finding import Finding
from dsrun.findings.texts import finding_of, text_of
from dsrun.system.process.proc import capture
from dsrun.wheel.platform.arch import minor_release
from dsrun.wheel.platform.cxx import CxxCompiler
from dsrun.wheel.platform.nvcc import Nvcc, has_runtime, host_limits

_TIMEOUT_S = 60.0
# Printed on lines of their own behind a mark, since a site's startup files may print too. find_spec imports nothing.
# With -c the first place is the current folder, in which something called torch may lie.
_QUESTION = """
import importlib.util as u, sys, sysconfig
sys.path[:] = [place for place in sys.path if place]
spec = u.find_spec("torch")
print("dsrun:", spec.origin if spec and spec.origin else "")
print("dsrun:", sys.implementation.cache_tag)
print("dsrun:", sysconfig.get_path("purelib"))
"""
_LINES = 3


@dataclass(frozen=True, kw_only=True)
class TorchFacts:
    """The torch of one environment.

    `version` in full ("2.13.0+cu130"); `cuda` and `hip` the versions it was built with, None without;
    `python_tag` of its interpreter ("cp311"); `path` its package folder.
    """

    version: str
    cuda: str | None
    hip: str | None = None
    python_tag: str
    path: Path

    @property
    def site_packages(self) -> Path:
        """The folder it is installed in, where its NVIDIA packages are too."""
        return self.path.parent

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version; operations compiled against another pair are not used."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)


def torch_facts(python: str = sys.executable) -> TorchFacts | None:
    """The torch that interpreter `python` would import; None when it has none.

    Raises MissingError when there is no such interpreter, ToolError when it does not run or its torch cannot be read.
    """
    found = _query(python)
    if found is None:
        return None
    path, tag = found
    facts = facts_at(path, tag)
    if facts is None:
        raise ToolError(f"{path} does not say its version", fix=f"install torch again: {python} -m pip install torch")
    return facts


def facts_at(path: Path, tag: str) -> TorchFacts | None:
    """The torch whose package folder is `path`, of an interpreter with this tag; None where it cannot be read."""
    values = _assigned(path / "version.py")
    version = values.get("__version__")
    if version is None:
        return None
    return TorchFacts(version=version, cuda=values.get("cuda"), hip=values.get("hip"), python_tag=tag, path=path)


def _query(python: str) -> tuple[Path, str] | None:
    """Where `python` finds torch, and the interpreter's tag."""
    answer = capture([python, "-c", _QUESTION], seconds=_TIMEOUT_S)
    lines = [line[6:].strip() for line in answer.stdout.splitlines() if line.startswith("dsrun:")]
    if answer.returncode or len(lines) != _LINES:
        last_line = answer.stderr.strip().splitlines()[-1:] or ["it printed nothing"]
        raise ToolError(f"{python} did not answer: {last_line[0]}", fix="name a working Python interpreter")
    origin, tag = lines[0], lines[1].replace("cpython-", "cp")
    return (Path(origin).parent, tag) if origin else None


def _assigned(path: Path) -> dict[str, str]:
    """String values assigned at the top of Python file `path`, annotated or not; nothing is executed."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return {}
    values: dict[str, str] = {}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            values.update({target.id: value.value for target in targets if isinstance(target, ast.Name)})
    return values


# op_builder passes -std=c++20 from torch 2.12 on and -std=c++17 before; these versions are the first to take them
# and to compile torch's headers.
_OLDEST = {"c++20": {"gcc": 11, "clang": 13}, "c++17": {"gcc": 9, "clang": 9}}
_FIRST_CXX20 = (2, 12)


def check_tools(
    kind: str, torch: TorchFacts | None, nvcc: Nvcc | None, cxx: CxxCompiler, others: Sequence[CxxCompiler] = ()
) -> list[Finding]:
    """Check whether one can build for accelerator `kind` ("cuda" or "cpu") with these tools.

    `others` are further C++ compilers of this machine, proposed when `cxx` is not accepted. Errors: no torch, a
    torch without CUDA or for ROCm, no nvcc, another CUDA major, a host compiler too old or too new. A minor
    difference of CUDA is an info.
    """
    if torch is None:
        return [finding_of("no_torch.wheel")]
    findings = check_standard(torch, cxx, others)
    if kind != "cuda":
        return findings
    if torch.cuda is None:
        if torch.hip:
            return [*findings, finding_of("torch_without_cuda.rocm", version=torch.version, rocm=torch.hip)]
        return [*findings, finding_of("torch_without_cuda", version=torch.version)]
    if nvcc is None:
        command, version = _pip_nvcc(torch.cuda), minor_release(torch.cuda)
        return [*findings, finding_of("no_nvcc", cuda=torch.cuda, command=command, version=version)]
    findings += check_versions(torch.cuda, nvcc)
    if not has_runtime(nvcc.home):
        findings.append(finding_of("no_cuda_runtime", home=nvcc.home, command=_pip_nvcc(nvcc.version)))
    return [*findings, *check_host(nvcc, cxx, others)]


def _pip_nvcc(cuda: str) -> str:
    """PyPI has an nvcc from CUDA 13.0 on; before, its package of that name holds only ptxas."""
    version = minor_release(cuda)
    if int(version.split(".")[0]) >= 13:
        return f"pip install 'cuda-toolkit[nvcc,cccl,crt,nvvm,cudart,profiler]=={version}.*'"
    return f"conda install 'nvidia::cuda-toolkit={version}'"


def check_versions(cuda: str, nvcc: Nvcc) -> list[Finding]:
    """An error where nvcc is of another major version than torch's `cuda`, an info for another minor one."""
    wanted = minor_release(cuda)
    if nvcc.version == wanted:
        return []
    if nvcc.version.split(".")[0] == wanted.split(".")[0]:
        return [finding_of("cuda_minor_differs", where=str(nvcc.path), version=nvcc.version, wanted=wanted)]
    path, major, command = nvcc.path, nvcc.major, _pip_nvcc(cuda)
    return [
        finding_of("cuda_major_differs", version=nvcc.version, path=path, major=major, wanted=wanted, command=command)
    ]


def check_standard(torch: TorchFacts, cxx: CxxCompiler, others: Sequence[CxxCompiler]) -> list[Finding]:
    """An error for a compiler that is too old for torch's headers."""
    standard = "c++20" if torch.release >= _FIRST_CXX20 else "c++17"
    oldest = _OLDEST[standard]
    if cxx.major >= oldest[cxx.kind]:
        return []
    fitting = [other for other in others if other.major >= oldest[other.kind]]
    fix = _use(fitting, text_of("compiler_too_old.or_newer", compiler=f"{cxx.kind} {oldest[cxx.kind]}"))
    return [finding_of("compiler_too_old", cxx=cxx, version=torch.version, standard=standard.upper(), fix=fix)]


def check_host(nvcc: Nvcc, cxx: CxxCompiler, others: Sequence[CxxCompiler]) -> list[Finding]:
    """nvcc's crt/host_config.h stops with "unsupported GNU version" above its limit."""
    limits = host_limits(nvcc.home)
    newest = limits.get(cxx.kind)
    if newest is None or cxx.major <= newest:
        return []
    fix = _use([other for other in others if other.major <= limits.get(other.kind, 0)], f"{cxx.kind} {newest}")
    return [finding_of("compiler_too_new", cxx=cxx, version=nvcc.version, kind=cxx.kind, newest=newest, fix=fix)]


def _use(fitting: Sequence[CxxCompiler], wanted: str) -> str:
    if not fitting:
        return text_of("compiler_too_old.install", wanted=wanted)
    best = max(fitting, key=lambda cxx: (cxx.kind == "gcc", cxx.major))
    return f"--cxx {best.path}"
