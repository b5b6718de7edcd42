"""Whether this nvcc, this torch and this host compiler fit together, checked before anything is compiled."""

from collections.abc import Sequence

from dsrun.findings.finding import Finding, finding_of, text_of
from dsrun.machine.torch_facts import TorchFacts
from dsrun.wheel.platform.arch import minor_release
from dsrun.wheel.platform.cxx import CxxCompiler
from dsrun.wheel.platform.nvcc import Nvcc, has_runtime, host_limits

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
    difference of CUDA is an info."""
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


def cxx_standard(torch: TorchFacts) -> str:
    """The C++ standard that torch's headers need ("c++20")."""
    return "c++20" if torch.release >= _FIRST_CXX20 else "c++17"


def check_standard(torch: TorchFacts, cxx: CxxCompiler, others: Sequence[CxxCompiler]) -> list[Finding]:
    """An error for a compiler that is too old for torch's headers."""
    standard = cxx_standard(torch)
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
