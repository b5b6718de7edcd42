"""`dsrun verify-wheel` and `dsrun wheel push`: what a wheel holds, and whether it runs here or on other nodes."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from dsrun.cli.options import DEBUG, FORMAT
from dsrun.cli.output import print_json
from dsrun.errors import EXIT_FINDINGS, UsageError

if TYPE_CHECKING:
    from dsrun.findings import Finding
    from dsrun.wheel.verify.check import Verification
    from dsrun.wheel.verify.machine import Gpu
    from dsrun.wheel.verify.nodes import NodeReport


@click.command(name="verify-wheel")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--on", metavar="NODE-LIST", help="run it on these nodes, over srun or ssh: gpu[01-04],login")
@click.option("--for", "target", metavar="LIST", help="compare with these GPUs, or slurm: a100,h100 or 8.0;9.0")
@click.option("--python", metavar="PATH", help="interpreter of the environment to check  [default: this one]")
@click.option("--prove/--no-prove", default=True, show_default=True, help="load its operations and run each once")
@FORMAT
@DEBUG
def verify_command(
    *, file: Path, on: str | None, target: str | None, python: str | None, prove: bool, form: str
) -> int:
    """Read a DeepSpeed wheel and compare it with this machine, with other GPUs (--for) or other nodes (--on).

    Reading needs neither CUDA nor torch. If torch is installed, the wheel is installed into a temporary folder and
    every operation runs once. The exit code is 3 if there are errors.
    """
    from dsrun.wheel.verify.check import verify_for, verify_here

    if on == "" or target == "":
        raise UsageError(f"{'--on' if on == '' else '--for'} is empty", fix="name nodes or GPUs, or remove it")
    if on and target:
        raise UsageError("--on and --for do not go together", fix="nodes have their own GPUs")
    interpreter = python or sys.executable
    if on:
        return _on_nodes(file, on, interpreter, form)
    if shutil.which(interpreter) is None:
        raise UsageError(
            f"--python {interpreter} is not a program", fix="give the path of the environment's bin/python"
        )
    gpus = target_gpus(target) if target is not None else None
    done = verify_for(file, gpus) if gpus else verify_here(file, python=interpreter, prove=prove)
    _print_verification(done, [], form)
    return EXIT_FINDINGS if done.failed else 0


def target_gpus(text: str) -> tuple[Gpu, ...]:
    """The GPUs of `--for`: those of the SLURM cluster for "slurm", else a list as `build-wheel --arch` takes it."""
    from dsrun.wheel.target.arch import parse_archs
    from dsrun.wheel.verify.machine import gpus_for

    word = text.strip().lower()
    if word in ("auto", "cpu", "native"):
        raise UsageError(f"--for {text} names no GPU", fix="name GPUs: --for a100,h100, or remove it for this machine")
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
    _print_verification(done, reports, form)
    return EXIT_FINDINGS if done.failed else 0


def _print_verification(done: Verification, reports: list[NodeReport], form: str) -> None:
    from dsrun.wheel.verify.check import report_lines

    if form == "json":
        print_json(verification_json(done, reports))
        return
    for line in report_lines(done, reports):
        click.echo(line)


def verification_json(done: Verification, reports: list[NodeReport]) -> dict[str, Any]:
    """The content of `dsrun verify-wheel --format json`; docs/wheels.md describes it."""
    return {
        "wheel": asdict(done.report) | {"path": str(done.report.path)},
        "machine": done.machine.as_dict() if done.machine else None,
        "operations": [asdict(op_result) for op_result in done.op_results],
        "nodes": [each.as_dict() for each in reports],
        "findings": [each.as_dict() for each in done.findings],
    }


@click.group(name="wheel", invoke_without_command=True)  # Otherwise click prints the help as an error of ten lines.
@click.pass_context
def command(context: click.Context) -> None:
    """Put a wheel on the nodes of a cluster."""
    if context.invoked_subcommand is None:
        raise UsageError("`dsrun wheel` needs a command", fix="dsrun wheel push FILE")


@command.command(name="push")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--nodes", metavar="LIST", help="gpu[01-04],login  [default: those of the SLURM allocation]")
@click.option("--hostfile", type=click.Path(path_type=Path), metavar="FILE", help="nodes, in DeepSpeed's format")
@click.option("--python", metavar="PATH", help="interpreter of the environment there  [default: this one's path]")
@click.option("--to", "folder", metavar="DIR", help="folder for the wheel  [default: /tmp/dsrun-wheels-USER]")
@click.option("--via", type=click.Choice(["srun", "ssh"]), help="how to reach the nodes  [default: srun in SLURM]")
@click.option("--at-once", type=click.IntRange(min=1), default=16, show_default=True, help="nodes at a time")
@FORMAT
@DEBUG
def push_command(
    *,
    file: Path,
    nodes: str | None,
    hostfile: Path | None,
    python: str | None,
    folder: str | None,
    via: Literal["srun", "ssh"] | None,
    at_once: int,
    form: str,
) -> int:
    """Copy FILE to the local disk of every node, install it with --no-deps and run each operation once.

    Exit code 3 when a node fails, or two nodes differ in Python, torch, driver or GPU.
    """
    from dsrun.wheel.verify.check import differences, examine
    from dsrun.wheel.verify.nodes import NodeTask, default_folder, nodes_meant, push

    report, findings = examine(file)
    meant = nodes_meant(nodes, hostfile, os.environ, via)
    if any(each.level == "error" for each in findings):
        _print_push([], findings, form, file.name)  # a damaged wheel is not sent anywhere
        return EXIT_FINDINGS
    task = NodeTask(report=report, python=python or sys.executable, folder=folder or default_folder())
    reports = push(meant, task, at_once=at_once)
    findings += differences(reports)
    _print_push(reports, findings, form, file.name)
    wrong = any(each.level == "error" for each in findings) or any(each.failed for each in reports)
    return EXIT_FINDINGS if wrong else 0


def _print_push(reports: list[NodeReport], findings: list[Finding], form: str, name: str) -> None:
    if form == "json":
        nodes = [each.as_dict() for each in reports]
        print_json({"nodes": nodes, "findings": [each.as_dict() for each in findings]})
        return
    from dsrun.wheel.verify.check import finding_lines, rows, table

    if reports:
        for line in table(rows(reports)):
            click.echo(line)
        click.echo()
    for line in finding_lines([*(each for report in reports for each in report.findings), *findings], name):
        click.echo(line)
