"""What to do after an attempt has failed: start again, with less memory, or stop. Pure: nothing is started here."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from dsrun.diagnosis.rules import UNKNOWN, FailureCause, cause_named
from dsrun.errors import EXIT_MISSING, EXIT_RESUME, EXIT_TOOL_FAILED, EXIT_USAGE
from dsrun.launch.memory_fallback import MemoryFallback

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
    checkpoint, and will then leave out what has failed.
    """

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
    of the checkpoint that the next attempt resumes from, `nodes` those that take part in it.
    """

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
    `shrink`), None where unknown.
    """
    last = history[-1]
    decision = _rolled_back(history, progress, fallback) or _stop_without_retry(history, progress, fallback)
    if decision is None and _cause(last).then == "shrink":
        decision = _shrunk(last, limits, fallback, micro_batch)
    if decision is None:
        decision = _restarted(history, limits, progress, fallback)
    return decision if decision.cause else replace(decision, cause=last.cause)


def _rolled_back(
    history: Sequence[AttemptFailure], progress: Sequence[int | None], fallback: MemoryFallback
) -> RunDecision | None:
    """What a rank asks for that wants to go back and leave something out. No chance failure, so no restart counts."""
    last = history[-1]
    if not last.rollback or sum(failure.rollback for failure in history) > ROLLBACKS:
        return None
    why = f"{_title(last)}: {_beginning(progress)}, without what failed"
    return RunDecision(action="restart", exit_code=exit_code(last), why=why, fallback=fallback)


def _stop_without_retry(
    history: Sequence[AttemptFailure], progress: Sequence[int | None], fallback: MemoryFallback
) -> RunDecision | None:
    """The decision where another attempt would end like this one, or is not ours to make."""
    last = history[-1]
    cause = _cause(last)
    if cause.then == "resume":
        return _stop(f"{cause.title}: the same command goes on from here", fallback, EXIT_RESUME)
    if cause.then == "stop":
        return _stop(f"{cause.title}; not restarted, it would end the same way: {cause.fix}", fallback, last)
    if last.exit_code in CONFIGURATION and cause.then != "shrink":
        return _stop("configuration or usage error; not restarted, it would end the same way", fallback, last)
    if (
        cause is UNKNOWN
        and last.trace
        and (last.trace, last.step) in [(earlier.trace, earlier.step) for earlier in history[:-1]]
    ):
        # Of a script of the user's own, its output may not show any step.
        unknown = "at the same place" if progress[-1] is None else "before training began"
        at = unknown if last.step is None else f"after step {last.step}"
        why = f"the same crash twice {at}, so a restart does not help: {last.message}"
        return replace(_stop(why, fallback, last), cause="deterministic_crash")
    return None


def _cause(failure: AttemptFailure) -> FailureCause:
    """What is known of it; neither "none" nor "unknown" is a reason for a failure."""
    return UNKNOWN if failure.cause in ("none", "unknown") else cause_named(failure.cause)


def _title(failure: AttemptFailure) -> str:
    cause = _cause(failure)
    return f"{cause.title}: {failure.message}" if cause is UNKNOWN and failure.message else cause.title


def _shrunk(
    last: AttemptFailure, limits: RestartLimits, fallback: MemoryFallback, micro_batch: int | None
) -> RunDecision:
    """Out of memory: the next fallback, in the order of what it costs in speed."""
    title = cause_named(last.cause).title
    if not limits.remedy:
        return _stop(f"{title}, and no remedy is allowed: {cause_named(last.cause).fix}", fallback, last)
    if micro_batch is not None and micro_batch > 1:
        change = replace(fallback, halvings=fallback.halvings + 1)
        what = "half the micro batch and more accumulation, the global batch stays"
    elif not fallback.recompute:
        change, what = replace(fallback, recompute=True), "activations recomputed (gradient checkpointing)"
    elif fallback.offload == "none" and last.cause != "host_oom_killed":  # which offloading would make worse
        change, what = replace(fallback, offload="cpu"), "the optimizer offloaded to the CPU"
    else:
        return _stop(f"{title}, with every remedy in force: {cause_named(last.cause).fix}", fallback, last)
    return RunDecision(action="restart", exit_code=exit_code(last), why=f"{title}: again with {what}", fallback=change)


def _restarted(
    history: Sequence[AttemptFailure], limits: RestartLimits, progress: Sequence[int | None], fallback: MemoryFallback
) -> RunDecision:
    """Another attempt, as long as restarts are left and the run gets on."""
    last = history[-1]
    title = _title(last)
    expected = (NODE_LOST,) if limits.losses else ()
    done = sum(_counts(failure) and failure.cause not in expected for failure in history[:-1])
    if done >= limits.max_restarts and last.cause not in expected:
        return _stop(f"{title}; {_times(done)}, and --max-restarts is {limits.max_restarts}", fallback, last)
    stalled = _since_progress(history, progress)
    if stalled > STALLED + limits.losses and progress[-1] is not None:
        why = f"{title}; {stalled - 1} restarts brought no new checkpoint, so another would not help"
        return _stop(why, fallback, last)
    # The exponent is bounded too: --max-restarts is not, and 2.0 ** 1024 is an OverflowError.
    wait = min(LONGEST_WAIT, 2.0 ** min(stalled - 1, 10))
    order = "" if last.cause in expected else f" (restart {done + 1} of at most {limits.max_restarts})"
    why = f"{title}: {_beginning(progress)} in {wait:.0f} s{order}"
    return RunDecision(action="restart", exit_code=exit_code(last), wait_s=wait, why=why, fallback=fallback)


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


def _beginning(progress: Sequence[int | None]) -> str:
    begin = progress[-1]
    if begin is None:
        return "again"
    return f"again from step {begin}" if begin else "again from its start"


def _times(count: int) -> str:
    return "restarted once" if count == 1 else f"restarted {count} times" if count else "not restarted"


def _stop(why: str, fallback: MemoryFallback, code: AttemptFailure | int) -> RunDecision:
    number = code if isinstance(code, int) else exit_code(code)
    return RunDecision(action="stop", exit_code=number, why=why, fallback=fallback)


def exit_code(failure: AttemptFailure) -> int:
    """The code to end with: the worker's own, 128 + n for signal n, never 0 for a failure."""
    code = failure.exit_code
    return 128 - code if code < 0 else code or EXIT_TOOL_FAILED


def evidence_against(failure: AttemptFailure, events: Iterable[Mapping[str, Any]]) -> str | None:
    """What speaks against the node of `failure`, "a hardware error" or "2 failures"; None for nothing.

    `events` are those of the run folder, with this failure and those of earlier starts of the job.
    """
    cause, events = cause_named(failure.cause), list(events)
    if cause.faulty_node or (failure.exit_code == EXIT_MISSING and _has_failed(failure.host, events)):
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


def _has_failed(host: str, events: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the hardware of `host` has failed before: the next attempt there may find no GPU any more."""
    causes = (str(each.get("cause", "")) for each in events if host and each.get("failed_host") == host)
    return any(cause_named(cause).faulty_node for cause in causes)
