"""Is a finished wheel what was asked for? DeepSpeed loses operations and architectures with exit code 0."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from packaging.version import Version

if TYPE_CHECKING:
    from dsrun.wheel.build.request import Request
    from dsrun.wheel.inspect.contents import Library, WheelReport
    from dsrun.wheel.target.ops import Op


def wrong_with_wheel(report: WheelReport, request: Request, ops: Sequence[Op]) -> list[str]:
    """What the wheel lacks of what `request` asked for, one line each; empty when it is right."""
    wrong = _facts(report, request)
    for op in ops:
        library = library_of(report.libraries, op)
        if library is None:
            wrong.append(f"{op.name} is not in it")
            continue
        if op.name not in report.installed_ops:
            wrong.append(
                f"{op.name} is compiled, but DeepSpeed's table of installed operations does not name it"
            )
        if request.accelerator == "cuda" and op.code == "cuda":
            wrong += _code(library, op, request)
    return wrong


def library_of(libraries: Iterable[Library], op: Op) -> Library | None:
    """The library that is `op`; None when there is none."""
    return next((library for library in libraries if library.path.startswith(f"{op.library}.")), None)


def expected_code(archs: str, lowest: str | None) -> tuple[set[str], set[str]]:
    """Capabilities for which an operation must hold SASS, and PTX, when TORCH_CUDA_ARCH_LIST is `archs`.

    `lowest`: the operation's own builder leaves out everything below.
    """
    entries = [entry.partition("+") for entry in archs.split(";") if entry]
    kept = [(cc, suffix) for cc, _, suffix in entries if lowest is None or Version(cc) >= Version(lowest)]
    return {cc for cc, _ in kept}, {cc for cc, suffix in kept if suffix == "PTX"}


def _facts(report: WheelReport, request: Request) -> list[str]:
    """The wheel's own statements against the request."""
    torch = ".".join(request.torch.split(".")[:2])
    cuda = ".".join(request.cuda.split(".")[:2]) or None
    version = f"{request.deepspeed}+{request.local_version}"
    pairs = (
        ("its accelerator", report.accelerator, request.accelerator),
        ("its torch", report.torch, torch),
        ("its CUDA", report.cuda, cuda),
        ("its version", report.version, version),
        ("its Python", report.python, request.python),
    )
    return [
        f"{what} is {found or 'none'}, not {asked or 'none'}"
        for what, found, asked in pairs
        if found != asked
    ]


def _code(library: Library, op: Op, request: Request) -> list[str]:
    sass, ptx = expected_code(request.archs, op.lowest)
    if not library.sass and not library.ptx:
        return [f"{op.name} holds no GPU code: DeepSpeed built its CPU variant"]
    wrong = []
    for kind, wanted, found in (("SASS", sass, library.sass), ("PTX", ptx, library.ptx)):
        lost = sorted(wanted - set(found), key=Version)
        if lost:
            wrong.append(
                f"{op.name} has no {kind} for {', '.join(lost)}, only for {', '.join(found) or 'none'}"
            )
    return wrong
