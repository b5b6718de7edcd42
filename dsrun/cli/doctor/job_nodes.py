"""`dsrun doctor --job`: the checks on each node of a running SLURM job, in a step beside those of its ranks."""

import base64
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import click

from dsrun.cli.launch.remote import srun_argv
from dsrun.cli.output import print_json
from dsrun.datafiles import toml_beside
from dsrun.doctor.registry import OF_IDLE_MACHINES
from dsrun.errors import EXIT_FINDINGS, EXIT_TOOL_FAILED, ToolError
from dsrun.findings.checks import Check, CheckResult, as_json, result_lines
from dsrun.findings.finding import Finding
from dsrun.refusals import Refusals
from dsrun.slurm.jobs.queue import running_job
from dsrun.system.hostlist import compressed, expand_hosts
from dsrun.system.process.proc import capture
from dsrun.system.terminal.display import counted, terminal_width
from dsrun.system.terminal.stderr import print_note

FLAG = "--node-checks"
"""Has `dsrun doctor`, as one task of the step, check its own node and write what `answer` gives."""
_TABLE = toml_beside(__file__)
_LIMIT_S = _TABLE["seconds"]
refuse = Refusals(__file__).check


def answer(results: Sequence[CheckResult]) -> str:
    """The results of this node for `run_on_nodes`: lines in base64, as srun tears long ones apart."""
    content = {"node": os.environ.get("SLURMD_NODENAME", ""), **as_json(results)}
    return base64.encodebytes(json.dumps(content).encode()).decode("ascii")


def run_on_nodes(job_id: str, checks: Sequence[Check], *, every: bool, form: str) -> int:
    """Run this very command, which makes these checks, on the nodes of a job of this user's; the exit code. Raises
    ToolError where none answers."""
    job = running_job(job_id, own=True)
    place = f"{counted(job.node_count, 'node')} of job {job.id}"
    left_out = ", ".join(OF_IDLE_MACHINES)
    print_note(f"srun --overlap checks {place}, in {_LIMIT_S} s at most, but not what the job itself takes: {left_out}")
    # In the shell of another job srun would take that one's options.
    unset = [word for name in os.environ if name.startswith("SLURM_") and name != "SLURM_CONF" for word in ("-u", name)]
    argv = ["env", *unset, "timeout", "--foreground", "--kill-after=10", str(_LIMIT_S), *srun_argv(job.node_count, {})]
    argv += [*_TABLE["srun"].split(), f"--jobid={job.number}", sys.executable, "-m", "dsrun"]
    at = sys.argv.index("doctor") + 1
    step = capture([*argv, *sys.argv[1:at], FLAG, *sys.argv[at:]], seconds=2 * _LIMIT_S)
    nodes = sorted(_answers(step.stdout), key=lambda each: str(each["node"]))
    missing = [host for host in expand_hosts(job.nodes) if host not in [each["node"] for each in nodes]]
    said = step.stderr.splitlines() or ["srun gives no reason"]
    why = next((line for line in said if "error:" in line), said[-1])
    if not nodes:
        fix = f"can srun --overlap --jobid={job.number} start anything there?"
        raise ToolError(f"no answer of {place} within {_LIMIT_S} s: {why}", fix=fix)
    if form == "json":
        print_json({"job": job.id, "nodes": nodes, "unanswered": missing})
    else:
        for line in result_lines(list(together(checks, nodes)), every=every, columns=terminal_width(sys.stdout)):
            click.echo(line)
    if missing:
        print_note(f"{compressed(missing)}: unknown, no answer within {_LIMIT_S} s: {why}")
    failed = any(each["failed"] for each in nodes)
    return EXIT_FINDINGS if failed else EXIT_TOOL_FAILED if missing else 0


def _answers(output: str) -> Iterator[dict[str, Any]]:
    """What the tasks have written, each line with the task's number before it; one that was torn off is none."""
    tasks: dict[str, str] = defaultdict(str)
    for line in output.splitlines():
        task, _, text = line.partition(": ")
        tasks[task] += text
    for text in tasks.values():
        with suppress(ValueError):
            yield json.loads(base64.b64decode(text))


def together(checks: Sequence[Check], nodes: Sequence[Mapping[str, Any]]) -> Iterator[CheckResult]:
    """The result of each check on all nodes: what not all have found has their names as its place; of what is fine
    everywhere, and differs, one node's is given."""
    for check in checks:
        rows = [(node["node"], row) for node in nodes for row in node["checks"] if row["check"] == check.code]
        hosts: dict[Finding, list[str]] = defaultdict(list)
        for host, row in rows:
            for each in row["findings"]:
                hosts[Finding(**each)].append(host)
        shown = {each if each.level != "info" else each.code: each for each in reversed(hosts)}
        places = {each: "" if len(hosts[each]) == len(nodes) else compressed(hosts[each]) for each in shown.values()}
        findings = [replace(each, where=": ".join(filter(None, (at, each.where)))) for each, at in places.items()]
        longest = max((row["seconds"] for _, row in rows), default=0.0)
        yield CheckResult(check=check, findings=tuple(reversed(findings)), seconds=longest)
