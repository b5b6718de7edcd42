"""What to do after an attempt has failed, by policy.toml: start again, with less memory, or stop. Pure: nothing is
started here."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from dsrun.datafiles import SubjectNames, evaluate, toml_beside
from dsrun.diagnosis.rules import UNKNOWN, FailureCause, cause_named
from dsrun.errors import EXIT_MISSING, EXIT_TOOL_FAILED, EXIT_USAGE
from dsrun.launch.memory_fallback import MemoryFallback

_TABLE = toml_beside(__file__)
NODE_LOST = "node_lost"
"""The cause (docs/diagnose.md) that is the nodes' own, and no failure of the run."""
LONGEST_WAIT = 60.0
# Restarts that may follow one another without a new checkpoint in between.
STALLED = 2
# Times a run goes back to a checkpoint because it asks for it (--on-nan rollback); the run itself asks no more often.
ROLLBACKS = 10
# dsrun's own exit codes for usage, findings, something missing. 2 is argparse's and click's as well.
CONFIGURATION = range(EXIT_USAGE, EXIT_MISSING + 1)
REPEATED = 2
"""So many failures that alone could be the program's fault are evidence against the node that had them all."""
_MOST_SUSPECTS = 2
"""Where they came on more nodes than that, it is the program that fails."""


@dataclass(frozen=True, kw_only=True)
class AttemptFailure:
    """How one attempt failed: of the rank that failed first.

    `cause` is a code of docs/diagnose.md, "" where it is unknown; `host` is the name SLURM has for it; `exit_code` as
    the process ended, negative for a signal; `step` the optimizer steps done, None before training; `trace` names the
    place in the code where it failed; `detected_s` the seconds from the failure to its being noticed, `stalled_s` those
    of them in which the supervisor was kept from looking; `rollback` that the rank asks to go on from the newest
    checkpoint, and will then leave out what has failed."""

    cause: str
    rank: int | None = None
    node: int = 0
    host: str = ""
    exit_code: int = EXIT_TOOL_FAILED
    message: str = ""
    step: int | None = None
    trace: str | None = None
    detected_s: float | None = None
    stalled_s: float | None = None
    log: str | None = None
    rollback: bool = False


@dataclass(frozen=True, kw_only=True)
class RestartLimits:
    """What the user allows: restarts after transient failures, changes that make the run need less memory, and the
    loss of so many nodes (--elastic), which is no restart of these then."""

    max_restarts: int = 3
    remedy: bool = True
    losses: int = 0


@dataclass(frozen=True, kw_only=True)
class RunDecision:
    """What comes next. `exit_code` is the one to end with at "stop"; `why` is one line for the user.

    `cause` is the last failure's, or deterministic_crash where its history shows so. `saved_batch` is the global batch
    of the checkpoint that the next attempt resumes from, `nodes` those that take part in it."""

    action: Literal["restart", "stop"]
    exit_code: int
    wait_s: float = 0.0
    why: str
    fallback: MemoryFallback
    cause: str = ""
    saved_batch: int | None = None
    nodes: tuple[int, ...] = ()


def decide(
    history: Sequence[AttemptFailure],
    limits: RestartLimits,
    *,
    progress: Sequence[int | None],
    fallback: MemoryFallback,
    micro_batch: int | None = None,
) -> RunDecision:
    """The answer to the last failure of `history`, which holds all failures of this run so far, the first one first.

    `progress` is the step of the newest complete checkpoint before each attempt, 0 for none, and last the one the next
    attempt would begin from; None where that is unknown, as with a script of the user's own: then only `max_restarts`
    is the limit. `fallback` is the one in force and `micro_batch` the rows per rank and pass that it led to (see
    `shrink`), None where unknown."""
    last, known = history[-1], _cause(history[-1])
    expected = (NODE_LOST,) if limits.losses else ()
    stalled = _since_progress(history, progress)
    names = SubjectNames(
        last,
        _TABLE["terms"],
        known=known,
        is_unknown=known is UNKNOWN,
        is_configuration=last.exit_code in CONFIGURATION,
        is_expected=last.cause in expected,
        earlier=[(each.trace, each.step) for each in history[:-1]],
        rollbacks=sum(each.rollback for each in history),
        most_rollbacks=ROLLBACKS,
        done=sum(_counts(each) and each.cause not in expected for each in history[:-1]),
        stalled=stalled,
        most_stalled=STALLED + limits.losses,
        # The exponent is bounded too: --max-restarts is not, and 2.0 ** 1024 is an OverflowError.
        wait_s=min(LONGEST_WAIT, 2.0 ** min(stalled - 1, 10)),
        limits=limits,
        progress=progress,
        fallback=fallback,
        micro_batch=micro_batch,
    )
    row = next(each for each in _TABLE["decisions"] if evaluate(each["when"], names))
    return RunDecision(
        action=row["action"],
        exit_code=row.get("exit_code", exit_code(last)),
        wait_s=evaluate(row.get("wait_s", "0.0"), names),
        why=evaluate(row["why"], names),
        fallback=replace(fallback, **evaluate(row.get("change", "{}"), names)),
        cause=row.get("cause", last.cause),
    )


def _cause(failure: AttemptFailure) -> FailureCause:
    """What is known of it; neither "none" nor "unknown" is a reason for a failure."""
    return UNKNOWN if failure.cause in ("none", "unknown") else cause_named(failure.cause)


def _counts(failure: AttemptFailure) -> bool:
    """Whether the restart after it was one of --max-restarts; fallbacks and rollbacks have bounds of their own."""
    return _cause(failure).then != "shrink" and not failure.rollback


def _since_progress(history: Sequence[AttemptFailure], progress: Sequence[int | None]) -> int:
    """How many failures, this one included, have come since the newest checkpoint last moved on; 1 at least."""
    count = 0
    for index in range(len(history) - 1, -1, -1):
        count += _counts(history[index])
        before, after = (progress[at] if at < len(progress) else None for at in (index, index + 1))
        if before is not None and after is not None and after > before:
            break
    return max(count, 1)


def exit_code(failure: AttemptFailure) -> int:
    """The code to end with: the worker's own, 128 + n for signal n, never 0 for a failure."""
    code = failure.exit_code
    return 128 - code if code < 0 else code or EXIT_TOOL_FAILED


def evidence_against(failure: AttemptFailure, events: Iterable[Mapping[str, Any]]) -> str | None:
    """What speaks against the node of `failure`, "a hardware error" or "2 failures"; None for nothing.

    `events` are those of the run folder, with this failure and those of earlier starts of the job."""
    cause, events = cause_named(failure.cause), list(events)
    # Where the hardware has failed before, the next attempt may find no GPU any more.
    earlier = (each.get("cause", "") for each in events if failure.host and each.get("failed_host") == failure.host)
    missing = failure.exit_code == EXIT_MISSING and any(cause_named(str(each)).faulty_node for each in earlier)
    if cause.faulty_node or missing:
        return "a hardware error"
    if not cause.suspect_node or not failure.host:
        return None
    counts = Counter(
        str(event["failed_host"])
        for event in events
        if event.get("kind") == "failure"
        and "failed_host" in event
        and cause_named(str(event.get("cause", ""))).suspect_node
    )
    suspects = [host for host, count in counts.items() if count >= REPEATED]
    if failure.host not in suspects or len(suspects) > _MOST_SUSPECTS:
        return None
    return f"{counts[failure.host]} failures"
