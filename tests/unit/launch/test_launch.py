from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

import pytest

from dsrun.errors import UsageError
from dsrun.launch.agent import run_agent
from dsrun.launch.command import agent_argv, worker_environment
from dsrun.launch.topology import Topology, decide


@pytest.mark.parametrize(
    ("nproc", "gpus", "use_cpu", "expected"),
    [
        (None, 4, False, Topology(4, "cuda", 8)),
        (2, 4, False, Topology(2, "cuda", 8)),
        (None, 0, False, Topology(1, "cpu", 8)),
        (3, 0, False, Topology(3, "cpu", 8)),
        (2, 4, True, Topology(2, "cpu", 8)),
    ],
)
def test_one_worker_per_gpu_unless_told_otherwise(nproc, gpus, use_cpu, expected):
    assert decide(nproc=nproc, visible_gpus=gpus, cores=8, use_cpu=use_cpu) == expected


def test_more_workers_than_gpus_are_refused():
    with pytest.raises(UsageError, match=r"--nproc 2: only 1 GPU is visible.*--nproc 1"):
        decide(nproc=2, visible_gpus=1, cores=8, use_cpu=False)


def test_the_modules_flags_stand_behind_two_dashes():
    argv = agent_argv(Topology(2, "cpu", 2), port=29501, module="some.module", args=["--d", "3"])
    assert argv[: argv.index("--")].count("torch.distributed.run") == 1
    assert argv[argv.index("--") + 1 :] == ["some.module", "--d", "3"]


def test_what_the_user_has_set_stays():
    changes = worker_environment(Topology(2, "cpu", 8), {"OMP_NUM_THREADS": "3"}, debug=False)
    assert "OMP_NUM_THREADS" not in changes
    assert worker_environment(Topology(2, "cpu", 8), {}, debug=False)["OMP_NUM_THREADS"] == "4"


def test_the_environments_own_tools_are_found_first():
    own = str(Path(sys.executable).parent)
    topology = Topology(1, "cpu", 1)
    assert worker_environment(topology, {"PATH": "/usr/bin"}, debug=False)["PATH"] == f"{own}:/usr/bin"
    assert "PATH" not in worker_environment(topology, {"PATH": f"/usr/bin:{own}"}, debug=False)


def test_variables_that_would_drop_deepspeed_are_removed():
    changes = worker_environment(Topology(1, "cpu", 1), {"ACCELERATE_USE_CPU": "true"}, debug=False)
    assert changes["ACCELERATE_USE_CPU"] is None


def test_debug_turns_the_distributed_logs_on():
    topology = Topology(1, "cuda", 1)
    assert worker_environment(topology, {}, debug=True)["NCCL_DEBUG"] == "INFO"
    assert "NCCL_DEBUG" not in worker_environment(topology, {}, debug=False)


def run_script(tmp_path, source, **options):
    """An agent that is a small program; returns its outcome."""
    script = tmp_path / "agent.py"
    script.write_text("import json, os, signal, sys\n" + textwrap.dedent(source))
    return run_agent(
        [sys.executable, str(script)], os.environ, tmp_path / "agent.log", terminal_width=None, **options
    )


def test_rank_0_speaks_through_the_pipe_and_the_agent_into_the_log(tmp_path, capfd):
    outcome = run_script(
        tmp_path,
        """
        print("noise of the agent", file=sys.stderr)
        with open(os.environ["DSRUN_CONSOLE"], "w") as console:
            console.write("words for the user\\n")
        """,
    )
    assert outcome.exit_code == 0
    assert capfd.readouterr().err == "words for the user\n"
    assert "noise of the agent" in (tmp_path / "agent.log").read_text()


def test_debug_shows_the_agents_output_as_well(tmp_path, capfd):
    run_script(tmp_path, "print('noise of the agent', file=sys.stderr)", echo=True)
    assert "noise of the agent" in capfd.readouterr().err
    assert "noise of the agent" in (tmp_path / "agent.log").read_text()


def test_the_first_rank_that_knows_why_gives_message_and_exit_code(tmp_path):
    outcome = run_script(
        tmp_path,
        """
        def fail(rank, time, expected, message, code):
            facts = dict(rank=rank, time=time, expected=expected, message=message, exit_code=code, log=None)
            with open(os.path.join(os.environ["DSRUN_FAILURES"], f"rank-{rank}.json"), "w") as file:
                json.dump(facts, file)
        fail(0, 1.0, False, "connection closed by peer", 1)
        fail(1, 2.0, True, "no such column", 2)
        sys.exit(1)
        """,
    )
    assert (outcome.exit_code, outcome.message) == (2, "no such column")


def test_a_killed_worker_is_named_by_its_signal(tmp_path):
    outcome = run_script(tmp_path, "print('  exitcode  : -9 (pid: 7)', file=sys.stderr); sys.exit(1)")
    assert outcome.exit_code == 128 + 9
    assert "SIGKILL" in outcome.message
