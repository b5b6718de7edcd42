"""A wheel on other machines: copied there, installed, compared and proved, one node or many at a time."""

from __future__ import annotations

import getpass
import json
import os
import shlex
import shutil
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from dsrun.errors import DsrunError, MissingError, ToolError
from dsrun.findings import Finding
from dsrun.system.capture import Answer, ask
from dsrun.wheel.inspect.contents import WheelReport
from dsrun.wheel.verify import install_wheel
from dsrun.wheel.verify.check import (
    INSTALL_SECONDS,
    PROVE,
    PROVE_SECONDS,
    Proof,
    arguments,
    can_prove,
    gpu_ops,
    judge,
    needed_libraries,
    proofs_from,
    reason,
)
from dsrun.wheel.verify.compatibility import compare
from dsrun.wheel.verify.machine import PROBE, Machine, last_object, machine_from

Way = Literal["srun", "ssh"]

# BatchMode: a question for a password would hang where nobody sees it.
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
# --overlap: the allocation's GPUs and processors may be in use by a step already.
_SRUN = ("srun", "--overlap", "--nodes=1", "--ntasks=1", "--quiet")


def way_here(environ: Mapping[str, str] | None = None) -> Way:
    """How nodes are reached from here: srun inside a SLURM allocation, else ssh."""
    environ = os.environ if environ is None else environ
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

    def run(self, command: Sequence[str], *, seconds: float, feed: Path | None = None) -> Answer:
        """Run `command` there with the local file `feed` for stdin.

        Raises ToolError after `seconds`, MissingError when the way itself is not installed here.
        """
        return ask(self.argv(command), seconds=seconds, feed=feed)


def broadcast(source: Path, target: str, *, seconds: float) -> Answer:
    """Copy a file to `target` on every node of this SLURM allocation, passed on from node to node.

    Raises ToolError after `seconds`, MissingError without sbcast.
    """
    if shutil.which("sbcast") is None:
        raise MissingError("sbcast is not installed here")
    return ask(["sbcast", "--force", str(source), target], seconds=seconds)


INSTALL = Path(install_wheel.__file__)
AT_ONCE = 16  # more logins at a time are refused by sshd's MaxStartups on some clusters
_COPY_SECONDS = 1800
_SHORT_SECONDS = 120
# The folder is the user's alone, and a copy that stops half way leaves nothing.
_RECEIVE = 'umask 077; mkdir -p "$1" && cat > "$1/$2" || { rm -f "$1/$2"; exit 1; }'
_MAKE_FOLDER = 'umask 077; mkdir -p "$1"'


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """What came of one node. `installed`: "installed", "already there", or None when it did not come to that."""

    node: str
    installed: str | None = None
    machine: Machine | None = None
    proofs: tuple[Proof, ...] = ()
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
            "operations": [proof.as_dict() for proof in self.proofs],
            "findings": [each.as_dict() for each in self.findings],
        }


@dataclass(frozen=True, kw_only=True)
class NodeTask:
    """What to do on every node.

    `folder` is where the wheel goes, `python` the interpreter there; `target` is the folder to install into instead
    of its environment. `part` is the name the file has until it is whole. `broadcast`: it is there under that name.
    """

    report: WheelReport
    python: str = sys.executable
    folder: str = ""
    target: str | None = None
    part: str = field(default_factory=lambda: f".{uuid.uuid4().hex}.part")
    broadcast: bool = False

    @property
    def wheel(self) -> str:
        """Where the wheel lies when it is whole."""
        return f"{self.folder}/{self.report.path.name}"


def default_folder() -> str:
    """Where `wheel push` puts the file: on the node's own disk, in a folder of this user."""
    return f"/tmp/dsrun-wheels-{getpass.getuser()}"


def passing_errand(report: WheelReport, python: str) -> NodeTask:
    """To verify on a node and leave nothing there: wheel and installation in one folder that `clear` removes."""
    folder = f"/tmp/dsrun-verify-{uuid.uuid4().hex}"
    return NodeTask(report=report, python=python, folder=folder, target=f"{folder}/site")


def visit_all(
    nodes: Sequence[Node], call: Callable[[Node], NodeReport], *, at_once: int = AT_ONCE
) -> list[NodeReport]:
    """`call` each node, `at_once` at a time; the answers in the order of `nodes`."""
    pool = ThreadPoolExecutor(max_workers=max(1, min(at_once, len(nodes))))
    try:
        return list(pool.map(call, nodes))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def visit(node: Node, errand: NodeTask) -> NodeReport:
    """Copy, install, compare and prove on one node. Whatever fails is a finding of that node, never an exception."""
    done = NodeReport(node=node.name)
    try:
        if not errand.broadcast:
            copy(node, errand)
        done = replace(done, installed=_install(node, errand))
        machine = _look(node, errand)
        findings = tuple(
            replace(each, where=node.name) for each in compare(errand.report, machine, gpu_ops=gpu_ops())
        )
        done = replace(done, machine=machine, findings=findings)
        return _prove(node, errand, done) if can_prove(errand.report, findings) else done
    except DsrunError as error:
        fault = Finding(
            level="error", code="node_failed", message=error.message, fix=error.fix or "", where=node.name
        )
        return replace(done, findings=(*done.findings, fault))


def copy(node: Node, errand: NodeTask) -> None:
    """Stream the wheel to the node under its passing name. Raises ToolError."""
    command = ["sh", "-c", _RECEIVE, "sh", errand.folder, errand.part]
    answer = node.run(command, seconds=_COPY_SECONDS, feed=errand.report.path)
    if answer.exit_code:
        raise ToolError(f"copying to {errand.folder}: {reason(answer)}")


def make_folder(node: Node, folder: str) -> str | None:
    """Make a folder on the node; why not, or None when it is there."""
    try:
        answer = node.run(["sh", "-c", _MAKE_FOLDER, "sh", folder], seconds=_SHORT_SECONDS)
    except DsrunError as error:
        return error.message
    return reason(answer) if answer.exit_code else None


def clear(node: Node, errand: NodeTask) -> None:
    """Remove the folder of a passing errand; a node that is gone keeps it."""
    try:
        node.run(["rm", "-rf", "--", errand.folder], seconds=_SHORT_SECONDS)
    except DsrunError:
        return


def visit_in_passing(node: Node, errand: NodeTask) -> NodeReport:
    """`visit`, and leave nothing behind."""
    try:
        return visit(node, errand)
    finally:
        clear(node, errand)


def _run(node: Node, errand: NodeTask, program: Path, words: Sequence[str], seconds: float) -> dict[str, Any]:
    """Run one of dsrun's programs there, sent through stdin to the interpreter that is asked about."""
    answer = node.run([errand.python, "-", *words], seconds=seconds, feed=program)
    return last_object(answer, errand.python)


def _install(node: Node, errand: NodeTask) -> str:
    wanted = {
        "part": f"{errand.folder}/{errand.part}",
        "wheel": errand.wheel,
        "sha256": errand.report.sha256,
        "name": errand.report.name,
        "target": errand.target,
    }
    told = _run(node, errand, INSTALL, [json.dumps(wanted)], INSTALL_SECONDS)
    if "error" in told:
        raise ToolError(f"installing: {told['error']}")
    return str(told["how"])


def _look(node: Node, errand: NodeTask) -> Machine:
    told = _run(node, errand, PROBE, needed_libraries(errand.report), _SHORT_SECONDS)
    return machine_from(told, node.name)


def _prove(node: Node, errand: NodeTask, done: NodeReport) -> NodeReport:
    told = _run(node, errand, PROVE, arguments(errand.report, errand.target), PROVE_SECONDS)
    proofs = proofs_from(told)
    return replace(done, proofs=proofs, findings=(*done.findings, *judge(told, proofs, node.name)))
