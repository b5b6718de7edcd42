"""What is done after a failure: every branch of the policy, and that it always comes to an end."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsrun.causes.rules import causes
from dsrun.errors import EXIT_RESUME, UsageError
from dsrun.launch.policy import ROLLBACKS, STALLED, Decision, Failure, Limits, Remedy, decide, shrink

KILLED = Failure(cause="rank_killed", rank=1, exit_code=-9)
OOM = Failure(cause="cuda_oom", rank=0, exit_code=1)
PLENTY = Limits(max_restarts=100)


def crash(step: int | None = 7, trace: str = "t", message: str = "KeyError: 'x'") -> Failure:
    return Failure(cause="", rank=0, exit_code=1, message=message, step=step, trace=trace)


def answer(
    *history: Failure,
    limits: Limits = PLENTY,
    progress: list[int | None] | None = None,
    remedy: Remedy | None = None,
    micro: int | None = None,
) -> Decision:
    steps = progress if progress is not None else [0] * (len(history) + 1)
    return decide(list(history), limits, progress=steps, remedy=remedy or Remedy(), micro_batch=micro)


def test_a_killed_rank_is_started_again_from_the_newest_checkpoint() -> None:
    decision = answer(KILLED, progress=[0, 40])
    assert (decision.action, decision.wait_s) == ("restart", 1.0)
    assert decision.why == "a rank was killed: again from step 40 in 1 s (restart 1 of at most 100)"
    assert answer(KILLED).why.startswith("a rank was killed: again from its start in 1 s")


def test_two_restarts_without_a_new_checkpoint_end_it() -> None:
    assert answer(KILLED, KILLED).action == "restart"
    ended = answer(KILLED, KILLED, KILLED)
    assert (ended.action, ended.exit_code) == ("stop", 137)
    assert "2 restarts brought no new checkpoint" in ended.why


def test_progress_allows_more_restarts_and_resets_the_wait() -> None:
    assert answer(KILLED, KILLED, progress=[0, 0, 0]).wait_s == 2.0
    on = answer(*[KILLED] * 5, progress=[0, 10, 20, 30, 40, 50])
    assert (on.action, on.wait_s) == ("restart", 1.0)


def test_an_older_checkpoint_than_before_is_no_progress() -> None:
    assert answer(KILLED, KILLED, KILLED, progress=[30, 20, 10, 10]).action == "stop"


def test_where_progress_cannot_be_known_only_max_restarts_ends_it_and_the_wait_grows_to_a_minute() -> None:
    waits = [answer(*[KILLED] * n, progress=[None] * (n + 1)).wait_s for n in range(1, 10)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert answer(*[KILLED] * 4, progress=[None] * 5, limits=Limits(max_restarts=3)).action == "stop"


@pytest.mark.parametrize(("allowed", "failures"), [(0, 1), (1, 2), (3, 4)])
def test_no_more_restarts_than_max_restarts(allowed: int, failures: int) -> None:
    steps: list[int | None] = list(range(0, 10 * failures + 1, 10))
    ended = answer(*[KILLED] * failures, limits=Limits(max_restarts=allowed), progress=steps)
    assert ended.action == "stop"
    assert f"--max-restarts is {allowed}" in ended.why
    one_less = answer(*[KILLED] * (failures - 1), progress=steps[:failures]) if failures > 1 else None
    assert one_less is None or one_less.action == "restart"


def test_the_same_crash_twice_at_the_same_step_is_not_tried_again() -> None:
    first = answer(crash())
    assert first.action == "restart"
    assert first.why.startswith("the workers failed: KeyError: 'x': again from its start")
    again = answer(crash(), KILLED, crash())
    assert (again.action, again.exit_code, again.cause) == ("stop", 1, "deterministic_crash")
    assert (first.cause, answer(KILLED).cause) == ("", "rank_killed")
    assert again.why == "the same crash twice after step 7, so a restart does not help: KeyError: 'x'"
    assert "before training began" in answer(crash(step=None), crash(step=None)).why


@pytest.mark.parametrize("other", [crash(step=8), crash(trace="u"), crash(step=None)])
def test_another_place_or_step_is_another_crash(other: Failure) -> None:
    assert answer(crash(), other).action == "restart"


def test_a_crash_without_a_trace_is_never_the_same() -> None:
    nameless = Failure(cause="", exit_code=1)
    assert answer(nameless, nameless).action == "restart"


def test_a_broken_network_may_break_twice_at_one_place() -> None:
    broken = Failure(cause="nccl_network", trace="t", step=3)
    assert answer(broken, broken).action == "restart"


@pytest.mark.parametrize("code", [2, 3, 4])
def test_a_configuration_error_is_not_restarted(code: int) -> None:
    for cause in ("", "address_in_use"):
        decision = answer(Failure(cause=cause, exit_code=code))
        assert (decision.action, decision.exit_code) == ("stop", code)
        assert decision.why.startswith("configuration or usage error")


@pytest.mark.parametrize("cause", ["disk_full", "nan_loss", "ds_config_invalid", "permission_denied"])
def test_what_would_end_the_same_way_is_not_restarted_and_says_what_helps(cause: str) -> None:
    decision = answer(Failure(cause=cause, exit_code=1))
    assert (decision.action, decision.exit_code) == ("stop", 1)
    assert causes()[cause].title in decision.why
    assert causes()[cause].fix in decision.why


@pytest.mark.parametrize("cause", ["interrupted", "slurm_preempted", "slurm_time_limit"])
def test_who_was_told_to_stop_ends_with_the_code_for_resuming(cause: str) -> None:
    decision = answer(Failure(cause=cause, exit_code=143))
    assert (decision.action, decision.exit_code) == ("stop", EXIT_RESUME)


def test_a_failure_classified_as_none_is_one_that_nobody_knows() -> None:
    assert answer(Failure(cause="none", exit_code=1, message="odd")).why.startswith("the workers failed: odd")


def test_out_of_memory_halves_then_recomputes_then_offloads_then_stops() -> None:
    remedy, micro, seen = Remedy(), 4, []
    while (
        decision := answer(OOM, remedy=remedy, micro=micro, limits=Limits(max_restarts=0))
    ).action == "restart":
        remedy = decision.remedy
        micro = shrink(4, 1, remedy.halvings)[0]
        seen.append((remedy.halvings, remedy.recompute, remedy.offload))
        assert decision.wait_s == 0
    assert seen == [
        (1, False, "none"), (2, False, "none"), (2, True, "none"), (2, True, "cpu"),
    ]  # fmt: skip
    assert decision.exit_code == 1
    assert "every remedy in force" in decision.why


def test_the_remedy_says_what_it_changes() -> None:
    assert answer(OOM, micro=8).why == (
        "GPU memory exhausted: again with half the micro batch and more accumulation, the global batch stays"
    )
    assert "gradient checkpointing" in answer(OOM, micro=1).why
    assert "offloaded" in answer(OOM, micro=1, remedy=Remedy(recompute=True)).why


def test_a_micro_batch_that_nobody_knows_is_not_halved() -> None:
    assert answer(OOM).remedy == Remedy(recompute=True)


def test_host_memory_is_not_relieved_by_offloading_to_it() -> None:
    killed = Failure(cause="host_oom_killed", exit_code=-9)
    assert answer(killed, micro=2).remedy == Remedy(halvings=1)
    ended = answer(killed, micro=1, remedy=Remedy(recompute=True))
    assert (ended.action, ended.exit_code) == ("stop", 137)


def test_no_remedy_is_respected() -> None:
    decision = answer(OOM, micro=8, limits=Limits(remedy=False))
    assert decision.action == "stop"
    assert causes()["cuda_oom"].fix in decision.why


def test_remedies_are_no_restarts_of_max_restarts() -> None:
    after = answer(OOM, OOM, KILLED, limits=Limits(max_restarts=1))
    assert (after.action, after.wait_s) == ("restart", 1.0)
    assert "(restart 1 of at most 1)" in after.why


def test_the_remedy_in_force_is_kept() -> None:
    remedy = Remedy(halvings=2, recompute=True, offload="cpu")
    assert answer(KILLED, remedy=remedy).remedy == remedy
    assert answer(Failure(cause="disk_full"), remedy=remedy).remedy == remedy


def test_a_rank_that_asks_for_it_goes_back_and_no_restart_counts() -> None:
    back = Failure(cause="nan_loss", exit_code=1, rollback=True)
    decision = answer(back, limits=Limits(max_restarts=0), progress=[0, 40])
    assert (decision.action, decision.wait_s, decision.cause) == ("restart", 0.0, "nan_loss")
    assert decision.why == "the loss is not finite: again from step 40, without what failed"
    assert "(restart 1 of at most 1)" in answer(back, back, KILLED, limits=Limits(max_restarts=1)).why


def test_going_back_has_an_end() -> None:
    back = Failure(cause="nan_loss", exit_code=1, rollback=True)
    assert answer(*[back] * ROLLBACKS).action == "restart"
    assert answer(*[back] * (ROLLBACKS + 1)).action == "stop"


def test_a_failure_never_ends_with_0() -> None:
    assert answer(Failure(cause="disk_full", exit_code=0)).exit_code == 1


def test_no_failure_is_nothing_to_decide() -> None:
    with pytest.raises(ValueError, match="no failure"):
        answer()


def test_remedy_json_is_read_as_it_is_written() -> None:
    remedy = Remedy(halvings=3, recompute=True, offload="cpu")
    assert remedy.as_dict() == {"version": 1, "halvings": 3, "recompute": True, "offload": "cpu"}
    assert Remedy.from_dict(remedy.as_dict()) == remedy


@pytest.mark.parametrize(
    "change", [{"version": 2}, {"halvings": "1"}, {"halvings": -1}, {"recompute": 1}, {"offload": "nvme"}]
)
def test_a_remedy_json_of_another_make_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"remedy\.json"):
        Remedy.from_dict({**Remedy().as_dict(), **change})


@given(st.integers(1, 512), st.integers(1, 64), st.integers(0, 12))
def test_halving_keeps_the_global_batch_and_comes_down_to_one(micro: int, steps: int, halvings: int) -> None:
    rows, more = shrink(micro, steps, halvings)
    assert rows * more == micro * steps
    assert 1 <= rows <= max(1, micro >> halvings)
    assert shrink(micro, steps, 10)[0] == 1


CODES = [*causes(), "", "never heard of"]
FAILURES = st.builds(
    Failure,
    cause=st.sampled_from(CODES),
    exit_code=st.integers(-15, 130),
    step=st.none() | st.integers(0, 3),
    rollback=st.integers(0, 9).map(lambda n: n == 0),
    trace=st.none() | st.sampled_from("ab"),
)


# Drawing long lists takes seconds on a busy machine.
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(FAILURES, min_size=40, max_size=40), st.integers(0, 20), st.integers(1, 64))
def test_without_progress_every_run_ends_within_its_limits(
    failures: list[Failure], allowed: int, micro: int
) -> None:
    """A run that fails at every attempt and never saves: the supervisor's loop, with the policy's answers."""
    remedy, restarts, shrunk = Remedy(), 0, 0
    for attempt in range(1, len(failures) + 1):
        now = shrink(micro, 1, remedy.halvings)[0]
        decision = answer(*failures[:attempt], limits=Limits(max_restarts=allowed), remedy=remedy, micro=now)
        assert decision.why
        assert "\n" not in decision.why
        if decision.action == "stop":
            assert decision.exit_code != 0
            break
        shrunk += decision.remedy != remedy
        restarts += decision.remedy == remedy and not failures[attempt - 1].rollback
        remedy = decision.remedy
        assert 0 <= decision.wait_s <= 60
    assert decision.action == "stop"
    assert restarts <= min(allowed, STALLED)
    assert shrunk <= micro.bit_length() + 2


@given(st.lists(st.integers(0, 9), min_size=2, max_size=30), st.integers(0, 40))
def test_restarts_in_a_row_without_progress_are_never_more_than_allowed(
    steps: list[int], allowed: int
) -> None:
    stalled = 0
    for attempt in range(1, len(steps)):
        decision = answer(
            *[KILLED] * attempt, limits=Limits(max_restarts=allowed), progress=list(steps[: attempt + 1])
        )
        stalled = 1 if steps[attempt] > steps[attempt - 1] else stalled + 1
        assert (decision.action == "restart") == (stalled <= STALLED and attempt <= allowed)
        if decision.action == "stop":
            break
