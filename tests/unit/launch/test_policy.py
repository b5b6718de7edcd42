"""What is done after a failure: every branch of the policy, and that it always terminates."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsrun.diagnosis.rules import causes
from dsrun.errors import EXIT_RESUME
from dsrun.launch.memory_fallback import MemoryFallback, shrink
from dsrun.launch.supervisor.policy import ROLLBACKS, STALLED, AttemptFailure, RestartLimits, RunDecision, decide

KILLED = AttemptFailure(cause="rank_killed", rank=1, exit_code=-9)
OOM = AttemptFailure(cause="cuda_oom", rank=0, exit_code=1)
PLENTY = RestartLimits(max_restarts=100)


def crash(step: int | None = 7, trace: str = "t", message: str = "KeyError: 'x'") -> AttemptFailure:
    return AttemptFailure(cause="", rank=0, exit_code=1, message=message, step=step, trace=trace)


def answer(
    *history: AttemptFailure,
    limits: RestartLimits = PLENTY,
    progress: list[int | None] | None = None,
    fallback: MemoryFallback | None = None,
    micro: int | None = None,
) -> RunDecision:
    steps = progress if progress is not None else [0] * (len(history) + 1)
    return decide(list(history), limits, progress=steps, fallback=fallback or MemoryFallback(), micro_batch=micro)


def test_restart_killed_rank_from_newest_checkpoint() -> None:
    """A killed rank is started again from the newest checkpoint."""
    decision = answer(KILLED, progress=[0, 40])
    assert (decision.action, decision.wait_s) == ("restart", 1.0)
    assert decision.why == "a rank was killed: again from step 40 in 1 s (restart 1 of at most 100)"
    assert answer(KILLED).why.startswith("a rank was killed: again from its start in 1 s")


def test_restart_limit_without_new_checkpoint() -> None:
    """Two restarts without a new checkpoint end the run."""
    assert answer(KILLED, KILLED).action == "restart"
    ended = answer(KILLED, KILLED, KILLED)
    assert (ended.action, ended.exit_code) == ("stop", 137)
    assert "2 restarts brought no new checkpoint" in ended.why


def test_restart_backoff_reset_by_progress() -> None:
    """Progress allows more restarts and resets the wait."""
    assert answer(KILLED, KILLED, progress=[0, 0, 0]).wait_s == 2.0
    on = answer(*[KILLED] * 5, progress=[0, 10, 20, 30, 40, 50])
    assert (on.action, on.wait_s) == ("restart", 1.0)


def test_older_checkpoint_is_no_progress() -> None:
    """A checkpoint older than before is no progress."""
    assert answer(KILLED, KILLED, KILLED, progress=[30, 20, 10, 10]).action == "stop"


def test_restart_backoff_without_known_progress() -> None:
    """Where progress cannot be known only --max-restarts ends the run, and the wait grows to a minute."""
    waits = [answer(*[KILLED] * n, progress=[None] * (n + 1)).wait_s for n in range(1, 10)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert answer(*[KILLED] * 4, progress=[None] * 5, limits=RestartLimits(max_restarts=3)).action == "stop"


@pytest.mark.parametrize(("allowed", "failures"), [(0, 1), (1, 2), (3, 4)])
def test_max_restarts_limit(allowed: int, failures: int) -> None:
    """No more restarts than --max-restarts."""
    steps: list[int | None] = list(range(0, 10 * failures + 1, 10))
    ended = answer(*[KILLED] * failures, limits=RestartLimits(max_restarts=allowed), progress=steps)
    assert ended.action == "stop"
    assert f"--max-restarts is {allowed}" in ended.why
    one_less = answer(*[KILLED] * (failures - 1), progress=steps[:failures]) if failures > 1 else None
    assert one_less is None or one_less.action == "restart"


def test_deterministic_crash_is_not_restarted() -> None:
    """The same crash twice at the same step is not tried again."""
    first = answer(crash())
    assert first.action == "restart"
    assert first.why.startswith("the workers failed: KeyError: 'x': again from its start")
    again = answer(crash(), KILLED, crash())
    assert (again.action, again.exit_code, again.cause) == ("stop", 1, "deterministic_crash")
    assert (first.cause, answer(KILLED).cause) == ("", "rank_killed")
    assert again.why == "the same crash twice after step 7, so a restart does not help: KeyError: 'x'"
    assert "before training began" in answer(crash(step=None), crash(step=None)).why
    unknown = decide([crash(step=None)] * 2, RestartLimits(), progress=[None] * 3, fallback=MemoryFallback())
    assert (unknown.cause, "before" in unknown.why) == ("deterministic_crash", False)


@pytest.mark.parametrize("other", [crash(step=8), crash(trace="u"), crash(step=None)])
def test_crash_at_other_step_or_trace_is_restarted(other: AttemptFailure) -> None:
    """A crash at another place or step is another crash."""
    assert answer(crash(), other).action == "restart"


def test_crash_without_trace_is_never_deterministic() -> None:
    """Two crashes without a traceback are never the same crash."""
    nameless = AttemptFailure(cause="", exit_code=1)
    assert answer(nameless, nameless).action == "restart"


def test_repeated_nccl_network_failure_is_restarted() -> None:
    """A broken network may fail twice at the same place."""
    broken = AttemptFailure(cause="nccl_network", trace="t", step=3)
    assert answer(broken, broken).action == "restart"


@pytest.mark.parametrize("code", [2, 3, 4])
def test_a_configuration_error_is_not_restarted(code: int) -> None:
    for cause in ("", "address_in_use"):
        decision = answer(AttemptFailure(cause=cause, exit_code=code))
        assert (decision.action, decision.exit_code) == ("stop", code)
        assert decision.why.startswith("configuration or usage error")


@pytest.mark.parametrize("cause", ["disk_full", "nan_loss", "ds_config_invalid", "permission_denied"])
def test_permanent_failure_is_not_restarted_and_names_fix(cause: str) -> None:
    """A failure that would repeat is not restarted, and the message says what helps."""
    decision = answer(AttemptFailure(cause=cause, exit_code=1))
    assert (decision.action, decision.exit_code) == ("stop", 1)
    assert causes()[cause].title in decision.why
    assert causes()[cause].fix in decision.why


@pytest.mark.parametrize("cause", ["interrupted", "slurm_preempted", "slurm_time_limit"])
def test_interrupted_run_stops_with_resume_exit_code(cause: str) -> None:
    """A run that was told to stop ends with the exit code for resuming."""
    decision = answer(AttemptFailure(cause=cause, exit_code=143))
    assert (decision.action, decision.exit_code) == ("stop", EXIT_RESUME)


def test_failure_classified_as_none_is_unknown() -> None:
    """A failure classified as `none` is one of unknown cause."""
    assert answer(AttemptFailure(cause="none", exit_code=1, message="odd")).why.startswith("the workers failed: odd")


def test_oom_halves_micro_batch_then_recomputes_then_offloads() -> None:
    """Out of memory halves the micro batch, then recomputes, then offloads, then stops."""
    fallback, micro, seen = MemoryFallback(), 4, []
    while (
        decision := answer(OOM, fallback=fallback, micro=micro, limits=RestartLimits(max_restarts=0))
    ).action == "restart":
        fallback = decision.fallback
        micro = shrink(4, 1, fallback.halvings)[0]
        seen.append((fallback.halvings, fallback.recompute, fallback.offload))
        assert decision.wait_s == 0
    assert seen == [
        (1, False, "none"), (2, False, "none"), (2, True, "none"), (2, True, "cpu"),
    ]  # fmt: skip
    assert decision.exit_code == 1
    assert "every remedy in force" in decision.why


def test_memory_fallback_message_names_change() -> None:
    """The message of a memory fallback says what it changes."""
    assert answer(OOM, micro=8).why == (
        "GPU memory exhausted: again with half the micro batch and more accumulation, the global batch stays"
    )
    assert "gradient checkpointing" in answer(OOM, micro=1).why
    assert "offloaded" in answer(OOM, micro=1, fallback=MemoryFallback(recompute=True)).why


def test_unknown_micro_batch_is_not_halved() -> None:
    """A micro batch that nobody knows is not halved."""
    assert answer(OOM).fallback == MemoryFallback(recompute=True)


def test_host_oom_fallback_skips_cpu_offload() -> None:
    """Offloading to host memory does not help when host memory ran out."""
    killed = AttemptFailure(cause="host_oom_killed", exit_code=-9)
    assert answer(killed, micro=2).fallback == MemoryFallback(halvings=1)
    ended = answer(killed, micro=1, fallback=MemoryFallback(recompute=True))
    assert (ended.action, ended.exit_code) == ("stop", 137)


def test_no_remedy_flag_disables_memory_fallback() -> None:
    """--no-remedy is respected."""
    decision = answer(OOM, micro=8, limits=RestartLimits(remedy=False))
    assert decision.action == "stop"
    assert causes()["cuda_oom"].fix in decision.why


def test_memory_fallback_does_not_count_as_restart() -> None:
    """Memory fallbacks do not count as restarts of --max-restarts."""
    after = answer(OOM, OOM, KILLED, limits=RestartLimits(max_restarts=1))
    assert (after.action, after.wait_s) == ("restart", 1.0)
    assert "(restart 1 of at most 1)" in after.why


def test_memory_fallback_in_force_is_kept() -> None:
    """The memory fallback in force is kept."""
    fallback = MemoryFallback(halvings=2, recompute=True, offload="cpu")
    assert answer(KILLED, fallback=fallback).fallback == fallback
    assert answer(AttemptFailure(cause="disk_full"), fallback=fallback).fallback == fallback


def test_nan_rollback_does_not_count_as_restart() -> None:
    """A rollback that a rank asks for does not count as a restart."""
    back = AttemptFailure(cause="nan_loss", exit_code=1, rollback=True)
    decision = answer(back, limits=RestartLimits(max_restarts=0), progress=[0, 40])
    assert (decision.action, decision.wait_s, decision.cause) == ("restart", 0.0, "nan_loss")
    assert decision.why == "the loss is not finite: again from step 40, without what failed"
    assert "(restart 1 of at most 1)" in answer(back, back, KILLED, limits=RestartLimits(max_restarts=1)).why


def test_nan_rollback_limit() -> None:
    """The number of rollbacks is limited."""
    back = AttemptFailure(cause="nan_loss", exit_code=1, rollback=True)
    assert answer(*[back] * ROLLBACKS).action == "restart"
    assert answer(*[back] * (ROLLBACKS + 1)).action == "stop"


def test_failure_exit_code_is_never_0() -> None:
    """A failure never ends with 0."""
    assert answer(AttemptFailure(cause="disk_full", exit_code=0)).exit_code == 1


def test_remedy_json_round_trip() -> None:
    """remedy.json is read as it is written."""
    fallback = MemoryFallback(halvings=3, recompute=True, offload="cpu")
    assert fallback.as_dict() == {"version": 1, "halvings": 3, "recompute": True, "offload": "cpu"}
    assert MemoryFallback.from_dict(fallback.as_dict()) == fallback


@pytest.mark.parametrize(
    "change", [{"version": 2}, {"halvings": "1"}, {"halvings": -1}, {"recompute": 1}, {"offload": "nvme"}]
)
def test_remedy_json_of_other_format_refused(change: dict[str, object]) -> None:
    """A remedy.json of another format is refused."""
    with pytest.raises(ValueError, match="not what this dsrun writes"):
        MemoryFallback.from_dict({**MemoryFallback().as_dict(), **change})


@given(st.integers(1, 512), st.integers(1, 64), st.integers(0, 12))
def test_micro_batch_halving_keeps_global_batch(micro: int, steps: int, halvings: int) -> None:
    """Halving keeps the global batch, and comes down to one."""
    rows, more = shrink(micro, steps, halvings)
    assert rows * more == micro * steps
    assert 1 <= rows <= max(1, micro >> halvings)
    assert shrink(micro, steps, 10)[0] == 1


CODES = [*causes(), "", "never heard of"]
FAILURES = st.builds(
    AttemptFailure,
    cause=st.sampled_from(CODES),
    exit_code=st.integers(-15, 130),
    step=st.none() | st.integers(0, 3),
    rollback=st.integers(0, 9).map(lambda n: n == 0),
    trace=st.none() | st.sampled_from("ab"),
)


# Drawing long lists takes seconds on a busy machine.
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(FAILURES, min_size=40, max_size=40), st.integers(0, 20), st.integers(1, 64))
def test_restarts_without_progress_end_within_limits(failures: list[AttemptFailure], allowed: int, micro: int) -> None:
    """A run that fails at every attempt and never saves: the supervisor's loop, with the policy's answers."""
    fallback, restarts, shrunk = MemoryFallback(), 0, 0
    for attempt in range(1, len(failures) + 1):
        now = shrink(micro, 1, fallback.halvings)[0]
        decision = answer(*failures[:attempt], limits=RestartLimits(max_restarts=allowed), fallback=fallback, micro=now)
        assert decision.why
        assert "\n" not in decision.why
        if decision.action == "stop":
            assert decision.exit_code != 0
            break
        shrunk += decision.fallback != fallback
        restarts += decision.fallback == fallback and not failures[attempt - 1].rollback
        fallback = decision.fallback
        assert 0 <= decision.wait_s <= 60
    assert decision.action == "stop"
    assert restarts <= min(allowed, STALLED)
    assert shrunk <= micro.bit_length() + 2


@given(st.lists(st.integers(0, 9), min_size=2, max_size=30), st.integers(0, 40))
def test_restarts_in_a_row_without_progress_never_exceed_limit(steps: list[int], allowed: int) -> None:
    """Restarts in a row without progress are never more than allowed."""
    stalled = 0
    for attempt in range(1, len(steps)):
        decision = answer(
            *[KILLED] * attempt, limits=RestartLimits(max_restarts=allowed), progress=list(steps[: attempt + 1])
        )
        stalled = 1 if steps[attempt] > steps[attempt - 1] else stalled + 1
        assert (decision.action == "restart") == (stalled <= STALLED and attempt <= allowed)
        if decision.action == "stop":
            break
