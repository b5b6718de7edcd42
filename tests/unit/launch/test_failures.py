"""Which rank failed first and why, from what an attempt leaves behind."""

from __future__ import annotations

import json
import signal

import pytest

from dsrun.launch.supervisor.failures import (
    FailureInputs,
    exit_code_of,
    explain,
    first_failure,
    first_of_nodes,
    interruption,
    trace_of,
)
from dsrun.launch.supervisor.policy import AttemptFailure
from dsrun.launch.supervisor.watchdog import RankHang

TRACEBACK = """\
Traceback (most recent call last):
  File "/home/me/train.py", line {line}, in <module>
    main()
  File "/home/me/train.py", line 3, in main
    raise ValueError({text!r})
ValueError: {text}
"""
AGENT = """\
Traceback (most recent call last):
  File "/venv/lib/torch/distributed/run.py", line 900, in main
    run(args)
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""


@pytest.fixture
def remains(tmp_path):
    """Make the remains of an attempt: files of failed ranks, and what the supervisor knows."""

    def make(*said: dict, log: str = "", **known) -> FailureInputs:
        (tmp_path / "launcher.log").write_text(log)
        for each in said:
            facts = {"exit_code": 1, "message": "lost its peers", "expected": False, "log": None, **each}
            (tmp_path / f"rank-{facts['rank']}.json").write_text(json.dumps(facts))
        return FailureInputs(
            failures=tmp_path,
            log=tmp_path / "launcher.log",
            **{"ended": {}, "steps": {}, "agent": 1, **known},
        )

    return make


def unknown(text: str, exit_code: int | None) -> str:
    return ""


def test_root_cause_rank_precedes_rank_that_lost_peers(remains):
    """A rank that knows why it failed comes before one that lost its peers."""
    left = remains(
        {"rank": 0, "time": 1.0},
        {"rank": 1, "time": 2.0, "expected": True, "exit_code": 2, "message": "no such column", "step": 7},
        ended={0: 1, 1: 2},
        steps={0: 6, 1: 6},
    )
    failure = explain(left, unknown)
    assert (failure.rank, failure.exit_code, failure.message) == (1, 2, "no such column")
    assert failure.step == 7


@pytest.mark.parametrize("cause", [None, "nccl_network", "nccl_timeout"])
def test_killed_rank_precedes_ranks_that_lost_it(remains, cause):
    """A killed rank comes before those that lost it."""
    left = remains(
        {"rank": 0, "time": 1.0, "cause": cause},
        ended={1: -9, 0: 1},
        steps={0: 5, 1: 4},
        detected_s=0.1,
        stalled_s=0.02,
    )
    failure = explain(left, unknown)
    assert (failure.cause, failure.rank, failure.exit_code, failure.step) == ("rank_killed", 1, -9, 4)
    assert failure.message == "rank 1 was killed (SIGKILL) after step 4"
    assert (failure.detected_s, failure.stalled_s) == (0.1, 0.02)


def test_crashed_rank_precedes_ranks_killed_by_agent(remains):
    """The agent's end takes its other ranks along by SIGKILL."""
    crash = {"rank": 1, "time": 1.0, "cause": None, "consequence": False, "message": "boom", "trace": "t"}
    lost = {"rank": 0, "time": 1.1, "cause": "nccl_network", "consequence": True}
    failure = explain(remains(crash, lost, ended={1: 1, 0: -9}), unknown)
    assert (failure.rank, failure.message, failure.trace) == (1, "boom", "t")
    # The other way round the crash came of the kill.
    assert explain(remains(crash, ended={0: -9, 1: 1}), unknown).cause == "rank_killed"


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("dataset not found: foo\n", ": dataset not found: foo"),
        ("no such file\nstep 1/30 loss 1.0\n[rank0]: RuntimeError: Connection closed by peer\n", ": no such file"),
        ("x\nE1127 00:17:44.113000 9980 torch/distributed/elastic/multiprocessing/api.py:1002] failed\n", ": x"),
        ("ready\n[rank1]: Traceback (most recent call last):\n[rank1]: ValueError: boom\n", ""),
        (f"ready\n{TRACEBACK.format(line=9, text='boom')}", ""),
        ("step 1/30 loss 1.0\n", ""),
    ],
)
def test_exit_code_with_what_program_said(remains, log, said):
    """sys.exit("why") leaves no traceback."""
    failure = explain(remains(log=log, ended={1: 5, 0: 1}), unknown)
    assert (failure.exit_code, failure.message) == (5, f"rank 1 ended with exit code 5{said}")


def test_fault_of_program_is_no_kill(remains):
    assert explain(remains(ended={1: -signal.SIGSEGV}), unknown).message == "rank 1 crashed (SIGSEGV)"


def test_exit_code_from_rank_failure_file(tmp_path, remains):
    """The exit code of a rank that is gone comes from the file it wrote."""
    remains({"rank": 0, "time": 1.0, "exit_code": 3})
    assert exit_code_of(tmp_path, 0) == 3
    assert exit_code_of(tmp_path, 1) is None


def test_oom_rank_precedes_rank_that_aborted_for_it(remains):
    """A rank that ran out of memory comes before one that aborted because of it."""
    left = remains({"rank": 0, "time": 1.0, "cause": "cuda_oom", "message": "oom"}, ended={1: -6, 0: 1})
    assert (explain(left, unknown).rank, explain(left, unknown).cause) == (0, "cuda_oom")


def test_agent_sigterm_is_not_the_root_cause(remains):
    """The agent's SIGTERM is not why a rank failed."""
    left = remains({"rank": 1, "time": 1.0, "message": "boom"}, ended={0: -signal.SIGTERM, 1: 1})
    assert explain(left, unknown).message == "boom"


def test_oom_killer_distinguished_from_other_sigkill(remains):
    """A kill by the kernel's OOM killer is told from anybody else's SIGKILL."""
    failure = explain(remains(ended={1: -9}, out_of_memory=True), unknown)
    assert failure.cause == "host_oom_killed"
    assert "out of host memory" in failure.message


def test_cause_reported_by_rank_skips_log_search(remains):
    """A cause that the rank itself reports is not looked for in its log."""
    left = remains({"rank": 0, "time": 1.0, "cause": "cuda_oom", "trace": "abc", "log": "/nowhere"})
    failure = explain(left, lambda text, code: pytest.fail("it was"))
    assert (failure.cause, failure.trace, failure.log) == ("cuda_oom", "abc", "/nowhere")


def test_cause_classified_from_rank_log(remains, tmp_path):
    """Without a reported cause the rank's own log tells it."""
    log = tmp_path / "rank-0.log"
    log.write_text("torch.OutOfMemoryError: CUDA out of memory")
    seen = []
    left = remains({"rank": 0, "time": 1.0, "log": str(log), "message": "boom"})
    failure = explain(left, lambda text, code: seen.append((text, code)) or "cuda_oom")
    assert failure.cause == "cuda_oom"
    ((text, code),) = seen
    assert "CUDA out of memory" in text
    assert "boom" in text
    assert code == 1


def test_hung_rank_precedes_later_exits_and_names_evidence(remains, tmp_path):
    """A hang is named, whatever ended since, and so is its evidence."""
    hang = RankHang(rank=1, silent_s=12.4, limit_s=10, stopped=True)
    found = {"hang": hang, "ended": {0: 1}, "steps": {1: 3}, "agent": None, "evidence": tmp_path / "seen"}
    failure = explain(remains(**found), unknown)
    assert failure.log == str(tmp_path / "seen")
    assert (failure.cause, failure.rank, failure.step, failure.detected_s) == ("rank_hung", 1, 3, 12.4)
    assert "stopped" in failure.message


def test_unnamed_realtime_signal_in_failure_message(remains):
    """Python names the first and the last of the real-time signals only."""
    assert explain(remains(ended={1: -40}), unknown).message == "rank 1 was killed (signal 40)"
    assert explain(remains(agent=-40), unknown).message == "the agent of the ranks was killed (signal 40)"


def test_log_of_earlier_attempts_ignored(remains):
    """All attempts of a program of the user's own write into one log."""
    earlier = TRACEBACK.format(line=9, text="first of all") + AGENT
    left = remains(log=earlier + "bash: oops\n", log_begins=len(earlier), ended={0: 3})
    seen = []
    failure = explain(left, lambda text, code: seen.append(text) or "")
    assert (failure.trace, seen) == (None, ["bash: oops\n"])
    assert explain(remains(log=earlier, log_begins=len(earlier)), unknown).message == ("the ranks could not be started")


def test_a_killed_agent(remains):
    failure = explain(remains(agent=-9, steps={0: 3, 1: 4}), unknown)
    assert (failure.cause, failure.rank, failure.exit_code, failure.step) == ("agent_killed", None, -9, 4)


def test_agent_own_failure_quoted_from_log(remains):
    """An agent that fails by itself is quoted."""
    log = AGENT.replace("multiprocessing.errors.ChildFailedError:", "DistNetworkError: address in use")
    failure = explain(remains(log=log), lambda text, code: "address_in_use" if "in use" in text else "")
    assert failure.cause == "address_in_use"
    assert failure.message.endswith("DistNetworkError: address in use")


def test_script_error_identified_by_traceback_location(remains):
    """A script that raises is identified by the place, not by the message."""
    log = TRACEBACK.format(line=9, text="once") + AGENT
    failure = explain(remains(log=log, ended={1: 1}), unknown)
    assert (failure.rank, failure.message) == (1, "rank 1 ended with exit code 1")
    assert failure.trace == trace_of(TRACEBACK.format(line=9, text="another time"))
    assert failure.trace != trace_of(TRACEBACK.format(line=8, text="once"))
    assert trace_of(AGENT) is None


def test_trace_is_that_of_the_failed_rank(remains):
    """torch marks the lines of each rank; what the others write of the lost one differs from time to time."""

    def marked(rank: int, text: str, line: int = 9) -> str:
        return "".join(f"[rank{rank}]: {each}\n" for each in TRACEBACK.format(line=line, text=text).splitlines())

    def trace(log: str, classify=unknown) -> str | None:
        return explain(remains(log=log + AGENT, ended={1: 1}), classify).trace

    once = trace(marked(1, "once") + marked(0, "Connection closed by peer", 5))
    assert once == trace(marked(0, "Connection closed by peer", 7) + marked(1, "again"))
    assert once == trace_of(TRACEBACK.format(line=9, text="plain"))
    lost = marked(1, "x").replace(
        "ValueError: x", "RuntimeError: [gloo/pair.cc:1] Connection closed by peer [10.0.0.1]:5"
    )
    assert trace(lost) is None, "a network that fails twice at the same place"


def test_half_written_failure_file_ignored(tmp_path):
    """Half-written failure files are passed over."""
    (tmp_path / "rank-0.json").write_text('{"rank": 0, "ti')
    assert first_failure(tmp_path) is None


def test_interruption_record_of_stopped_ranks(tmp_path):
    """Ranks that saved and left when told to leave a record of it."""
    assert interruption(tmp_path) is None
    (tmp_path / "interrupted.json").write_text('{"step": 5, "path": "checkpoint-5"}')
    assert interruption(tmp_path) == {"step": 5, "path": "checkpoint-5"}


@pytest.mark.parametrize(
    ("first", "second", "begun"),
    [
        (AttemptFailure(cause=""), AttemptFailure(cause="rank_killed", node=1), 1),
        (AttemptFailure(cause="nccl_network"), AttemptFailure(cause="node_lost", node=1), 1),
        (AttemptFailure(cause=""), AttemptFailure(cause="node_lost", node=1), 1),
        (AttemptFailure(cause="node_lost"), AttemptFailure(cause="rank_killed", node=1), 1),
        (AttemptFailure(cause="node_lost"), AttemptFailure(cause="nccl_timeout", node=1), 0),
        (AttemptFailure(cause="node_lost"), AttemptFailure(cause="", exit_code=2, node=1), 1),
        (AttemptFailure(cause="rank_killed"), AttemptFailure(cause="rank_hung", node=1), 0),
        (AttemptFailure(cause=""), AttemptFailure(cause="", node=1), 0),
    ],
)
def test_first_failure_of_nodes_prefers_root_cause(first, second, begun):
    """Of several nodes, one that only lost its peers comes last.

    However early: its supervisor may be the first to look.
    """
    assert first_of_nodes([first, second]) == (first, second)[begun]


def test_first_failure_of_no_nodes_is_none():
    """Without a failure there is no first one."""
    assert first_of_nodes([]) is None
