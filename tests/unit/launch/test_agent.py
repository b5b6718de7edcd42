from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dsrun.errors import UsageError
from dsrun.launch.context import LocalWorkers, TrainingJob, decide
from dsrun.launch.environment import run_arguments, worker_environment
from dsrun.launch.supervisor.events import PipeTee, tee_output
from dsrun.launch.workers.agent import ZygoteStarter
from dsrun.system.terminal.log_format import NoiseFilter

ROOT = Path(__file__).parents[3]


@pytest.fixture
def patient(monkeypatch):
    """A screen counts as stuck when it has taken nothing for a while, and a busy machine must not look like that."""
    monkeypatch.setattr("dsrun.launch.supervisor.events.STUCK_S", 600.0)


@pytest.mark.parametrize(
    ("nproc", "gpus", "use_cpu", "expected"),
    [
        (None, 4, False, LocalWorkers(4, "cuda", 8)),
        (2, 4, False, LocalWorkers(2, "cuda", 8)),
        (None, 0, False, LocalWorkers(1, "cpu", 8)),
        (3, 0, False, LocalWorkers(3, "cpu", 8)),
        (2, 4, True, LocalWorkers(2, "cpu", 8)),
    ],
)
def test_one_worker_per_gpu_by_default(nproc, gpus, use_cpu, expected):
    """One worker per GPU, unless told otherwise."""
    assert decide(nproc=nproc, visible_gpus=gpus, cores=8, use_cpu=use_cpu) == expected


def test_more_workers_than_gpus_are_refused():
    with pytest.raises(UsageError, match=r"--nproc 2: only 1 GPU is visible.*--nproc 1"):
        decide(nproc=2, visible_gpus=1, cores=8, use_cpu=False)


def test_far_more_cpu_workers_than_cores_are_refused():
    """A slip of the keyboard must not fill the machine with processes."""
    assert decide(nproc=32, visible_gpus=0, cores=2, use_cpu=False).workers == 32
    with pytest.raises(UsageError, match=r"--nproc 99999: there are 2 CPU cores.*at most --nproc 2"):
        decide(nproc=99999, visible_gpus=0, cores=2, use_cpu=False)


def test_omp_num_threads_of_user_kept():
    """OMP_NUM_THREADS stays what the user has set."""
    changes = worker_environment(LocalWorkers(2, "cpu", 8), {"OMP_NUM_THREADS": "3"}, debug=False)
    assert "OMP_NUM_THREADS" not in changes
    assert worker_environment(LocalWorkers(2, "cpu", 8), {}, debug=False)["OMP_NUM_THREADS"] == "4"


def test_venv_bin_first_in_worker_path():
    """The environment's own tools come first in PATH."""
    own = str(Path(sys.executable).parent)
    topology = LocalWorkers(1, "cpu", 1)
    assert worker_environment(topology, {"PATH": "/usr/bin"}, debug=False)["PATH"] == f"{own}:/usr/bin"
    assert "PATH" not in worker_environment(topology, {"PATH": f"/usr/bin:{own}"}, debug=False)


def test_accelerate_variables_removed_from_worker_env():
    """Variables that would drop DeepSpeed are removed."""
    changes = worker_environment(LocalWorkers(1, "cpu", 1), {"ACCELERATE_USE_CPU": "true"}, debug=False)
    assert changes["ACCELERATE_USE_CPU"] is None


def test_debug_enables_nccl_logs():
    """--debug turns NCCL's logs on."""
    topology = LocalWorkers(1, "cuda", 1)
    assert worker_environment(topology, {}, debug=True)["NCCL_DEBUG"] == "INFO"
    assert "NCCL_DEBUG" not in worker_environment(topology, {}, debug=False)


@pytest.mark.usefixtures("patient")
def test_rank_0_output_relayed_to_user_through_pipe(tmp_path, capfd):
    """Rank 0 speaks to the user through a pipe."""
    pipe = tmp_path / "console"
    os.mkfifo(pipe)
    with PipeTee(pipe):
        pipe.write_text("words for the user\n")
    assert capfd.readouterr().err == "words for the user\n"


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("echo", [False, True])
def test_agent_output_logged_and_echoed_with_debug(tmp_path, capfd, echo):
    """The agent's output goes to the log, and with --debug to the user too."""
    log = tmp_path / "agent.log"
    with log.open("ab") as file, tee_output(file, tmp_path / "output", echo) as sink:
        subprocess.run([sys.executable, "-c", "print('noise of the agent')"], stdout=sink, check=True)
    assert log.read_text() == "noise of the agent\n"
    assert capfd.readouterr().err == ("noise of the agent\n" if echo else "")


@pytest.mark.usefixtures("patient")
def test_noise_of_libraries_is_logged_and_not_shown(tmp_path, capfd):
    log, noise = tmp_path / "agent.log", "[W1127 13:59:34.451 NNPACK.cpp:57] Could not initialize NNPACK!"
    with log.open("ab") as file, tee_output(file, tmp_path / "output", True, [NoiseFilter()]) as sink:
        subprocess.run([sys.executable, "-c", f"print('{noise}\\nstep 1')"], stdout=sink, check=True)
    assert log.read_text() == f"{noise}\nstep 1\n"
    assert capfd.readouterr().err == "step 1\n"


SHOUT = [sys.executable, "-c", "import os; os.write(1, b'x' * 4_000_000)"]


@pytest.mark.usefixtures("patient")
def test_full_disk_does_not_block_ranks(tmp_path, capfd):
    """A full disk holds no rank up."""
    with (
        Path("/dev/full").open("ab", buffering=0) as file,
        tee_output(file, tmp_path / "output", True) as sink,
    ):
        subprocess.run(SHOUT, stdout=sink, check=True, timeout=60)
    assert len(capfd.readouterr().err) == 4_000_000


# A supervisor whose stderr nobody reads.
UNREAD = f"""
import subprocess, sys
from pathlib import Path
from dsrun.launch.supervisor import events as output
output.STUCK_S = 0.2
with open("log", "ab") as file, output.tee_output(file, Path("output"), True) as sink:
    subprocess.run({SHOUT}, stdout=sink, check=True)
    output.STUCK_S = 60  # what lies in the pipe still has so long to come into the log
print("done", flush=True)
"""


def test_blocked_terminal_does_not_block_ranks(tmp_path):
    """A terminal that takes nothing holds no rank up."""
    argv, env = [sys.executable, "-c", UNREAD], {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(argv, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        try:
            assert select.select([child.stdout], [], [], 60)[0]
            assert child.stdout.read() == b"done\n"
            assert child.wait(60) == 0
        finally:
            child.kill()
    assert (tmp_path / "log").stat().st_size == 4_000_000


def test_pid_of_dead_zygote_is_not_spared(tmp_path, monkeypatch):
    """The pid of a dead pre-forked process spares nobody from the reaper."""
    monkeypatch.setattr("dsrun.launch.workers.agent.AGENT_IMPORTS", ())
    (tmp_path / "broken.py").write_text("raise ValueError")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    with (tmp_path / "log").open("wb") as log:
        warm = ZygoteStarter(None, ["broken"], {**os.environ, "PYTHONPATH": path}, log)
        assert warm.process.wait(60) == 1
    assert warm.kept_processes() == set()


def test_ranks_start_where_imports_of_zygote_fail(tmp_path, monkeypatch):
    """Attempt after attempt, each in new interpreters, and nothing is asked of the zygote any more."""
    monkeypatch.setattr("dsrun.launch.workers.agent.AGENT_IMPORTS", ())
    (tmp_path / "broken.py").write_text("raise ValueError")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    with (tmp_path / "log").open("wb") as log:
        warm = ZygoteStarter(None, ["broken"], env, log)
        assert warm.process.wait(60) == 1
        for _ in range(2):
            agent = warm.start(["--help"], env, ranks=1)
            assert isinstance(agent, subprocess.Popen)
            assert warm.kept_processes() == set()
            agent.kill()
            agent.wait(60)


def job(*program: str, **more: Any) -> TrainingJob:
    return TrainingJob(topology=LocalWorkers(2, "cpu", 2), run=Path("run"), program=program, env={}, **more)


def test_attempt_argv_is_torch_agent_without_restarts():
    """An attempt is torch's own agent, without restarts of its own."""
    words = run_arguments(job("--module", "a.b", "--d", "$x", nnodes=3, node_rank=1, host="n0"), attempt=4, port=29501)
    before, after = words[: words.index("--")], words[words.index("--") + 1 :]
    assert "--max-restarts=0" in before
    assert {"--nnodes=3", "--node-rank=1", "--master-addr=n0", "--master-port=29501"} <= set(before)
    assert "--rdzv-id=attempt-4" in before
    assert before[-1] == "--module"
    assert after == ["a.b", "--d", "$$x"]


def test_torchrun_argv_dollars_escaped_in_script_args_only():
    """Dollar signs are doubled only in what torchrun substitutes."""
    words = run_arguments(job("--no-python", "./$prog", "$x"), attempt=0, port=1)
    assert words[words.index("--") + 1 :] == ["./$prog", "$$x"]
