"""From options and this machine to the wheel to build: what cannot be built is rejected before compiling."""

import os
import platform
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dsrun.errors import UsageError
from dsrun.findings.finding import Finding, finding_of
from dsrun.refusals import Refusals
from dsrun.system import host
from dsrun.system.process.scratch import scratch_folder
from dsrun.system.terminal.display import size_text
from dsrun.system.variables import cache_root
from dsrun.wheel.compile.assemble import expected_code
from dsrun.wheel.compile.build_environment import WheelRequest, search_paths, unused_flags, without_flags
from dsrun.wheel.compile.compile_wheel import WheelBuild
from dsrun.wheel.compile.context import BuildContext, BuildDiagnostics, BuildOptions, detect_build_context
from dsrun.wheel.platform.arch import CudaArchs, env_value
from dsrun.wheel.platform.cpu import NATIVE, identity
from dsrun.wheel.platform.cxx import CompileProbe
from dsrun.wheel.platform.nvcc import prepare_home
from dsrun.wheel.platform.ops import DEEPSPEED, DeepspeedOp, choose_ops, missing, named_ops
from dsrun.wheel.platform.wheel_package import WheelPackage, wheel_package
from dsrun.wheel.select_source import SourceIdentity, identify_source, resolve_source


def jobs(cores: int, memory_bytes: int, each: int) -> int:
    """Compilers to run at once, at least 1, on `cores` cores with `memory_bytes` of free memory, of which one needs
    `each`. One nvcc must not compile for several GPUs at once (DS_NVCC_THREADS, --threads)."""
    return max(1, min(cores, memory_bytes // each))


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """The wheel to build, and what the user should know before it starts."""

    build: WheelBuild
    findings: tuple[Finding, ...] = ()
    origin: str = ""


def resolve(options: BuildOptions, environ: Mapping[str, str] = os.environ) -> BuildPlan:
    """Decide everything about the wheel that `options` ask for. Nothing is compiled beyond probes of a few lines.

    Raises UsageError, MissingError or ToolError in one line for whatever cannot be built."""
    diagnostics = BuildDiagnostics()
    package = wheel_package(options.package or DEEPSPEED)
    if package.name != DEEPSPEED and options.ops is not None:
        raise UsageError(f"--ops is for DeepSpeed, and {package.name} has no operations to choose", fix="leave it out")
    context = detect_build_context(options, environ, diagnostics)
    kind, archs = context.target.kind, context.target.archs
    if package.name == DEEPSPEED:
        source, chosen = _deepspeed(options, package, context, environ, diagnostics)
        named = named_ops(options.ops, kind, source.version)
    else:
        chosen = package.operations(kind, context.target.origin)
        named = frozenset(op.name for op in chosen)
        source = _identified(options.source, package, context, environ)
    ops = _without_too_new(chosen, archs, named, diagnostics)
    diagnostics.add(_remarks(options, environ, ops, context))
    cores, free = host.cores(), host.memory_available()
    each = package.job_bytes(kernels=any(op.code == "cuda" for op in ops))
    build = WheelBuild(
        request=_request(package, source, context, ops=ops, options=options, environ=environ),
        ops=ops,
        source=options.source,
        context=context,
        jobs=options.jobs or jobs(cores, free, each),
        why_jobs="--jobs" if options.jobs else f"{cores} cores, {size_text(free)} free, {size_text(each)} each",
    )
    return BuildPlan(build=build, findings=tuple(diagnostics.findings), origin=context.target.origin)


def _deepspeed(
    options: BuildOptions,
    package: WheelPackage,
    context: BuildContext,
    environ: Mapping[str, str],
    diagnostics: BuildDiagnostics,
) -> tuple[SourceIdentity, tuple[DeepspeedOp, ...]]:
    """DeepSpeed's source and the operations of --ops."""
    clean = without_flags(environ)
    source = _identified(options.source, package, context, environ)
    with _probe(context, clean) as probe:
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
    return source, ops


def _identified(
    text: str | None, package: WheelPackage, context: BuildContext, environ: Mapping[str, str]
) -> SourceIdentity:
    """What --source means; the version of a git address is known only once it is fetched."""
    found = identify_source(text, package)
    if found.version:
        return found
    cache, python = cache_root(environ) / "sdists", str(context.python)
    with scratch_folder("dsrun-source-") as folder:
        return resolve_source(text, Path(folder) / "source", cache=cache, name=package.name, python=python)


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
            row = "ops.too_new" if op.package == DEEPSPEED else "package.too_new"
            raise Refusals(__file__, "refusals.toml").error(row, op=op, archs=env_value(archs))
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
    package: WheelPackage,
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
        package=package.name,
        version=source.version,
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
