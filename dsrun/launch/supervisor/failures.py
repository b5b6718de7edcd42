"""Why an attempt failed: from the failure records of its workers, their exit codes, and their logs.

A worker of dsrun.train that fails writes rank-R.json (`dsrun.train.base.rank_context`); for any other program only the
exit code and the output are known."""

import hashlib
import json
import re
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dsrun.diagnosis.rules import CRASHES, LOST_PEER
from dsrun.errors import EXIT_TOOL_FAILED
from dsrun.launch.supervisor.policy import CONFIGURATION, AttemptFailure
from dsrun.launch.supervisor.watchdog import RankHang
from dsrun.system.files import read_object

INTERRUPTED_FILE = "interrupted.json"
_LOG_TAIL = 1 << 18
# No cause, or one that a rank also names when another one has failed.
_NOT_THE_ORIGIN = ("", *LOST_PEER)
_BESIDE = re.compile(r"\[rank\d+\]:|[IWEF]\d{4} \d\d:|wandb: |.*(\b(loss|step)\b|\d%\|)", re.I)
_SAID = 300
_AGENT = re.compile(r"torch/distributed/(run|launcher|elastic)|dsrun/launch/workers/zygote")

LogClassifier = Callable[[str, int | None], str]
"""The cause code that a log and an exit code show, "" for none."""


def first_failure(folder: Path, *, only_expected: bool = False, first: Collection[int] = ()) -> dict[str, Any] | None:
    """The failure that began it, None where no worker wrote one.

    A rank that knows what is wrong says more than one that only lost its peers, however early; `only_expected` passes
    over the latter, but not over ranks of `first` that failed by themselves, for whatever reason. Keys: rank,
    exit_code, message, time, log, expected; of newer workers also cause, consequence, trace, step."""
    failures = sorted(
        (found for file in folder.glob("rank-*.json") if (found := read_object(file))),
        key=lambda each: float(each["time"]),
    )
    known = [
        each
        for each in failures
        if each["expected"]
        or (each.get("cause") or "") not in _NOT_THE_ORIGIN
        or (each["rank"] in first and each.get("consequence") is False)
    ]
    if not known and not only_expected:
        known = failures
    return known[0] if known else None


def first_of_nodes(failures: Sequence[AttemptFailure]) -> AttemptFailure | None:
    """Of one failure a node, in the order of the nodes, the one that began it; None where there is none.

    A node can see that its ranks have lost their peers before the peers' node sees what happened to them. A lost node
    comes after those with a cause, for its peers may know better what happened to it, and before those without."""

    def known(failure: AttemptFailure) -> int:
        if failure.exit_code in CONFIGURATION:
            return 2
        return 0 if failure.cause in _NOT_THE_ORIGIN else 1 if failure.cause == "node_lost" else 2

    return max(failures, key=known, default=None)


def exit_code_of(folder: Path, rank: int) -> int | None:
    """The exit code that `rank` wrote down before it ended; None where it wrote nothing."""
    record = read_object(folder / f"rank-{rank}.json")
    return int(record["exit_code"]) if record else None


def interruption(folder: Path) -> dict[str, Any] | None:
    """What a rank wrote that left because it was told to: {"step", "path"}, None in both where nothing was saved."""
    file = folder / INTERRUPTED_FILE
    return read_object(file) if file.exists() else None


@dataclass(frozen=True, kw_only=True)
class FailureInputs:
    """What is left of an attempt that failed.

    `ended` are the ranks that ended by themselves, in the order in which that was seen, with their return codes
    (negative: a signal); `agent` is that of torch.distributed.run, None where the supervisor ended it; `detected_s`
    the seconds between the last look that found all well and the one that did not, `stalled_s` those by which the
    wait between the two took longer than it should, because this process was stopped or kept from the processor;
    `steps` the optimizer steps that each rank had done; `out_of_memory`: the kernel killed a process of this job for
    memory; `evidence` is the folder with what was learned of the ranks before they were ended
    (`dsrun.launch.supervisor.evidence`); `unstarted_s` the seconds in which the agent started no rank, None where it
    did. `log` is the launcher's, of which this attempt wrote what follows the first
    `log_begins` bytes."""

    failures: Path
    log: Path
    log_begins: int = 0
    ended: Mapping[int, int]
    agent: int | None = None
    hang: RankHang | None = None
    detected_s: float | None = None
    stalled_s: float | None = None
    steps: Mapping[int, int]
    out_of_memory: bool = False
    evidence: Path | None = None
    node: int = 0
    unstarted_s: float | None = None

    def output(self) -> str:
        """The end of what this attempt wrote to the launcher's log."""
        return tail(self.log, begins=self.log_begins)


def explain(left: FailureInputs, classify: LogClassifier) -> AttemptFailure:
    """The failure of the rank that failed first."""
    hang = left.hang
    if hang is not None:
        found = _failure(left, "rank_hung", hang.rank, EXIT_TOOL_FAILED, hang.message)
        log = str(left.evidence or left.log)
        return replace(found, detected_s=hang.silent_s, log=log)
    # The agent ends the others with SIGTERM.
    deaths = (rank for rank, code in left.ended.items() if code < 0 and code != -signal.SIGTERM)
    killed = next(deaths, None)
    order = list(left.ended)
    before = order[: order.index(killed)] if killed is not None else order
    record = first_failure(left.failures, only_expected=killed is not None, first=before)
    if record:
        return _recorded(left, record, classify)
    if killed is not None:
        return _death(left, killed, classify)
    failed = next(((rank, code) for rank, code in left.ended.items() if code), None)
    text = left.output()
    if failed:
        rank, code = failed
        message = f"rank {rank} ended with exit code {code}{_said(text, rank)}"
        found = _failure(left, classify(text, code), rank, code, message)
        return replace(found, trace=_trace_of_rank(text, rank, code))
    if left.agent is not None and left.agent < 0:
        message = f"the agent of the ranks was killed ({_signal_name(-left.agent)})"
        return _failure(left, "agent_killed", None, left.agent, message)
    message = _exception_line(text) or "the ranks could not be started"
    if left.unstarted_s is not None:
        message = f"no rank was started within {left.unstarted_s:.0f} s"
    return _failure(left, classify(text, left.agent), None, left.agent or EXIT_TOOL_FAILED, message)


def _recorded(left: FailureInputs, record: Mapping[str, Any], classify: LogClassifier) -> AttemptFailure:
    """A worker wrote down why."""
    code, log = int(record["exit_code"]), record["log"]
    cause = record.get("cause")
    if cause is None:
        cause = "" if record["expected"] else classify(f"{record['message']}\n{tail(Path(log)) if log else ''}", code)
    failure = _failure(left, cause, int(record["rank"]), code, str(record["message"]))
    step = record.get("step", failure.step)
    rollback = bool(record.get("rollback", False))
    return replace(failure, trace=record.get("trace"), log=log, step=step, rollback=rollback)


def _death(left: FailureInputs, rank: int, classify: LogClassifier) -> AttemptFailure:
    """A rank died by a signal and could not say why."""
    code = left.ended[rank]
    step = left.steps.get(rank)
    where = f" after step {step}" if step else ""
    cause = "host_oom_killed" if left.out_of_memory and code == -signal.SIGKILL else ""
    if not cause and code != -signal.SIGKILL:
        # The kernel's signals for a fault of the program's own have their causes: shared memory, instructions.
        cause = classify(left.output(), code)
    ended = "crashed" if -code in CRASHES else "was killed"
    message = f"rank {rank} {ended} ({_signal_name(-code)}){where}" + (
        ", out of host memory" if left.out_of_memory else ""
    )
    return _failure(left, cause or "rank_killed", rank, code, message)


def _failure(left: FailureInputs, cause: str, rank: int | None, code: int, message: str) -> AttemptFailure:
    return AttemptFailure(
        cause=cause,
        rank=rank,
        node=left.node,
        exit_code=code,
        message=message,
        step=left.steps.get(rank) if rank is not None else max(left.steps.values(), default=None),
        detected_s=left.detected_s,
        stalled_s=left.stalled_s,
        log=str(left.log),
    )


def _signal_name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:  # a real-time signal between the first and the last
        return f"signal {signum}"


def tail(log: Path, size: int = _LOG_TAIL, *, begins: int = 0) -> str:
    """The end of a log, at most `size` bytes and none before `begins`; "" where there is none."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(begins, file.tell() - size))
        return file.read().decode(errors="replace")
    return ""


def trace_of(text: str) -> str | None:
    """A name for the last traceback in the output of a program: the same for the same place in the code.

    Tracebacks of the agent, which end every log, do not count; addresses and messages do not either."""
    blocks = [
        block
        for block in re.findall(r"^Traceback \(most recent call last\):\n((?:  .*\n)+)(?=(\w[\w.]*))", text, re.M)
        if not _AGENT.search(block[0])
    ]
    if not blocks:
        return None
    frames = re.findall(r'^  File "(.*)", line (\d+)', blocks[-1][0], re.M)
    return hashlib.sha256(json.dumps([frames, blocks[-1][1]]).encode()).hexdigest()


def _trace_of_rank(text: str, rank: int, code: int) -> str | None:
    """That of the rank's own traceback, whose lines torch marks; None of one that has but lost its peers."""
    from dsrun.diagnosis.classify import classify

    own = "".join(re.findall(rf"^\[rank{rank}\]: ?(.*\n)", text, re.M))
    verdict = classify(own, exit_code=code)
    return trace_of(own or text) if verdict is None or verdict.weight != "consequence" else None


def _said(text: str, rank: int) -> str:
    """What the output of a program ends with, unless a traceback of `rank` tells why it failed: `sys.exit("why")`.

    Neither what the agent says counts, nor what other ranks say of the lost one, nor a step."""
    if trace_of(text) or f"[rank{rank}]: Traceback" in text:
        return ""
    lines = (line.strip() for line in text.partition("torch/distributed/elastic")[0].splitlines())
    said = [line for line in lines if line and not _BESIDE.match(line)]
    return f": {said[-1][:_SAID]}" if said else ""


def _exception_line(text: str) -> str:
    """The line in which an uncaught exception names itself, which is the last one of a traceback."""
    lines: Sequence[str] = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if "Error" in line and not line.startswith(("File ", "raise ", "[", "="))]
    return named[-1][:300] if named else ""


def classify_log(text: str, exit_code: int | None) -> str:
    """The code of the cause that a log shows; "" where it shows none, or only what a failed peer does to a rank.

    What is merely likely may be a reason to start again, but none to give up."""
    from dsrun.diagnosis.classify import classify

    found = classify(text, exit_code=exit_code)
    if found is None or found.weight == "consequence" or (found.weight == "guess" and not found.cause.transient):
        return ""
    return found.cause.code
