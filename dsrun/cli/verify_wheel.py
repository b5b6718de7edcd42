"""`dsrun verify-wheel`: which operations and GPUs a wheel serves, and whether it runs here or on other nodes."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsrun.errors import EXIT_FINDINGS, UsageError

if TYPE_CHECKING:
    from dsrun.wheel.verify.check import Verification
    from dsrun.wheel.verify.machine import Gpu
    from dsrun.wheel.verify.nodes import NodeReport

FORMAT_VERSION = 1


@click.command(name="verify-wheel", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--on", metavar="NODE-LIST", help="Try it on these nodes, over srun or ssh: gpu[01-04],login.")
@click.option("--for", "target", metavar="LIST", help="Compare with these GPUs, or slurm: a100,h100 or 8.0;9.0.")
@click.option("--python", metavar="PATH", help="Interpreter of the environment meant.  [default: this one]")
@click.option("--prove/--no-prove", default=True, show_default=True, help="Load its operations and run each once.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--debug", is_flag=True, hidden=True)
def command(
    *, file: Path, on: str | None, target: str | None, python: str | None, prove: bool, form: str, debug: bool
) -> int:
    """Read a DeepSpeed wheel and compare it with this machine, with other GPUs (--for) or other nodes (--on).

    Neither CUDA nor torch is needed to read it. With torch here, the wheel is installed into a folder of its own and
    every operation runs once. Exit code 3 when something is wrong.
    """
    del debug
    from dsrun.wheel.verify.check import verify_for, verify_here

    if on == "" or target == "":
        raise UsageError(f"{'--on' if on == '' else '--for'} is empty", fix="name nodes or GPUs, or leave it out")
    if on and target:
        raise UsageError("--on and --for do not go together", fix="nodes have their own GPUs")
    interpreter = python or sys.executable
    if on:
        return _on_nodes(file, on, interpreter, form)
    if shutil.which(interpreter) is None:
        raise UsageError(f"--python {interpreter} is no program", fix="give the path of the environment's bin/python")
    gpus = gpus_meant(target) if target is not None else None
    done = verify_for(file, gpus) if gpus else verify_here(file, python=interpreter, prove=prove)
    _print(done, [], form)
    return EXIT_FINDINGS if done.failed else 0


def gpus_meant(text: str) -> tuple[Gpu, ...]:
    """The GPUs of `--for`: those of the SLURM cluster for "slurm", else a list as `build-wheel --arch` takes it."""
    from dsrun.wheel.target.arch import parse_archs
    from dsrun.wheel.verify.machine import gpus_for

    word = text.strip().lower()
    if word in ("auto", "cpu", "native"):
        raise UsageError(
            f"--for {text} names no GPU", fix="name GPUs: --for a100,h100, or leave it out for this machine"
        )
    if word != "slurm":
        return gpus_for(arch.capability for arch in parse_archs(text, "--for"))
    from dsrun.hardware.gres import cluster_gpus

    found = cluster_gpus()
    if not found:
        raise UsageError("--for slurm: SLURM shows no GPUs here", fix="name them: --for a100,h100")
    unknown = [str(each) for each in found if each.capability is None]
    if unknown:
        raise UsageError(f"--for slurm: {', '.join(unknown)} may be any GPU", fix="name them: --for a100,h100")
    return gpus_for(sorted({each.capability for each in found if each.capability}))


def _on_nodes(file: Path, text: str, python: str, form: str) -> int:
    from functools import partial

    from dsrun.wheel.verify.check import Verification, examine
    from dsrun.wheel.verify.nodes import map_nodes, nodes_meant, run_temporary, temporary_task

    report, findings = examine(file)
    nodes = nodes_meant(text, None, os.environ)
    reports = map_nodes(nodes, partial(run_temporary, task=temporary_task(report, python)))
    every = (*findings, *(each for node in reports for each in node.findings))
    done = Verification(report=report, findings=every)
    _print(done, reports, form)
    return EXIT_FINDINGS if done.failed else 0


def _print(done: Verification, reports: list[NodeReport], form: str) -> None:
    if form == "json":
        click.echo(json.dumps(as_json(done, reports), indent=2, ensure_ascii=False))
        return
    from dsrun.wheel.verify.check import report_lines

    for line in report_lines(done, reports):
        click.echo(line)


def as_json(done: Verification, reports: list[NodeReport]) -> dict[str, Any]:
    """The content of `--format json`; docs/wheels.md describes it."""
    from dsrun.wheel.verify.check import report_dict

    return {
        "version": FORMAT_VERSION,
        "wheel": report_dict(done.report),
        "machine": done.machine.as_dict() if done.machine else None,
        "operations": [op_result.as_dict() for op_result in done.op_results],
        "nodes": [each.as_dict() for each in reports],
        "findings": [each.as_dict() for each in done.findings],
    }
