"""A wheel on other machines: copied there, installed, compared and smoke-tested, one node or many at a time."""

from __future__ import annotations

import getpass
import json
import os
import shlex
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, Literal, TypeVar

from dsrun.errors import DsrunError, ToolError, UsageError
from dsrun.findings import Finding
from dsrun.system.hostlist import expand_hosts, read_hostfile
from dsrun.system.proc import capture
from dsrun.wheel.verify import install_wheel
from dsrun.wheel.verify.check import (
    RUN_OPS,
    RUN_OPS_SECONDS,
    OpResult,
    arguments,
    can_smoke_test,
    needed_libraries,
    parse_op_results,
    reason,
)
from dsrun.wheel.verify.compatibility import compare
from dsrun.wheel.verify.contents import WheelReport
from dsrun.wheel.verify.machine import PROBE, Machine, last_object, machine_from

Way = Literal["srun", "ssh"]
T = TypeVar("T")

# BatchMode: a question for a password would hang unseen.
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
# --overlap: the allocation's GPUs and processors may be in use by a step already.
_SRUN = ("srun", "--overlap", "--nodes=1", "--ntasks=1", "--quiet")


def way_here(environ: Mapping[str, str] = os.environ) -> Way:
    """How nodes are reached from here: srun inside a SLURM allocation, else ssh."""
    return "srun" if environ.get("SLURM_JOB_ID") and shutil.which("srun") else "ssh"


@dataclass(frozen=True)
class Node:
    """A machine and the way to it."""

    name: str
    way: Way

    def argv(self, command: Sequence[str]) -> list[str]:
        """What runs `command` there. ssh hands one line to the login shell; srun passes the words as they are."""
        if self.way == "srun":
            return [*_SRUN, f"--nodelist={self.name}", *command]
        return [*_SSH, self.name, shlex.join(command)]

    def run(self, command: Sequence[str], *, seconds: float, feed: Path | None = None) -> CompletedProcess[str]:
        """Run `command` there with the local file `feed` as stdin. Raises as `capture` does."""
        return capture(self.argv(command), seconds=seconds, feed=feed)


INSTALL = Path(install_wheel.__file__)
AT_ONCE = 16  # more logins at a time are refused by sshd's MaxStartups on some clusters
_COPY_SECONDS = 1800
_INSTALL_SECONDS = 600
_SHORT_SECONDS = 120
# The folder is the user's alone, and a copy that stops half way leaves nothing.
_RECEIVE = 'umask 077; mkdir -p "$1" && cat > "$1/$2" || { rm -f "$1/$2"; exit 1; }'
_MAKE_FOLDER = 'umask 077; mkdir -p "$1"'


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """The result on one node. `installed`: "installed", "already there", or None when that step was not reached."""

    node: str
    installed: str | None = None
    machine: Machine | None = None
    op_results: tuple[OpResult, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether something is wrong on this node."""
        return any(each.level == "error" for each in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "node": self.node,
            "installed": self.installed,
            "machine": self.machine.as_dict() if self.machine else None,
            "operations": [asdict(op_result) for op_result in self.op_results],
            "findings": [each.as_dict() for each in self.findings],
        }


@dataclass(frozen=True, kw_only=True)
class NodeTask:
    """What to do on every node.

    `folder` is where the wheel goes, `python` the interpreter there; `target` is the folder to install into instead
    of its environment. `part` is the file's name until it is complete. `broadcast`: it was already copied under it.
    """

    report: WheelReport
    python: str
    folder: str
    target: str | None = None
    part: str = field(default_factory=lambda: f".{uuid.uuid4().hex}.part")
    broadcast: bool = False


def default_folder() -> str:
    """Where `wheel push` puts the file: on the node's own disk, in a folder of this user."""
    return f"/tmp/dsrun-wheels-{getpass.getuser()}"


def temporary_task(report: WheelReport, python: str) -> NodeTask:
    """To verify on a node and leave nothing there: wheel and installation in one folder that is removed afterwards."""
    folder = f"/tmp/dsrun-verify-{uuid.uuid4().hex}"
    return NodeTask(report=report, python=python, folder=folder, target=f"{folder}/site")


def map_nodes(nodes: Sequence[Node], call: Callable[[Node], T], *, at_once: int = AT_ONCE) -> list[T]:
    """`call` each node, `at_once` at a time; the answers in the order of `nodes`."""
    pool = ThreadPoolExecutor(max_workers=max(1, min(at_once, len(nodes))))
    try:
        return list(pool.map(call, nodes))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def run_on_node(node: Node, task: NodeTask) -> NodeReport:
    """Copy, install, compare and run on one node. Whatever fails is a finding of that node, never an exception."""
    done = NodeReport(node=node.name)
    try:
        if not task.broadcast:
            _copy(node, task)
        done = replace(done, installed=_install(node, task))
        facts = _run(node, task, PROBE, needed_libraries(task.report), _SHORT_SECONDS)
        machine = machine_from(facts, node.name)
        findings = tuple(replace(each, where=node.name) for each in compare(task.report, machine))
        done = replace(done, machine=machine, findings=findings)
        if not can_smoke_test(task.report, findings):
            return done
        output = _run(node, task, RUN_OPS, arguments(task.report, task.target), RUN_OPS_SECONDS)
        results, failures = parse_op_results(output, node.name)
        return replace(done, op_results=results, findings=(*findings, *failures))
    except DsrunError as error:
        fault = Finding(level="error", code="node_failed", message=error.message, fix=error.fix or "", where=node.name)
        return replace(done, findings=(*done.findings, fault))


def _copy(node: Node, task: NodeTask) -> None:
    """Stream the wheel to the node under its temporary name. Raises ToolError."""
    command = ["sh", "-c", _RECEIVE, "sh", task.folder, task.part]
    answer = node.run(command, seconds=_COPY_SECONDS, feed=task.report.path)
    if answer.returncode:
        raise ToolError(f"copying to {task.folder}: {reason(answer)}")


def run_temporary(node: Node, task: NodeTask) -> NodeReport:
    """`run_on_node`, and remove the folder of the task; an unreachable node keeps it."""
    try:
        return run_on_node(node, task)
    finally:
        with suppress(DsrunError):
            node.run(["rm", "-rf", "--", task.folder], seconds=_SHORT_SECONDS)


def _run(node: Node, task: NodeTask, program: Path, arguments: Sequence[str], seconds: float) -> dict[str, Any]:
    """Run one of dsrun's programs there, sent through stdin to the task's interpreter."""
    answer = node.run([task.python, "-", *arguments], seconds=seconds, feed=program)
    return last_object(answer, task.python)


def _install(node: Node, task: NodeTask) -> str:
    wanted = {
        "part": f"{task.folder}/{task.part}",
        "wheel": f"{task.folder}/{task.report.path.name}",
        "sha256": task.report.sha256,
        "name": task.report.name,
        "target": task.target,
    }
    output = _run(node, task, INSTALL, [json.dumps(wanted)], _INSTALL_SECONDS)
    if "error" in output:
        raise ToolError(f"installing: {output['error']}")
    return str(output["how"])


def nodes_meant(
    nodes: str | None, hostfile: Path | None, environ: Mapping[str, str], way: Way | None = None
) -> tuple[Node, ...]:
    """The nodes of `--nodes`, of a hostfile, or else of the SLURM allocation around this process.

    Raises UsageError when none is given, or both are.
    """
    if nodes and hostfile:
        raise UsageError("--nodes and --hostfile name the nodes twice", fix="give one of them")
    listed = environ.get("SLURM_JOB_NODELIST")
    if hostfile:
        names = read_hostfile(hostfile)
    elif nodes or listed:
        names = expand_hosts(nodes or listed or "")
    else:
        raise UsageError("no nodes: this is not a SLURM allocation", fix="give --hostfile FILE or --nodes gpu[01-04]")
    there = way or (way_here(environ) if not hostfile else "ssh")
    return tuple(Node(name, there) for name in names)


def push(nodes: Sequence[Node], task: NodeTask, *, at_once: int = AT_ONCE) -> list[NodeReport]:
    """Copy the wheel to every node, install and smoke-test it there; the reports are in the order of `nodes`.

    A node that fails has a finding and does not block the others. In a SLURM allocation sbcast copies the wheel, if it
    is installed and works; otherwise each node receives its own copy.
    """
    task = replace(task, broadcast=_broadcast(nodes, task, at_once))
    return map_nodes(nodes, partial(run_on_node, task=task), at_once=at_once)


def _broadcast(nodes: Sequence[Node], task: NodeTask, at_once: int) -> bool:
    """Copy the wheel to all nodes with sbcast, which needs the folder there. Whether that worked."""
    if len(nodes) < 2 or any(node.way != "srun" for node in nodes):
        return False

    def make_folder(node: Node) -> bool:
        return node.run(["sh", "-c", _MAKE_FOLDER, "sh", task.folder], seconds=_SHORT_SECONDS).returncode == 0

    command = ["sbcast", "--force", str(task.report.path), f"{task.folder}/{task.part}"]
    try:
        made = map_nodes(nodes, make_folder, at_once=at_once)
        return all(made) and capture(command, seconds=_COPY_SECONDS).returncode == 0
    except DsrunError:  # also when sbcast is not installed
        return False
