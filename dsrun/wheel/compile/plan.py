"""From options and this machine to the wheels to build: what cannot be built is rejected before compiling."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dsrun.errors import UsageError
from dsrun.system import host
from dsrun.system.variables import cache_root
from dsrun.wheel.compile.assemble import expected_code
from dsrun.wheel.compile.context import BuildContext, BuildOptions, Diagnostics, detect_build_context
from dsrun.wheel.compile.environment import Request, search_paths, unused_flags, without_flags
from dsrun.wheel.compile.run import WheelBuild
from dsrun.wheel.select_source import SourceIdentity, identify_source, resolve_source
from dsrun.wheel.target.arch import Archs, env_value, split_archs
from dsrun.wheel.target.cpu import NATIVE, identity
from dsrun.wheel.target.cxx import Probe
from dsrun.wheel.target.nvcc import prepare_home
from dsrun.wheel.target.ops import Op, choose_ops, missing, named_ops

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


# Compiled with BF16_AVAILABLE only when no architecture of the list is below 8.0 (CUDAOpBuilder.builder() and the uses
# of the macro under csrc/ and deepspeed/inference/v2/).
_USE_BF16 = frozenset(
    [
        "quantizer",
        "fp_quantizer",
        "transformer_inference",
        "inference_core_ops",
        "ragged_ops",
        "ragged_device_ops",
        "cutlass_ops",
    ]
)


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """The wheels to build, and what the user should know before it starts."""

    builds: tuple[WheelBuild, ...]
    notices: tuple[str, ...] = ()
    origin: str = ""


def resolve(options: BuildOptions, environ: Mapping[str, str] = os.environ) -> BuildPlan:
    """Decide everything about the wheels that `options` ask for. Nothing is compiled beyond probes of a few lines.

    Raises UsageError, MissingError or ToolError in one line for whatever cannot be built.
    """
    diagnostics = Diagnostics()
    clean = without_flags(environ)
    context = detect_build_context(options, environ, diagnostics)
    with _identified(options.deepspeed, environ) as source, _probe(context, clean) as probe:
        ops, notices = choose_ops(
            options.ops,
            context.target.kind,
            available=probe.available,
            version=source.version,
            patched=bool(source.label),
            cuda=context.torch.cuda,
        )
        diagnostics.notices += notices
        diagnostics.add(missing(ops, probe.available, cuda=context.torch.cuda, environ=clean))
    named = named_ops(options.ops, context.target.kind, source.version)
    ops = _without_too_new(ops, context.target.archs, named, diagnostics)
    diagnostics.notices += _notices(options, environ, ops, context)
    cuda = context.target.kind == "cuda"
    parts = split_archs(context.target.archs) if options.split and cuda else (context.target.archs,)
    wheels = [(archs, _of_part(ops, archs, diagnostics)) for archs in parts]
    kernels = any(op.code == "cuda" for op in ops)
    builds = [
        WheelBuild(
            request=_request(source, context, archs=archs, ops=held, options=options, environ=environ),
            ops=held,
            deepspeed=options.deepspeed,
            context=context,
            jobs=options.jobs or jobs(host.cores(), host.memory_available(), kernels),
        )
        for archs, held in wheels
    ]
    return BuildPlan(builds=tuple(builds), notices=tuple(diagnostics.notices), origin=context.target.origin)


@contextmanager
def _identified(text: str | None, environ: Mapping[str, str]) -> Iterator[SourceIdentity]:
    """What --deepspeed means; the version of a git address is known only once it is fetched."""
    found = identify_source(text)
    if found.version:
        yield found
        return
    with tempfile.TemporaryDirectory(prefix="dsrun-source-") as folder:
        yield resolve_source(text, Path(folder) / "source", cache=cache_root(environ) / "sdists")


@contextmanager
def _probe(context: BuildContext, environ: Mapping[str, str]) -> Iterator[Probe]:
    """Looks for headers and libraries with what the build will use."""
    with tempfile.TemporaryDirectory(prefix="dsrun-probe-") as folder:
        home = None
        if context.nvcc:
            home = prepare_home(context.nvcc, context.torch.site_packages, Path(folder) / "cuda", context.cxx)
        yield Probe(cxx=context.cxx, home=home, python=str(context.python), environ=environ)


def _with_code(op: Op, archs: Archs) -> bool:
    """Whether the operation's own builder keeps any of `archs`; without one it would fail after the others."""
    return not archs or op.lowest is None or bool(expected_code(env_value(archs), op.lowest)[0])


def _without_too_new(
    ops: Sequence[Op], archs: Archs, named: Collection[str], diagnostics: Diagnostics
) -> tuple[Op, ...]:
    """`ops` without those for newer GPUs than all of `archs`; such an operation named in --ops is an error."""
    for op in ops:
        if _with_code(op, archs):
            continue
        if op.name in named:
            raise UsageError(
                f"{op.name} is for GPUs of compute capability {op.lowest} and above, and --arch is {env_value(archs)}",
                fix=f"--ops …,-{op.name} leaves it out",
            )
        diagnostics.notices.append(
            f"left out: {op.name}, because it is for GPUs of compute capability {op.lowest} and above"
        )
    return tuple(op for op in ops if _with_code(op, archs))


def _of_part(ops: Sequence[Op], archs: Archs, diagnostics: Diagnostics) -> tuple[Op, ...]:
    """Those of `ops` that the wheel for `archs`, one of two, contains."""
    kept = tuple(op for op in ops if _with_code(op, archs))
    if not kept:
        raise UsageError(f"--ops and --split leave no operation for {env_value(archs)}", fix="take it out of --arch")
    diagnostics.notices += [
        f"the wheel for {env_value(archs)} is without {op.name}, which is for {op.lowest} and above"
        for op in ops
        if op not in kept
    ]
    return kept


def _notices(options: BuildOptions, environ: Mapping[str, str], ops: Sequence[Op], context: BuildContext) -> list[str]:
    notices = []
    unused = unused_flags(environ)
    if unused:
        notices.append(f"{', '.join(unused)} in the environment: not used for this build")
    if context.level == NATIVE and options.cpu is None:
        notices.append("the CPU operations are compiled for this machine's own processor: no level is known for it")
    if context.target.kind != "cuda":
        return notices
    value = env_value(context.target.archs)
    for op in ops:
        if op.lowest and expected_code(value, op.lowest) != expected_code(value, None):
            notices.append(f"{op.name} gets no code below {op.lowest}: DeepSpeed's builder leaves it out")
    affected = [op.name for op in ops if op.name in _USE_BF16]
    if affected and not options.split and len(split_archs(context.target.archs)) > 1:
        notices.append(
            f"an architecture below 8.0 switches bf16 off in {', '.join(affected)} for all GPUs; "
            "--split builds two wheels instead"
        )
    return notices


def _request(
    source: SourceIdentity,
    context: BuildContext,
    *,
    archs: Archs,
    ops: Sequence[Op],
    options: BuildOptions,
    environ: Mapping[str, str],
) -> Request:
    on_gpu = context.target.kind == "cuda"
    libc = " ".join(filter(None, platform.libc_ver()))
    return Request(
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
        archs=env_value(archs) if on_gpu else "",
        ops=tuple(sorted(op.name for op in ops)),
        cpu=identity(context.level),
        compiler=f"{context.cxx.kind} {context.cxx.version}",
        symbols=options.symbols,
        environment=search_paths(environ),
    )
