"""`dsrun build-wheel`: compile a package for these GPUs and show the progress, or take the wheel from the cache."""

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from dsrun.cli.output import print_advice, print_json, refusal
from dsrun.errors import UsageError
from dsrun.system.files import sha256_of
from dsrun.system.process.proc import interrupted_by_stop_signals
from dsrun.system.terminal.display import duration
from dsrun.system.terminal.status_line import status
from dsrun.system.terminal.stderr import print_detail, print_note
from dsrun.system.variables import cache_root
from dsrun.wheel.cache import WheelCache, copy_out
from dsrun.wheel.compile.cached import cached_build
from dsrun.wheel.compile.compile_wheel import WheelBuild, WheelParts
from dsrun.wheel.compile.context import BuildOptions
from dsrun.wheel.compile.output import BuildEvent, BuildTracker
from dsrun.wheel.compile.plan import BuildPlan, resolve
from dsrun.wheel.compile.script import build_script
from dsrun.wheel.platform.wheel_package import wheel_package


def build(
    *, output: str | None, find_links: tuple[str, ...], keep: bool, force: bool, dry_run: bool, form: str, **given: Any
) -> int:
    """The callback of `dsrun build-wheel`."""
    for name, value in {**given, "output": output}.items():
        # An unset variable of a script must not start an hour of the default build.
        if isinstance(value, str) and not value.strip():
            flag = {"package": "PACKAGE", "source": "--source or --deepspeed"}.get(name, f"--{name}")
            raise UsageError(f"{flag} is empty", fix="give it a value, or remove it")
    if output is not None:
        _refuse_unwritable(Path(output))
    with interrupted_by_stop_signals():
        with status("looking at torch, the compilers and the GPUs"):
            plan = resolve(BuildOptions(**given))
        print_advice(plan.findings)
        _print_request(plan.build, plan.origin)
        cache = WheelCache(cache_root() / "wheels")
        if dry_run:
            _print_script(plan, cache, form)
            return 0
        stored = _find_or_build(plan.build, cache, find_links=find_links, force=force, keep=keep)
        wheel = stored if output is None else copy_out(stored, Path(output), force=force)
    if form == "json":
        facts = {"wheel": str(wheel), "sha256": sha256_of(wheel), "size": wheel.stat().st_size}
        print_json({**facts, **_described(plan)})
    else:
        click.echo(wheel)
    return 0


def _described(plan: BuildPlan) -> dict[str, Any]:
    request = plan.build.request
    return {"key": request.key, "inputs": request, "findings": plan.findings}


def _refuse_unwritable(output: Path) -> None:
    """Check -o before the build. Nothing is created yet: the build may fail."""
    there = output
    try:
        # The part of the path that exists: the rest is created below it, which a dangling link prevents.
        there = next(each for each in (output, *output.absolute().parents) if each.exists() or each.is_symlink())
        # os.access alone is true of /proc for root; a folder that is to be made there cannot be.
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        why = error.strerror or error
        raise refusal("build_wheel.output", output=output, there=there, why=why) from None


def _print_request(build: WheelBuild, origin: str) -> None:
    request = build.request
    what = f"GPUs {request.archs} with CUDA {request.nvcc}" if request.archs else "CPUs only"
    print_detail(
        f"{wheel_package(request.package).title} {request.full_version} for {what} ({origin}), torch {request.torch}, "
        f"{request.cpu}, {request.compiler}: {', '.join(request.ops)}"
    )


def _find_or_build(build: WheelBuild, cache: WheelCache, *, find_links: Sequence[str], force: bool, keep: bool) -> Path:
    found = None if force else cache.find(build.request.key)
    if found:
        return found
    print_detail(f"compiling with {build.jobs} {'job' if build.jobs == 1 else 'jobs'} ({build.why_jobs})")
    with status("compiling"):
        given: dict[str, Any] = {"find_links": find_links, "force": force, "keep": keep}
        return cached_build(build, cache, environ=os.environ, notify=print_note, on_event=_print_progress, **given)


def _print_script(plan: BuildPlan, cache: WheelCache, form: str) -> None:
    build = plan.build
    again = [argument for argument in sys.argv[1:] if argument != "--dry-run"]
    parts = WheelParts(cache.root / "parts")
    script = build_script(build, parts, os.environ, [sys.executable, "-m", "dsrun", *again])
    if form == "json":
        print_json({"script": script, **_described(plan)})
    else:
        click.echo(script)
    stored = cache.find(build.request.key)
    print_note(f"already cached: {stored}" if stored else f"would be cached in {cache.folder(build.request.key)}")


def _print_progress(event: BuildEvent, tracker: BuildTracker) -> None:
    text = line_of(event, tracker, time.monotonic())
    if text:
        print_detail(text)


def line_of(event: BuildEvent, tracker: BuildTracker, now: float) -> str | None:
    """The line for an event; None for an event without one."""
    if event.kind == "reused":
        return f"{event.label}: compiled before, for another wheel"
    if event.kind == "library":
        return f"{event.name}: compiling"
    if event.kind == "file":
        file = f", {event.file}" if event.file else ""
        text = f"{event.label}: {event.done} of {event.total} files{file}"
    elif event.kind == "end" and event.code == 0:
        text = f"{event.label}: done in {duration(tracker.seconds()[event.label])}"
    else:
        return f"{event.label}: failed" if event.kind == "end" else None
    left = tracker.left(now)
    return f"{text}; about {duration(left)} left" if left else text
