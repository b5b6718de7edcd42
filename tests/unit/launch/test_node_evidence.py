"""Failures that speak against a node: hardware errors at once, other failures if they come again there."""

from __future__ import annotations

import pytest

from dsrun.errors import EXIT_MISSING
from dsrun.launch.supervisor.policy import AttemptFailure, evidence_against


def events(*failures: tuple[str, str]) -> list[dict[str, object]]:
    """One event per failure: its cause and host."""
    return [{"kind": "failure", "cause": cause, "failed_host": host} for cause, host in failures]


def evidence(cause: str, host: str, *earlier: tuple[str, str]) -> str | None:
    return evidence_against(AttemptFailure(cause=cause, node=1, host=host), events(*earlier, (cause, host)))


def test_hardware_error_counts_at_once() -> None:
    assert evidence("ecc_or_xid_error", "n1") == "a hardware error"


def test_gpu_that_has_failed_and_is_gone_counts() -> None:
    """The attempt after a hardware error ends with code 4, as the rank sees fewer GPUs: another node has them."""
    gone = AttemptFailure(cause="unknown", node=1, host="n1", exit_code=EXIT_MISSING)
    assert evidence_against(gone, events(("ecc_or_xid_error", "n1"), ("unknown", "n1"))) == "a hardware error"
    assert evidence_against(gone, events(("ecc_or_xid_error", "n2"), ("unknown", "n1"))) is None
    assert evidence_against(gone, events(("unknown", "n1"))) is None


@pytest.mark.parametrize("cause", ["rank_killed", "rank_hung", "agent_killed", "node_lost"])
def test_second_failure_of_a_node_is_evidence(cause) -> None:
    assert evidence(cause, "n1") is None
    assert evidence(cause, "n1", ("rank_killed", "n1")) == "2 failures"
    assert evidence(cause, "n1", ("rank_killed", "n2")) is None


def test_failures_of_the_program_are_no_evidence() -> None:
    assert evidence("cuda_oom", "n1", ("cuda_oom", "n1"), ("cuda_oom", "n1")) is None
    assert evidence("rank_killed", "n1", ("cuda_oom", "n1")) is None


def test_failures_on_many_nodes_are_the_programs_own() -> None:
    """A rank that dies wherever it runs would otherwise cost the job one node after the other."""
    twice = [("rank_killed", host) for host in ("n1", "n2") for _ in range(2)]
    assert evidence("rank_killed", "n2", *twice[:3]) == "2 failures"
    assert evidence("rank_killed", "n3", *twice, ("rank_killed", "n3")) is None


def test_events_of_earlier_versions_have_no_host() -> None:
    assert (
        evidence_against(AttemptFailure(cause="rank_killed", host="n1"), [{"kind": "failure", "cause": "rank_killed"}])
        is None
    )
