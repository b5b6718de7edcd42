"""From a request to a checked wheel: one build per operation side by side, merged into one file."""

import json
import os
import shutil
import sys
import threading
import time
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from dsrun.errors import ToolError
from dsrun.system.files import replacing
from dsrun.system.process.proc import run_foreground
from dsrun.system.variables import cache_root
from dsrun.wheel.cache import LOG_NAME, make_record, write_record
from dsrun.wheel.compile import parallel
from dsrun.wheel.compile.assemble import arch_flags, assemble, wrong_with_wheel
from dsrun.wheel.compile.build_environment import WheelRequest, build_environment
from dsrun.wheel.compile.context import BuildContext
from dsrun.wheel.compile.failure import check_executable, explained
from dsrun.wheel.compile.output import BuildEvent, BuildTracker, OnEvent, follow
from dsrun.wheel.compile.precompiled import launcher
from dsrun.wheel.compile.wrappers import compiler_environment, prefix_maps, write_nvcc_wrapper
from dsrun.wheel.platform.cxx import compiler_cache
from dsrun.wheel.platform.nvcc import prepare_home
from dsrun.wheel.platform.ops import DEEPSPEED, DeepspeedOp, links
from dsrun.wheel.platform.toolchain import cxx_standard
from dsrun.wheel.select_source import resolve_source
from dsrun.wheel.verify.contents import read_wheel

# What a PEP 517 front end calls for a project without a build backend of its own. Called directly, as pip would
# hold the output back, and is not there in an environment made by uv.
HOOK = "import sys; from setuptools.build_meta import __legacy__ as backend; backend.build_wheel(sys.argv[1])"
# setup.py compiles pin_memory with these whatever was asked: apart from them it would be compiled twice.
_TOGETHER = ("pin_memory", "async_io", "gds")
# Of an earlier build; the last comes with the sdist, and would stay if setup.py did not write it.
_LEFT_BEHIND = shutil.ignore_patterns(".git", "*.egg-info", "__pycache__", "git_version_info_installed.py")
# Compilers have nothing to save when they are told to end.
_GRACE_S = 3.0


@dataclass(frozen=True, kw_only=True)
class WheelBuild:
    """One wheel to build: the request, and what does not change the result."""

    request: WheelRequest
    ops: tuple[DeepspeedOp, ...]
    source: str | None
    """--source as given."""
    context: BuildContext
    jobs: int
    why_jobs: str
    """From what `jobs` follows, for the user."""


@dataclass(frozen=True, kw_only=True)
class CompileProcess:
    """One process of a build: what it compiles, where, with which command and environment; `key` names the part."""

    label: str
    key: str
    ops: tuple[DeepspeedOp, ...]
    tree: Path
    argv: tuple[str, ...]
    env: dict[str, str]


def group_ops(ops: Sequence[DeepspeedOp]) -> list[tuple[DeepspeedOp, ...]]:
    """Operations that must be compiled by one process: each by itself, but async_io and gds with pin_memory, and all
    extension modules of another package.

    Apart, because a builder that drops architectures writes the rest into TORCH_CUDA_ARCH_LIST for all that come
    after it, and because DeepSpeed compiles one operation after the other however many cores there are. Those that
    take longest come first."""
    if ops[0].package != DEEPSPEED:
        return [tuple(ops)]
    together = tuple(sorted((op for op in ops if op.name in _TOGETHER), key=lambda op: op.name))
    groups = [(op,) for op in ops if op.name not in _TOGETHER] + ([together] if together else [])
    return sorted(groups, key=lambda group: -sum(_weight(op, 3) for op in group))


def part_request(request: WheelRequest, group: Sequence[DeepspeedOp]) -> WheelRequest:
    """The request for a part: the same, with these operations alone."""
    return replace(request, ops=tuple(sorted(op.name for op in group)))


def plan_processes(
    build: WheelBuild, groups: Sequence[tuple[DeepspeedOp, ...]], folder: Path, environ: Mapping[str, str]
) -> tuple[list[CompileProcess], int]:
    """The processes to start and how many may run at once; each has a source tree of its own below `folder`.

    The compilers' wrappers, and where torch needs one a CUDA_HOME of links, are written there."""
    context = build.context
    labels = [_names(group) for group in groups]
    trees = [folder / "trees" / label for label in labels]  # setup.py writes into its own
    width = min(build.jobs, len(groups))
    # DeepSpeed's flags are what dsrun gives it.
    fixed = build.request.package != DEEPSPEED
    standard = cxx_standard(context.torch) if fixed else None
    cache = compiler_cache(environ)
    compilers = compiler_environment(
        folder / "bin",
        context.cxx,
        context.level,
        debug=build.request.symbols,
        # A compiler cache does not know precompiled headers.
        launcher=[str(cache)] if cache else launcher(folder / "headers", context.cxx.kind, processes=len(groups)),
        links=links(build.ops),
        standard=standard,
        # Not in CFLAGS: torch takes those apart at spaces.
        append=prefix_maps(folder, trees, context.torch.site_packages),
    )
    cuda_home = None
    if context.nvcc:
        cuda_home = prepare_home(context.nvcc, context.torch.site_packages, folder / "cuda", context.cxx)
        nvcc = write_nvcc_wrapper(
            folder / "bin/nvcc",
            context.nvcc,
            cuda_home / "bin/nvcc",
            trees=folder / "trees",
            cache=cache,
            debug=build.request.symbols,
            archs=arch_flags(build.request.archs, build.ops[0].lowest) if fixed else None,
            standard=standard,
        )
        compilers["PYTORCH_NVCC"] = str(nvcc)
    processes = []
    for label, group, tree in zip(labels, groups, trees, strict=True):
        env = build_environment(
            environ,
            build.request,
            python=context.python,
            compilers=compilers,
            cuda_home=cuda_home,
            ops=group,
            jobs=max(1, build.jobs // width),
            trees=folder / "trees",
        )
        argv = (str(context.python), "-c", HOOK, str(folder / "wheels" / label))
        key = part_request(build.request, group).key
        processes.append(CompileProcess(label=label, key=key, ops=group, tree=tree, argv=argv, env=env))
    return processes, width


def _weight(op: DeepspeedOp, archs: int) -> float:
    """Compile time relative to cpu_adam's (measured: fused_adam for three GPUs 1.5, async_io 1.5)."""
    if op.name in ("async_io", "gds"):
        return 1.5
    return 1.0 + 0.25 * archs if op.code == "cuda" else 1.0


@dataclass(frozen=True)
class WheelParts:
    """Compiled operations in the folder `root`, each a wheel KEY.whl: later builds take them from here."""

    root: Path
    reuse: bool = True

    def find(self, key: str) -> Path | None:
        """The part `key`; None when it is missing or damaged, or nothing is to be taken from here."""
        path = self.root / f"{key}.whl"
        with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
            if self.reuse and archive.testzip() is None:
                os.utime(path)  # it counts as used now
                return path
        return None

    def add(self, key: str, wheel: Path) -> None:
        """Keep `wheel` as the part `key`. Raises OSError."""
        self.root.mkdir(parents=True, exist_ok=True)
        with replacing(self.root / f"{key}.whl") as partial:
            shutil.copyfile(wheel, partial)


def build_wheel(
    build: WheelBuild, folder: Path, staged: Path, *, parts: WheelParts, environ: Mapping[str, str], on_event: OnEvent
) -> None:
    """Build the wheel in the empty `folder`, and put it with WHEEL.json and its log into `staged`.

    Operations that are among `parts` are not compiled again. `on_event` is called from another thread with every event.
    Raises ToolError in one line when a compiler fails or the wheel is not what was requested, OSError for files that
    cannot be written (`failure.explaining`), KeyboardInterrupt when it was stopped; no process is left behind."""
    began, started = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    keys = {group: part_request(build.request, group).key for group in group_ops(build.ops)}
    ready = {group: part for group, key in keys.items() if (part := parts.find(key))}
    log = staged / LOG_NAME
    log.write_text("".join(f"{_names(group)}\tcompiled before, for another wheel\n" for group in ready), "utf-8")
    processes, width = plan_processes(build, [group for group in keys if group not in ready], folder, environ)
    archs = len(build.request.archs.split(";"))  # the more there are, the longer kernels take
    tracker = BuildTracker(
        weights={process.label: sum(_weight(op, archs) for op in process.ops) for process in processes},
        libraries={process.label: len(process.ops) for process in processes},
    )
    for group in ready:
        on_event(BuildEvent(kind="reused", label=_names(group), name=_names(group)), tracker)
    if processes:
        _copy_sources(build, folder, processes, environ)
    prepared = time.monotonic()
    if processes:
        _compile(processes, width, log, folder=folder, tracker=tracker, on_event=on_event)
    compiled = time.monotonic()
    made = {process.ops: _only_wheel(Path(process.argv[-1])) for process in processes}
    wheel = assemble([(ready | made)[group] for group in keys], staged, build.request)
    report = read_wheel(wheel)
    wrong = wrong_with_wheel(report, build.request, build.ops)
    if wrong:
        raise ToolError(f"the wheel is not what was asked for: {'; '.join(wrong)}")
    for group, part in made.items():
        parts.add(keys[group], part)
    ended = time.monotonic()
    seconds = {
        "prepare": prepared - began, "compile": compiled - prepared, "check": ended - compiled, "total": ended - began,
    }  # fmt: skip
    record = make_record(build.request, report, seconds=seconds, by_process=tracker.seconds(), started=started)
    write_record(staged, record)


def _names(group: Sequence[DeepspeedOp]) -> str:
    return "+".join(op.name for op in group) if group[0].package == DEEPSPEED else group[0].package


def _copy_sources(
    build: WheelBuild, folder: Path, processes: Sequence[CompileProcess], environ: Mapping[str, str]
) -> None:
    check_executable(folder)
    source = resolve_source(
        build.source,
        folder / "source",
        cache=cache_root(environ) / "sdists",
        name=build.request.package,
        python=str(build.context.python),
    )
    if source.digest != build.request.source:
        raise ToolError("the source changed while it was being read", fix="start the build again")
    for process in processes:
        shutil.copytree(folder / "source", process.tree, symlinks=True, ignore=_LEFT_BEHIND)
        shutil.rmtree(process.tree / "build", ignore_errors=True)


def _only_wheel(folder: Path) -> Path:
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ToolError(f"the build succeeded but left {len(wheels)} wheels in {folder.name}")
    return wheels[0]


def _compile(
    processes: Sequence[CompileProcess],
    width: int,
    log: Path,
    *,
    folder: Path,
    tracker: BuildTracker,
    on_event: OnEvent,
) -> None:
    """Run all processes; ToolError names the first real error."""
    plan = folder / "plan.json"
    entries = [{"label": b.label, "argv": b.argv, "cwd": str(b.tree), "env": b.env} for b in processes]
    plan.write_text(json.dumps({"width": width, "builds": entries}), encoding="utf-8")
    for process in processes:
        Path(process.argv[-1]).mkdir(parents=True)
    argv = [sys.executable, "-I", parallel.__file__, str(plan)]
    code, codes = _run_builds(argv, log, tracker, on_event)
    if code:
        raise explained(log, codes, folder)


def _run_builds(argv: Sequence[str], log: Path, tracker: BuildTracker, on_event: OnEvent) -> tuple[int, dict[str, int]]:
    """Run the parallel builds; their exit code and those of the builds that ended by themselves."""
    codes: dict[str, int] = {}
    read, write = os.pipe()
    with os.fdopen(read, "rb") as lines, log.open("a", encoding="utf-8") as file:
        reader = threading.Thread(target=follow, args=(lines, file, tracker, on_event, codes), daemon=True)
        reader.start()
        try:
            code = run_foreground(argv, output=write, grace_s=_GRACE_S)
        finally:
            os.close(write)
            reader.join()
    return code, codes
