"""Whether this nvcc, this torch and this host compiler fit together, checked before anything is compiled."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dsrun.errors import ToolError
from dsrun.findings.finding import Finding
from dsrun.messages import Message
from dsrun.system.proc import capture
from dsrun.wheel.target.arch import minor_release
from dsrun.wheel.target.cxx import Cxx
from dsrun.wheel.target.nvcc import Nvcc, has_runtime, host_limits

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
    kind: str, torch: TorchFacts | None, nvcc: Nvcc | None, cxx: Cxx, others: Sequence[Cxx] = ()
) -> list[Finding]:
    """Check whether one can build for accelerator `kind` ("cuda" or "cpu") with these tools.

    `others` are further C++ compilers of this machine, proposed when `cxx` is not accepted. Errors: no torch, a
    torch without CUDA or for ROCm, no nvcc, another CUDA major, a host compiler too old or too new. A minor
    difference of CUDA is an info.
    """
    if torch is None:
        return [
            _error(
                "no_torch",
                Message("torch is not installed, and DeepSpeed compiles against it"),
                "pip install torch",
            )
        ]
    findings = check_standard(torch, cxx, others)
    if kind != "cuda":
        return findings
    if torch.cuda is None:
        message = Message(
            "torch {version} was built for ROCm {rocm}, so nothing can be compiled for GPUs against it"
            if torch.hip
            else "torch {version} was built without CUDA, so nothing can be compiled for GPUs against it",
            version=torch.version,
            rocm=torch.hip,
        )
        fix = Message("install a CUDA build of torch, or build the operations for the CPU: --arch cpu")
        return [*findings, _error("torch_without_cuda", message, fix)]
    if nvcc is None:
        fix = Message(
            "{command}, or load a CUDA {version} toolkit and set CUDA_HOME",
            command=_pip_nvcc(torch.cuda),
            version=minor_release(torch.cuda),
        )
        return [
            *findings,
            _error("no_nvcc", Message("there is no nvcc, and torch wants one of CUDA {cuda}", cuda=torch.cuda), fix),
        ]
    findings += check_versions(torch.cuda, nvcc)
    if not has_runtime(nvcc.home):
        message = Message("{home} has nvcc but not the runtime's header cuda_runtime.h", home=nvcc.home)
        fix = Message("install the whole toolkit, or {command}", command=_pip_nvcc(nvcc.version))
        findings.append(_error("no_cuda_runtime", message, fix))
    return [*findings, *check_host(nvcc, cxx, others)]


def _error(code: str, message: str, fix: str) -> Finding:
    return Finding(level="error", code=code, message=message, fix=fix)


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
        message = Message(
            "nvcc is {version} and torch was built with CUDA {wanted}: within one major version they "
            "work together (CUDA minor version compatibility)",
            version=nvcc.version,
            wanted=wanted,
        )
        return [Finding(level="info", code="cuda_minor_differs", message=message, where=str(nvcc.path))]
    message = Message(
        "nvcc is {version} ({path}) and torch was built with CUDA {wanted}: code of another major "
        "version does not load",
        version=nvcc.version,
        path=nvcc.path,
        wanted=wanted,
    )
    fix = Message(
        "use nvcc {wanted} ({command}, or set CUDA_HOME), or install a torch for CUDA {major}.x",
        wanted=wanted,
        command=_pip_nvcc(cuda),
        major=nvcc.major,
    )
    return [_error("cuda_major_differs", message, fix)]


def check_standard(torch: TorchFacts, cxx: Cxx, others: Sequence[Cxx]) -> list[Finding]:
    """An error for a compiler that is too old for torch's headers."""
    standard = "c++20" if torch.release >= _FIRST_CXX20 else "c++17"
    oldest = _OLDEST[standard]
    if cxx.major >= oldest[cxx.kind]:
        return []
    fitting = [other for other in others if other.major >= oldest[other.kind]]
    fix = _use(fitting, Message("{compiler} or newer", compiler=f"{cxx.kind} {oldest[cxx.kind]}"))
    message = Message(
        "{cxx} is too old for torch {version}, whose headers are {standard}",
        cxx=cxx,
        version=torch.version,
        standard=standard.upper(),
    )
    return [_error("compiler_too_old", message, fix)]


def check_host(nvcc: Nvcc, cxx: Cxx, others: Sequence[Cxx]) -> list[Finding]:
    """nvcc's crt/host_config.h stops with "unsupported GNU version" above its limit."""
    limits = host_limits(nvcc.home)
    newest = limits.get(cxx.kind)
    if newest is None or cxx.major <= newest:
        return []
    fix = _use([other for other in others if other.major <= limits.get(other.kind, 0)], f"{cxx.kind} {newest}")
    message = Message(
        "{cxx} is newer than nvcc {version} accepts (up to {kind} {newest})",
        cxx=cxx,
        version=nvcc.version,
        kind=cxx.kind,
        newest=newest,
    )
    return [_error("compiler_too_new", message, fix)]


def _use(fitting: Sequence[Cxx], wanted: str) -> str:
    if not fitting:
        return Message("install {wanted} and name it with --cxx", wanted=wanted)
    best = max(fitting, key=lambda cxx: (cxx.kind == "gcc", cxx.major))
    return f"--cxx {best.path}"
