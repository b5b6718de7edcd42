"""From options and this machine to the wheel to build: what cannot be built is rejected before compiling."""

import os
import platform
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dsrun.findings.finding import Finding, finding_of
from dsrun.refusals import Refusals
from dsrun.system import host
from dsrun.system.process.scratch import scratch_folder
from dsrun.system.variables import cache_root
from dsrun.wheel.compile.assemble import expected_code
from dsrun.wheel.compile.build_environment import WheelRequest, search_paths, unused_flags, without_flags
from dsrun.wheel.compile.compile_wheel import WheelBuild
from dsrun.wheel.compile.context import BuildContext, BuildDiagnostics, BuildOptions, detect_build_context
from dsrun.wheel.platform.arch import CudaArchs, env_value
from dsrun.wheel.platform.cpu import NATIVE, identity
from dsrun.wheel.platform.cxx import CompileProbe
from dsrun.wheel.platform.nvcc import prepare_home
from dsrun.wheel.platform.ops import DeepspeedOp, choose_ops, missing, named_ops
from dsrun.wheel.select_source import SourceIdentity, identify_source, resolve_source

# cicc on DeepSpeed's larger kernels peaks between 2 and 4 GiB a process; g++ -O3 on torch's headers near 1.5 GiB.
_CUDA_JOB_BYTES = 4 << 30
_HOST_JOB_BYTES = 3 << 29


def jobs(cores: int, memory_bytes: int, cuda: bool) -> int:
    """Compilers to run at once on `cores` cores with `memory_bytes` of free memory: at least 1.

    `cuda`: with kernels, of which one needs up to 4 GiB; plain C++ needs 1.5 GiB. DS_NVCC_THREADS, by which one
    nvcc compiles several architectures at once, must be 1 for this to hold.
    """
    each = _CUDA_JOB_BYTES if cuda else _HOST_JOB_BYTES
    return max(1, min(cores, memory_bytes // each))


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """The wheel to build, and what the user should know before it starts."""

    build: WheelBuild
    findings: tuple[Finding, ...] = ()
    origin: str = ""


def resolve(options: BuildOptions, environ: Mapping[str, str] = os.environ) -> BuildPlan:
    """Decide everything about the wheel that `options` ask for. Nothing is compiled beyond probes of a few lines.

    Raises UsageError, MissingError or ToolError in one line for whatever cannot be built.
    """
    diagnostics = BuildDiagnostics()
    clean = without_flags(environ)
    context = detect_build_context(options, environ, diagnostics)
    with _identified(options.deepspeed, environ) as source, _probe(context, clean) as probe:
        ops, left_out = choose_ops(
            options.ops,
            context.target.kind,
            available=probe.available,
            version=source.version,
            patched=bool(source.label),
            cuda=context.torch.cuda,
        )
        diagnostics.add(Finding(level="info", code="op_left_out", message=message) for message in left_out)
        diagnostics.add(missing(ops, probe.available, cuda=context.torch.cuda, environ=clean))
    named = named_ops(options.ops, context.target.kind, source.version)
    ops = _without_too_new(ops, context.target.archs, named, diagnostics)
    diagnostics.add(_remarks(options, environ, ops, context))
    kernels = any(op.code == "cuda" for op in ops)
    build = WheelBuild(
        request=_request(source, context, ops=ops, options=options, environ=environ),
        ops=ops,
        deepspeed=options.deepspeed,
        context=context,
        jobs=options.jobs or jobs(host.cores(), host.memory_available(), kernels),
    )
    return BuildPlan(build=build, findings=tuple(diagnostics.findings), origin=context.target.origin)


@contextmanager
def _identified(text: str | None, environ: Mapping[str, str]) -> Iterator[SourceIdentity]:
    """What --deepspeed means; the version of a git address is known only once it is fetched."""
    found = identify_source(text)
    if found.version:
        yield found
        return
    with scratch_folder("dsrun-source-") as folder:
        yield resolve_source(text, Path(folder) / "source", cache=cache_root(environ) / "sdists")


@contextmanager
def _probe(context: BuildContext, environ: Mapping[str, str]) -> Iterator[CompileProbe]:
    """Looks for headers and libraries with what the build will use."""
    with scratch_folder("dsrun-probe-") as folder:
        home = None
        if context.nvcc:
            home = prepare_home(context.nvcc, context.torch.site_packages, Path(folder) / "cuda", context.cxx)
        yield CompileProbe(cxx=context.cxx, home=home, python=str(context.python), environ=environ)


def _without_too_new(
    ops: Sequence[DeepspeedOp], archs: CudaArchs, named: Collection[str], diagnostics: BuildDiagnostics
) -> tuple[DeepspeedOp, ...]:
    """`ops` without those for newer GPUs than all of `archs`; such an operation named in --ops is an error."""
    kept = []
    for op in ops:
        # The operation's own builder keeps some of `archs`: without one it would fail after the others.
        if not archs or op.lowest is None or expected_code(env_value(archs), op.lowest)[0]:
            kept.append(op)
            continue
        if op.name in named:
            raise Refusals(__file__, "refusals.toml").error("ops.too_new", op=op, archs=env_value(archs))
        diagnostics.add([finding_of("op_left_out", op=op.name, lowest=op.lowest)])
    return tuple(kept)


def _remarks(
    options: BuildOptions, environ: Mapping[str, str], ops: Sequence[DeepspeedOp], context: BuildContext
) -> Iterator[Finding]:
    unused = unused_flags(environ)
    if unused:
        yield finding_of("flags_unused", names=", ".join(unused))
    if context.level == NATIVE and options.cpu is None:
        yield finding_of("cpu_native")
    archs = context.target.archs
    for op in ops if archs else ():
        if op.lowest and expected_code(env_value(archs), op.lowest) != expected_code(env_value(archs), None):
            yield finding_of("arch_left_out", op=op.name, lowest=op.lowest)
    affected = [op.name for op in ops if op.bf16]
    old, new = tuple(a for a in archs if a.major < 8), tuple(a for a in archs if a.major >= 8)
    if affected and old and new:
        yield finding_of("bf16_switched_off", ops=", ".join(affected), old=env_value(old), new=env_value(new))


def _request(
    source: SourceIdentity,
    context: BuildContext,
    *,
    ops: Sequence[DeepspeedOp],
    options: BuildOptions,
    environ: Mapping[str, str],
) -> WheelRequest:
    on_gpu = context.target.kind == "cuda"
    libc = " ".join(filter(None, platform.libc_ver()))
    return WheelRequest(
        deepspeed=source.version,
        source=source.digest,
        label=source.label,
        torch=context.torch.version,
        # DeepSpeed writes torch's CUDA into the wheel whatever it is built for.
        cuda=context.torch.cuda or "",
        nvcc=context.nvcc.version if context.nvcc else "",
        python=context.torch.python_tag.replace("-", ""),
        platform=f"{platform.system()} {platform.machine()} {libc}",
        accelerator="cuda" if on_gpu else "cpu",
        archs=env_value(context.target.archs) if on_gpu else "",
        ops=tuple(sorted(op.name for op in ops)),
        cpu=identity(context.level),
        compiler=f"{context.cxx.kind} {context.cxx.version}",
        symbols=options.symbols,
        environment=search_paths(environ),
    )
