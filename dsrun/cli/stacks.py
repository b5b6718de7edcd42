"""`dsrun stacks`: where each rank of a running run stands."""

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dsrun.cli.options import imported
from dsrun.cli.output import print_json, print_line, print_table, refusal
from dsrun.diagnosis.hangs import RankStanding, groups, name_ranks, outliers, read_standings
from dsrun.errors import EXIT_TOOL_FAILED, UsageError
from dsrun.runs.node_status import FOLDER, NodeStatus, StacksAnswer, read_answers, read_node_status, request_stacks
from dsrun.system.terminal.stderr import print_note

WAIT_S = 15.0
STALE_S = 60.0
"""Of a node whose status has not been written for so long no answer is awaited."""
_POLL_S = 0.1


def show(run: Path | None, job_id: str | None, full: bool, form: str) -> int:
    run = run or imported("dsrun.slurm.jobs.queue:run_of_job")(job_id)
    nodes = read_node_status(run)
    if not nodes:
        raise refusal("stacks.no_status" if run.is_dir() else "stacks.no_run", run=run)
    try:
        request = request_stacks(run)
    except OSError as error:
        raise UsageError(f"{run}: cannot write the request: {error.strerror}", fix="ask as the run's user") from error
    answers = _wait(request, [node for node in nodes if _is_fresh(run, node, request)])
    if not answers:
        shutil.rmtree(request, ignore_errors=True)
        raise refusal("stacks.no_answer", run=run, newest=max(node.time for node in nodes))
    _show(request, answers, full=full, form=form, missing=_missing(nodes, answers))
    return EXIT_TOOL_FAILED if _missing(nodes, answers) else 0


def _is_fresh(run: Path, node: NodeStatus, request: Path) -> bool:
    """By the clock of the file server alone: those of the machines may differ."""
    status = run / FOLDER / f"node-{node.node}.json"
    return status.exists() and request.stat().st_mtime - status.stat().st_mtime < STALE_S


def _wait(request: Path, nodes: Sequence[NodeStatus]) -> Mapping[int, StacksAnswer]:
    deadline = time.monotonic() + WAIT_S
    while True:
        answers = read_answers(request)
        if not _missing(nodes, answers) or time.monotonic() > deadline:
            return answers
        time.sleep(_POLL_S)


def _missing(nodes: Sequence[NodeStatus], answers: Mapping[int, StacksAnswer]) -> list[NodeStatus]:
    return [node for node in nodes if node.node not in answers]


def _show(
    request: Path, answers: Mapping[int, StacksAnswer], *, full: bool, form: str, missing: Sequence[NodeStatus]
) -> None:
    standings = read_standings(request)
    hosts = {rank: answer.host for answer in answers.values() for rank in answer.ranks}
    apart = outliers(standings)
    if form == "json":
        print_json(
            {
                "groups": [{"place": group.name, "ranks": list(group.ranks)} for group in groups(standings)],
                "outliers": list(apart),
                "ranks": [_as_json(each, hosts.get(each.rank, ""), request, full=full) for each in standings],
                "unanswered": [{"node": node.node, "host": node.host} for node in missing],
            }
        )
        return
    rows = [
        (
            name_ranks(group.ranks),
            "apart" if set(group.ranks) & set(apart) else "",
            group.name,
            ", ".join(sorted({hosts.get(rank, "") for rank in group.ranks})),
        )
        for group in groups(standings)
    ]
    print_table([("ranks", "", "place", "host"), *rows])
    for each in standings if full else ():
        print_line()
        print_line(f"== rank {each.rank} on {hosts.get(each.rank, '')}")
        for line in _stacks(request, each.rank).splitlines():
            print_line(line)
    for node in missing:
        print_note(f"node {node.node} ({node.host}) has not answered; its status is of {node.time}")


def _as_json(standing: RankStanding, host: str, request: Path, *, full: bool) -> dict[str, Any]:
    place = standing.place
    found = {"rank": standing.rank, "host": host, "kind": place.kind, "place": place.name, "line": place.site}
    return {**found, "stacks": _stacks(request, standing.rank)} if full else found


def _stacks(request: Path, rank: int) -> str:
    try:
        return (request / f"rank-{rank}.stacks.txt").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "(no stack: neither may py-spy look, nor does the process answer)"
