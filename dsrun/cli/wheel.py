"""`dsrun wheel push`: one wheel on every node of a cluster, installed and smoke-tested there."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from dsrun.errors import EXIT_FINDINGS, UsageError

if TYPE_CHECKING:
    from dsrun.findings import Finding
    from dsrun.wheel.verify.nodes import NodeReport

FORMAT_VERSION = 1


@click.group(
    name="wheel",
    invoke_without_command=True,  # click's own answer to a bare `dsrun wheel` is its help as an error of ten lines
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.pass_context
def command(context: click.Context) -> None:
    """Put a wheel on the nodes of a cluster."""
    if context.invoked_subcommand is None:
        raise UsageError("`dsrun wheel` does nothing by itself", fix="dsrun wheel push FILE")


@command.command(name="push", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--nodes", metavar="LIST", help="gpu[01-04],login.  [default: those of the SLURM allocation]")
@click.option("--hostfile", type=click.Path(path_type=Path), metavar="FILE", help="Nodes, as DeepSpeed reads them.")
@click.option("--python", metavar="PATH", help="Interpreter of the environment there.  [default: this one's path]")
@click.option("--to", "folder", metavar="DIR", help="Folder for the wheel.  [default: /tmp/dsrun-wheels-USER]")
@click.option("--via", type=click.Choice(["srun", "ssh"]), help="How to reach the nodes.  [default: srun in SLURM]")
@click.option("--at-once", type=click.IntRange(min=1), default=16, show_default=True, help="Nodes at a time.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--debug", is_flag=True, hidden=True)
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
    debug: bool,
) -> int:
    """Copy FILE to the local disk of every node, install it with --no-deps and run each operation once.

    Exit code 3 when a node fails, or two nodes differ in Python, torch, driver or GPU.
    """
    del debug
    from dsrun.wheel.verify.check import differences, examine
    from dsrun.wheel.verify.nodes import NodeTask, default_folder, nodes_meant, push

    report, findings = examine(file)
    meant = nodes_meant(nodes, hostfile, os.environ, via)
    if any(each.level == "error" for each in findings):
        _print([], findings, form, file.name)  # a damaged wheel is not sent anywhere
        return EXIT_FINDINGS
    task = NodeTask(report=report, python=python or sys.executable, folder=folder or default_folder())
    reports = push(meant, task, at_once=at_once)
    findings += differences(reports)
    _print(reports, findings, form, file.name)
    wrong = any(each.level == "error" for each in findings) or any(each.failed for each in reports)
    return EXIT_FINDINGS if wrong else 0


def _print(reports: list[NodeReport], findings: list[Finding], form: str, name: str) -> None:
    if form == "json":
        click.echo(json.dumps(as_json(reports, findings), indent=2, ensure_ascii=False))
        return
    from dsrun.wheel.verify.check import finding_lines, rows, table

    if reports:
        for line in table(rows(reports)):
            click.echo(line)
        click.echo()
    for line in finding_lines([*(each for report in reports for each in report.findings), *findings], name):
        click.echo(line)


def as_json(reports: list[NodeReport], findings: list[Finding]) -> dict[str, Any]:
    """The content of `--format json`; docs/wheels.md describes it. `findings` are about the wheel or all nodes."""
    return {
        "version": FORMAT_VERSION,
        "nodes": [each.as_dict() for each in reports],
        "findings": [each.as_dict() for each in findings],
    }
