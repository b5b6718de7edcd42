"""`dsrun verify-wheel` and `dsrun wheel push`: what a wheel holds, and whether it runs here or on other nodes."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from dsrun.cli.output import print_findings, print_json, print_line, print_table, refusal
from dsrun.errors import EXIT_FINDINGS, EXIT_INTERRUPTED, UsageError
from dsrun.findings.finding import Finding, has_errors
from dsrun.hardware.cluster_gpus import cluster_gpus
from dsrun.system.process.proc import interrupted_by_stop_signals
from dsrun.wheel.platform.arch import parse_archs
from dsrun.wheel.verify import wheel_check
from dsrun.wheel.verify.nodes import NodeReport, NodeTask, default_folder, push, verify_on
from dsrun.wheel.verify.probed_machine import WheelGpu, gpus_for
from dsrun.wheel.verify.remote import NodePool, nodes_meant


def verify(*, file: Path, on: str | None, target: str | None, python: str | None, prove: bool, form: str) -> int:
    interpreter = python or sys.executable
    if on:
        return _on_nodes(file, on, interpreter, form)
    if shutil.which(interpreter) is None:
        raise refusal("verify_wheel.python", python=interpreter)
    if target is None:
        done = wheel_check.verify_here(file, python=interpreter, prove=prove)
    else:
        done = wheel_check.verify_for(file, target_gpus(target))
    _print_verification(done, [], form)
    return EXIT_FINDINGS if done.failed else 0


def target_gpus(text: str) -> tuple[WheelGpu, ...]:
    """The GPUs of `--for`: those of the SLURM cluster for "slurm", else a list as `build-wheel --arch` takes it."""
    name = text.strip().lower()
    if name in ("auto", "cpu", "native"):
        raise UsageError(f"--for {text} names no GPU", fix="name GPUs: --for a100,h100, or remove it for this machine")
    if name != "slurm":
        return gpus_for(arch.capability for arch in parse_archs(text, "--for"))
    found = cluster_gpus()
    if not found:
        raise UsageError("--for slurm: SLURM shows no GPUs here", fix="name them: --for a100,h100")
    unknown = [str(each) for each in found if each.capability is None]
    if unknown:
        raise UsageError(f"--for slurm: {', '.join(unknown)} may be any GPU", fix="name them: --for a100,h100")
    return gpus_for(sorted({each.capability for each in found if each.capability}))


def _on_nodes(file: Path, text: str, python: str, form: str) -> int:
    report, findings = wheel_check.examine(file)
    nodes, pool = nodes_meant(text, None, os.environ), NodePool()
    with interrupted_by_stop_signals():
        reports = verify_on(nodes, report, python, pool)
    findings += [each for node in reports for each in node.findings]
    done = wheel_check.WheelVerification(report=report, findings=tuple(findings))
    _print_verification(done, reports, form)
    if pool.stopped:
        return EXIT_INTERRUPTED
    return EXIT_FINDINGS if done.failed else 0


def _print_verification(done: wheel_check.WheelVerification, reports: list[NodeReport], form: str) -> None:
    if form == "json":
        facts = {"wheel": done.report, "machine": done.machine, "operations": done.op_results}
        print_json({**facts, "nodes": reports, "findings": done.findings})
        return
    for line in wheel_check.report_lines(done, reports):
        print_line(line)
    print_findings(done.findings, total=done.report.path.name)


def push_to_nodes(*, file: Path, at_once: int, form: str, **given: Any) -> int:
    report, findings = wheel_check.examine(file)
    if not report.is_known:
        why = "is not a wheel of DeepSpeed, nor one that dsrun built"
        raise UsageError(f"{file.name} {why}", fix="install it with pip on the nodes")
    meant, pool = nodes_meant(given["nodes"], given["hostfile"], os.environ, given["via"]), NodePool(at_once=at_once)
    if has_errors(findings):
        _print_push([], findings, form, file.name)  # a damaged wheel is not sent anywhere
        return EXIT_FINDINGS
    python, folder = given["python"] or sys.executable, given["folder"] or default_folder()
    task = NodeTask(report=report, python=python, folder=folder, force=given["force"])
    with interrupted_by_stop_signals():
        reports = push(meant, task, pool)
    findings += wheel_check.differences(reports)
    _print_push(reports, findings, form, file.name)
    if pool.stopped:
        return EXIT_INTERRUPTED
    wrong = has_errors(findings) or any(each.failed for each in reports)
    return EXIT_FINDINGS if wrong else 0


def _print_push(reports: list[NodeReport], findings: list[Finding], form: str, name: str) -> None:
    if form == "json":
        print_json({"nodes": reports, "findings": findings})
        return
    if reports:
        print_table(wheel_check.rows(reports))
        click.echo()
    print_findings([*(each for report in reports for each in report.findings), *findings], total=name)
