"""One wheel on all nodes of a cluster, and whether those nodes are alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dsrun.errors import DsrunError, UsageError
from dsrun.findings import Finding
from dsrun.system.hostlist import expand_hosts, read_hostfile
from dsrun.wheel.verify.machine import Machine
from dsrun.wheel.verify.nodes import (
    AT_ONCE,
    Node,
    NodeReport,
    NodeTask,
    Way,
    broadcast,
    make_folder,
    visit,
    visit_all,
    way_here,
)

_BROADCAST_SECONDS = 1800


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
        raise UsageError(
            "no nodes: this is no SLURM allocation", fix="give --hostfile FILE or --nodes gpu[01-04]"
        )
    there = way or (way_here(environ) if not hostfile else "ssh")
    return tuple(Node(name, there) for name in names)


def push(nodes: Sequence[Node], errand: NodeTask, *, at_once: int = AT_ONCE) -> list[NodeReport]:
    """Copy the wheel to every node, install it there and prove it; the answers in the order of `nodes`.

    A node that fails has a finding and does not keep the others waiting. In a SLURM allocation sbcast copies, when
    it is there and works; otherwise each node is sent its own copy.
    """
    errand = replace(errand, broadcast=_broadcast(nodes, errand, at_once))
    return visit_all(nodes, partial(visit, errand=errand), at_once=at_once)


def _broadcast(nodes: Sequence[Node], errand: NodeTask, at_once: int) -> bool:
    """Whether the wheel is on all nodes now: sbcast goes to the whole allocation, and needs the folder there."""
    if len(nodes) < 2 or any(node.way != "srun" for node in nodes):
        return False
    with_folder = visit_all(nodes, lambda node: _made(node, errand.folder), at_once=at_once)
    if any(each.failed for each in with_folder):
        return False
    try:
        answer = broadcast(errand.report.path, f"{errand.folder}/{errand.part}", seconds=_BROADCAST_SECONDS)
    except DsrunError:
        return False
    return answer.exit_code == 0


def _made(node: Node, folder: str) -> NodeReport:
    problem = make_folder(node, folder)
    fault = (Finding(level="error", code="node_failed", message=problem),) if problem else ()
    return NodeReport(node=node.name, findings=fault)


def differences(visits: Sequence[NodeReport]) -> list[Finding]:
    """What the nodes that answered do not have in common: an error each, as one run will span them."""
    machines = [each.machine for each in visits if each.machine]
    found = []
    for what, of in _COMPARED.items():
        groups: dict[Any, list[str]] = defaultdict(list)
        for machine in machines:
            groups[of(machine)].append(machine.node)
        if len(groups) > 1:
            sides = "; ".join(f"{value or 'none'} on {_few(names)}" for value, names in groups.items())
            found.append(
                Finding(
                    level="error",
                    code="nodes_differ",
                    message=f"{what} differs: {sides}",
                    fix="make them alike, or leave the odd ones out",
                )
            )
    return found


def gpu_text(machine: Machine) -> str:
    """The GPUs of a machine: "4x NVIDIA A100-SXM4-80GB"."""
    counts: dict[str, int] = defaultdict(int)
    for gpu in machine.gpus:
        counts[gpu.name] += 1
    return ", ".join(f"{count}x {name}" for name, count in counts.items())


_COMPARED: dict[str, Callable[[Machine], str | None]] = {
    "Python": lambda machine: machine.python_version,
    "torch": lambda machine: machine.torch,
    "driver": lambda machine: machine.driver,
    "GPU": gpu_text,
}


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def rows(visits: Sequence[NodeReport]) -> list[tuple[str, ...]]:
    """The table of `dsrun wheel push`: one row a node, under a heading."""
    head = ("node", "Python", "torch", "driver", "GPU", "result")
    return [head, *(_row(each) for each in visits)]


def _row(done: NodeReport) -> tuple[str, ...]:
    machine = done.machine
    facts: tuple[str | None, ...] = (None,) * 4
    if machine:
        facts = (machine.python_version, machine.torch, machine.driver, gpu_text(machine))
    return done.node, *(fact or "-" for fact in facts), _result(done)


def _result(done: NodeReport) -> str:
    errors = [each for each in done.findings if each.level == "error"]
    if errors:
        return f"failed: {errors[0].message}" + (f" (and {len(errors) - 1} more)" if errors[1:] else "")
    ran = sum(proof.result == "ran" for proof in done.proofs)
    loaded = sum(proof.result == "loaded" for proof in done.proofs)
    counts = [f"{ran} ran" if ran else "", f"{loaded} loaded" if loaded else ""]
    return ", ".join(filter(None, [done.installed or "", *counts]))
