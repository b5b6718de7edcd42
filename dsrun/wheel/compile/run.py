"""From a request to a checked wheel: one build per operation side by side, merged into one file."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from dsrun.errors import ToolError
from dsrun.system.proc import STOP_SIGNALS, Family, run_foreground
from dsrun.wheel.cache import LOG_NAME, make_record, write_record
from dsrun.wheel.compile import parallel
from dsrun.wheel.compile.assemble import assemble, wrong_with_wheel
from dsrun.wheel.compile.environment import build_environment
from dsrun.wheel.compile.output import FULL, Tracker, Watch, first_failure, follow, split_line
from dsrun.wheel.select_source import resolve_source
from dsrun.wheel.target.cpu import compiler_environment
from dsrun.wheel.target.nvcc import prepare_home
from dsrun.wheel.target.ops import links
from dsrun.wheel.verify.contents import read_wheel

if TYPE_CHECKING:
    from dsrun.wheel.compile.environment import Request
    from dsrun.wheel.target.cxx import Cxx
    from dsrun.wheel.target.nvcc import Nvcc
    from dsrun.wheel.target.ops import Op

# What a PEP 517 front end calls for a project without a build backend of its own. Called directly, as pip would
# hold the output back, and is not there in an environment made by uv.
HOOK = "import sys; from setuptools.build_meta import __legacy__ as backend; backend.build_wheel(sys.argv[1])"
# setup.py compiles pin_memory with these whatever was asked: apart from them it would be compiled twice.
_TOGETHER = ("pin_memory", "async_io", "gds")
_GRACE_S = 3.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """A request and the means to build it: everything that does not change the result."""

    request: Request
    ops: tuple[Op, ...]
    table: tuple[Op, ...]
    deepspeed: str | None
    """--deepspeed as given."""
    sdists: Path
    """Where fetched sdists are kept."""
    python: Path
    cxx: Cxx
    compiler_cache: Path | None
    level: str
    nvcc: Nvcc | None
    site_packages: Path
    """Of torch, where parts of the CUDA toolkit may be."""
    jobs: int


@dataclass(frozen=True, kw_only=True)
class Build:
    """One process of a build: what it compiles, where, with which command and environment."""

    label: str
    ops: tuple[Op, ...]
    tree: Path
    argv: tuple[str, ...]
    env: dict[str, str]


def group_ops(ops: Sequence[Op]) -> list[tuple[Op, ...]]:
    """Operations that must be compiled by one process: each by itself, but async_io and gds with pin_memory.

    Apart, because a builder that drops architectures writes the rest into TORCH_CUDA_ARCH_LIST for all that come
    after it, and because DeepSpeed compiles one operation after the other however many cores there are. Those that
    take longest come first.
    """
    together = tuple(sorted((op for op in ops if op.name in _TOGETHER), key=lambda op: op.name))
    groups = [(op,) for op in ops if op.name not in _TOGETHER] + ([together] if together else [])
    return sorted(groups, key=lambda group: -sum(_weight(op, 3) for op in group))


def _label(group: Sequence[Op]) -> str:
    return "+".join(op.name for op in group)


def _tree(folder: Path, group: Sequence[Op]) -> Path:
    """The source tree of one build, as setup.py writes into its own."""
    return folder / "trees" / _label(group)


def plan_builds(job: Job, folder: Path, environ: Mapping[str, str]) -> tuple[list[Build], int]:
    """The processes to start and how many may run at once; each has a source tree of its own below `folder`.

    The compilers' wrappers, and where torch needs one a CUDA_HOME of links, are written there.
    """
    groups = group_ops(job.ops)
    width = min(job.jobs, len(groups))
    compilers = _compilers(job, folder)
    cuda_home = prepare_home(job.nvcc, job.site_packages, folder / "cuda", job.cxx) if job.nvcc else None
    builds = []
    for group in groups:
        label, tree = _label(group), _tree(folder, group)
        env = build_environment(
            environ,
            job.request,
            python=job.python,
            compilers=compilers,
            cuda_home=cuda_home,
            ops=group,
            table=job.table,
            jobs=max(1, job.jobs // width),
            tree=tree,
            cache=job.compiler_cache,
        )
        argv = (str(job.python), "-c", HOOK, str(folder / "wheels" / label))
        builds.append(Build(label=label, ops=group, tree=tree, argv=argv, env=env))
    return builds, width


def _compilers(job: Job, folder: Path) -> dict[str, str]:
    """Write the compilers' wrappers below `folder`; CXX and CC."""
    # Paths in __FILE__ and debug information would differ from one build folder to the next. Not in CFLAGS: torch
    # takes those apart at spaces.
    maps = [f"-ffile-prefix-map={_tree(folder, group)}=." for group in group_ops(job.ops)]
    return compiler_environment(
        folder / "bin",
        job.cxx,
        job.level,
        debug=job.request.symbols,
        cache=str(job.compiler_cache) if job.compiler_cache else None,
        links=links(job.ops),
        append=maps,
    )


def make_tracker(builds: Sequence[Build], request: Request) -> Tracker:
    """A tracker that expects kernels to take longer, the more so the more architectures there are."""
    archs = len(request.archs.split(";"))
    return Tracker(
        weights={build.label: sum(_weight(op, archs) for op in build.ops) for build in builds},
        libraries={build.label: len(build.ops) for build in builds},
    )


def _weight(op: Op, archs: int) -> float:
    """Compile time relative to cpu_adam's (measured: fused_adam for three GPUs 1.5, async_io 1.5)."""
    if op.name in ("async_io", "gds"):
        return 1.5
    return 1.0 + 0.25 * archs if op.code == "cuda" else 1.0


def build_wheel(
    job: Job, folder: Path, staged: Path, *, environ: Mapping[str, str], watch: Watch, failed_log: Path
) -> Path:
    """Build the wheel of `job` in the empty `folder`, and put it with WHEEL.json and its log into `staged`.

    `watch` is called from another thread with every event. Raises ToolError in one line when a compiler fails or the
    wheel is not what was asked for; the log is then in `failed_log`. KeyboardInterrupt when it was stopped; no process
    is left behind.
    """
    try:
        return _build(job, folder, staged, environ, watch)
    except ToolError as error:
        raise with_log(error, staged / LOG_NAME, failed_log) from error
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise disk_full(folder, error.strerror or "full") from error


def _build(job: Job, folder: Path, staged: Path, environ: Mapping[str, str], watch: Watch) -> Path:
    began, started = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    source = resolve_source(job.deepspeed, folder / "source", cache=job.sdists)
    if source.digest != job.request.source:
        raise ToolError("the DeepSpeed source changed while it was being read", fix="start the build again")
    builds, width = plan_builds(job, folder, environ)
    for build in builds:
        _copy_tree(source.folder, build.tree)
    tracker = make_tracker(builds, job.request)
    prepared = time.monotonic()
    _compile(builds, width, staged / LOG_NAME, folder=folder, tracker=tracker, watch=watch)
    compiled = time.monotonic()
    wheel = assemble([_only_wheel(folder / "wheels" / build.label) for build in builds], staged)
    report = read_wheel(wheel)
    wrong = wrong_with_wheel(report, job.request, job.ops)
    if wrong:
        raise ToolError(f"the wheel is not what was asked for: {'; '.join(wrong)}")
    seconds = {
        "prepare": prepared - began,
        "compile": compiled - prepared,
        "check": time.monotonic() - compiled,
        "total": time.monotonic() - began,
    }
    write_record(staged, make_record(job.request, report, seconds=seconds, by_build=tracker.seconds(), started=started))
    return wheel


def _copy_tree(source: Path, target: Path) -> None:
    """setup.py writes into its own tree, so that no two builds can share one; what an earlier build left is not taken.

    `deepspeed/git_version_info_installed.py` comes with the sdist and would stay if setup.py did not write it.
    """
    ignore = shutil.ignore_patterns(".git", "*.egg-info", "__pycache__", "git_version_info_installed.py")
    shutil.copytree(source, target, symlinks=True, ignore=ignore)
    shutil.rmtree(target / "build", ignore_errors=True)


def _only_wheel(folder: Path) -> Path:
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ToolError(f"the build ended well and left {len(wheels)} wheels in {folder.name}")
    return wheels[0]


def _compile(builds: Sequence[Build], width: int, log: Path, *, folder: Path, tracker: Tracker, watch: Watch) -> None:
    """Run all builds; ToolError names the first real error."""
    plan = folder / "plan.json"
    entries = [{"label": b.label, "argv": b.argv, "cwd": str(b.tree), "env": b.env} for b in builds]
    plan.write_text(json.dumps({"width": width, "builds": entries}), encoding="utf-8")
    for build in builds:
        Path(build.argv[-1]).mkdir(parents=True)
    argv = [sys.executable, "-I", parallel.__file__, str(plan)]
    code, codes = _run_builds(argv, log, tracker, watch)
    if code:
        raise explained(log, codes, folder)


def _run_builds(argv: Sequence[str], log: Path, tracker: Tracker, watch: Watch) -> tuple[int, dict[str, int]]:
    """Run the parallel builds; their exit code and those of the builds that ended by themselves."""
    stopped: list[int] = []
    codes: dict[str, int] = {}

    def stop(signum: int, family: Family) -> None:
        stopped.append(signum)
        family.signal_group(signal.SIGTERM)

    read, write = os.pipe()
    with os.fdopen(read, "rb") as lines, log.open("w", encoding="utf-8") as file:
        reader = threading.Thread(target=follow, args=(lines, file, tracker, watch, codes), daemon=True)
        reader.start()
        try:
            code = run_foreground(
                argv, on_signal=stop, forward=STOP_SIGNALS, stdout=write, stderr=write,
                grace_s=_GRACE_S, patience_s=_GRACE_S,
            )  # fmt: skip
        finally:
            os.close(write)
            reader.join()
    if stopped:
        raise KeyboardInterrupt
    return code, codes


def explained(log: Path, codes: dict[str, int], folder: Path) -> ToolError:
    """The one line a user needs of a failed build."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        failure = first_failure((split_line(line) for line in lines), codes)
    if "" in codes or (failure and failure.cause == "disk"):
        return disk_full(folder, failure.what if failure else os.strerror(errno.ENOSPC))
    if failure is None:
        label = next((label for label, code in codes.items() if code), "")
        return ToolError(f"the build of {label or 'the wheel'} failed without an error message")
    if failure.cause == "memory":
        return ToolError(
            f"the compiler of {failure.label} was killed, out of memory ({failure.what})",
            fix="compile one file at a time with --jobs 1, or free some memory",
        )
    tree = f"{folder / 'trees' / failure.label}/"
    return ToolError(f"{failure.label}: {failure.sentence.replace(tree, '')}")


def disk_full(folder: Path, why: str) -> ToolError:
    """The error for a build in `folder` that had no room."""
    return ToolError(
        f"no space left on the disk of {folder.parent} or of the store: {why}",
        fix="make room, or point TMPDIR and DSRUN_CACHE to another disk",
    )


def with_log(error: ToolError, log: Path, kept: Path) -> ToolError:
    """`error`, with where the whole output is."""
    if not log.is_file():
        return error
    try:
        shutil.copyfile(log, kept)
    except OSError:
        return error
    where = f"the whole output: {kept}"
    return ToolError(error.message, fix=f"{error.fix}; {where}" if error.fix else where)
