"""A wheel on other machines: compared, copied there, installed and smoke-tested, one node or many at a time."""

import getpass
import json
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from dsrun.errors import DsrunError, ToolError
from dsrun.findings.finding import Finding, has_errors
from dsrun.wheel.verify import install_wheel, wheel_check
from dsrun.wheel.verify.compatibility import compare
from dsrun.wheel.verify.contents import WheelReport
from dsrun.wheel.verify.probed_machine import PROBE, ProbedMachine, machine_from
from dsrun.wheel.verify.remote import NodePool, ProgramInterrupted, RemoteNode

INSTALL = Path(install_wheel.__file__)
_COPY_SECONDS = 1800
_INSTALL_SECONDS = 600
_SHORT_SECONDS = 120
_NEEDS_FILE = "needs file"
# What lies there is installed and run, so nobody else may write into it.
_MAKE_FOLDER = 'umask 077; mkdir -p "$1"'


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """The result on one node.

    `installed`: "installed", "repaired", "already there", or None when that step was not reached. `stopped`: Ctrl-C
    came before its end."""

    node: str
    installed: str | None = None
    machine: ProbedMachine | None = None
    op_results: tuple[wheel_check.OpResult, ...] = ()
    findings: tuple[Finding, ...] = ()
    stopped: bool = False

    @property
    def failed(self) -> bool:
        return has_errors(self.findings)

    def as_dict(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "installed": self.installed,
            "stopped": self.stopped,
            "machine": self.machine.as_dict() if self.machine else None,
            "operations": [asdict(op_result) for op_result in self.op_results],
            "findings": [each.as_dict() for each in self.findings],
        }


@dataclass(frozen=True, kw_only=True)
class NodeTask:
    """What to do on every node.

    `folder` is where the wheel goes, `python` the interpreter there; `target` is the folder to install into instead
    of its environment. `part`: the name under which the file was broadcast. `force`: install what is installed already.
    """

    report: WheelReport
    python: str
    folder: str
    target: str | None = None
    part: str | None = None
    force: bool = False


def default_folder() -> str:
    """Where `wheel push` puts the file: on the node's own disk, in a folder of this user."""
    return f"/tmp/dsrun-wheels-{getpass.getuser()}"


def push(nodes: Sequence[RemoteNode], task: NodeTask, pool: NodePool) -> list[NodeReport]:
    """Compare every node with the wheel; where it fits, copy, install and smoke-test it. Reports in `nodes`' order.

    A node that fails has a finding and does not block the others. In a SLURM allocation sbcast copies the wheel, if it
    is installed and works, and every node needs it; otherwise each node receives its own copy."""
    checked = pool.map(nodes, partial(_check, task=task, pool=pool), _stopped)
    ready = [(node, report) for node, report in zip(nodes, checked, strict=True) if _is_open(report)]
    if len(ready) == len(nodes) and all(report.installed == _NEEDS_FILE for _, report in ready):
        task = replace(task, part=_broadcast(nodes, task, pool))
    known = {report.node: report for _, report in ready}
    done = pool.map(
        [node for node, _ in ready],
        lambda node: _finish(node, known[node.name], task, pool),
        lambda node: replace(known[node.name], installed=None, stopped=True),
    )
    ended = {report.node: report for report in done}
    return [ended.get(report.node, report) for report in checked]


def verify_on(nodes: Sequence[RemoteNode], report: WheelReport, python: str, pool: NodePool) -> list[NodeReport]:
    """Compare every node with the wheel and smoke-test it there, in a folder that is removed afterwards."""
    folder = f"/tmp/dsrun-verify-{uuid.uuid4().hex}"
    task = NodeTask(report=report, python=python, folder=folder, target=f"{folder}/site")

    def verify(node: RemoteNode) -> NodeReport:
        checked = _check(node, task, pool)
        return _finish(node, checked, task, pool) if _is_open(checked) else checked

    try:
        return pool.map(nodes, verify, _stopped)
    finally:
        _remove(nodes, folder, pool.at_once)


def _stopped(node: RemoteNode) -> NodeReport:
    return NodeReport(node=node.name, stopped=True)


def _is_open(report: NodeReport) -> bool:
    return not report.failed and not report.stopped


def _failed(done: NodeReport, error: DsrunError) -> NodeReport:
    fault = Finding(level="error", code="node_failed", message=error.message, fix=error.fix or "", where=done.node)
    installed = None if done.installed == _NEEDS_FILE else done.installed
    return replace(done, findings=(*done.findings, fault), installed=installed)


def _check(node: RemoteNode, task: NodeTask, pool: NodePool) -> NodeReport:
    """Compare the node with the wheel, and ask whether it needs the file. Whatever fails is a finding of that node."""
    done = NodeReport(node=node.name)
    try:
        facts = pool.run(node, task.python, PROBE, *wheel_check.needed_libraries(task.report), seconds=_SHORT_SECONDS)
        machine = machine_from(facts, node.name)
        findings = tuple(replace(each, where=node.name) for each in compare(task.report, machine))
        done = replace(done, machine=machine, findings=findings)
        if done.failed:
            return done
        return replace(done, installed=_NEEDS_FILE if task.target else _install(node, task, pool))
    except DsrunError as error:
        return _failed(done, error)


def _finish(node: RemoteNode, done: NodeReport, task: NodeTask, pool: NodePool) -> NodeReport:
    """Copy and install the wheel if that is needed, and run its operations."""
    try:
        if done.installed == _NEEDS_FILE:
            if task.part is None:
                _send(node, task, pool)
            done = replace(done, installed=_install(node, task, pool))
        if not wheel_check.can_smoke_test(task.report, done.findings):
            return done
        words = wheel_check.arguments(task.report, task.target)
        program = wheel_check.program(task.report)
        output = pool.run(node, task.python, program, *words, seconds=wheel_check.RUN_OPS_SECONDS)
        results, failures = wheel_check.parse_op_results(output, node.name)
        return replace(done, op_results=results, findings=(*done.findings, *failures))
    except DsrunError as error:
        return _failed(done, error)


def _wanted(task: NodeTask, **more: object) -> str:
    wheel = f"{task.folder}/{task.report.path.name}"
    return json.dumps({"wheel": wheel, "sha256": task.report.sha256, **more})


def _send(node: RemoteNode, task: NodeTask, pool: NodePool) -> None:
    wanted = _wanted(task, do="receive", size=task.report.size)
    _said(
        pool.run(node, task.python, INSTALL, wanted, seconds=_COPY_SECONDS, data=task.report.path),
        f"copying to {task.folder}",
    )


def _install(node: RemoteNode, task: NodeTask, pool: NodePool) -> str:
    more = {"name": task.report.name, "target": task.target, "part": task.part, "force": task.force}
    wanted = _wanted(task, do="install", **more)
    return _said(pool.run(node, task.python, INSTALL, wanted, seconds=_INSTALL_SECONDS), "installing")


def _said(output: dict[str, Any], what: str) -> str:
    if "error" in output:
        raise ToolError(f"{what}: {output['error']}")
    return str(output["how"])


def _broadcast(nodes: Sequence[RemoteNode], task: NodeTask, pool: NodePool) -> str | None:
    """Copy the wheel to all nodes with sbcast, which needs the folder there: the copies' name; None if that failed."""
    if len(nodes) < 2 or any(node.way != "srun" for node in nodes):
        return None
    part = f".{uuid.uuid4().hex}.part"

    def runs(argv: Sequence[str], seconds: float) -> bool:
        return pool.feed(argv, seconds=seconds).returncode == 0

    folder = ["sh", "-c", _MAKE_FOLDER, "sh", task.folder]
    copy = ["sbcast", "--force", str(task.report.path), f"{task.folder}/{part}"]
    sent = False
    try:
        made = pool.map(nodes, lambda node: runs(node.argv(folder), _SHORT_SECONDS), lambda _: False)
        sent = all(made) and pool.map(nodes[:1], lambda _: runs(copy, _COPY_SECONDS), lambda _: False) == [True]
    except DsrunError:  # also when sbcast is not installed
        pass
    finally:
        if not sent:
            _remove(nodes, f"{task.folder}/{part}", pool.at_once)
    return part if sent else None


def _remove(nodes: Sequence[RemoteNode], path: str, at_once: int) -> None:
    """Remove a file or folder from the nodes; one that cannot be reached keeps it."""

    def remove(node: RemoteNode) -> None:
        with suppress(DsrunError, ProgramInterrupted):
            pool.feed(node.argv(["rm", "-rf", "--", path]), seconds=_SHORT_SECONDS)

    pool = NodePool(at_once=at_once)
    pool.map(nodes, remove, lambda _: None)
