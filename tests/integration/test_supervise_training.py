"""`dsrun train` under faults: whatever is killed, the losses and the weights are those of the undisturbed run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from dsrun.launch.supervisor.reaper import members
from dsrun.runs.folder import RunFolder
from dsrun.runs.records import read_records
from tests.faults.hold import Hold
from tests.forkserver.client import HEAVY
from tests.integration.conftest import SHORT, dsrun
from tests.processes import GONE_S, below, left_of, noticed_after, of_run

pytestmark = pytest.mark.train

STEPS = 50
HANDSHAKE_TIMEOUT_S = 300
SOON_S = 1
"""In which a dead rank is noticed, as docs/launch.md says."""


class Training:
    """A `dsrun train` in the background."""

    def __init__(self, folder, *flags, env=None):
        self.folder = RunFolder(folder)
        argv = [sys.executable, "-m", "dsrun", "train", *flags, "--output", str(folder)]
        environ = {**os.environ, **(env or {})}
        self.process = HEAVY.popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def processes(self):
        """The family by what `ps` calls them: dsrun-warm, pt_elastic (torch's name for its agent), rank-0, rank-1."""
        return of_run(self.folder.path)

    def at_step(self, step, attempt):
        """Wait until an attempt has logged a step at or after this one."""
        deadline = time.monotonic() + HANDSHAKE_TIMEOUT_S
        while not (self.starts() > attempt and self.steps() and self.steps()[-1] >= step):
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def starts(self):
        return len(self.events("start"))

    def steps(self):
        return [row["step"] for row in read_records(self.folder.metrics) if "loss" in row]

    def losses(self):
        """By step, as last logged: a step that was lost is made again."""
        return {row["step"]: row["loss"] for row in read_records(self.folder.metrics) if "loss" in row}

    def events(self, kind):
        return [event for event in read_records(self.folder.events) if event["kind"] == kind]


def test_training_with_kills_and_preemption_equals_undisturbed(tiny, pairs, tmp_path):
    """Killed, told to stop and resumed, it is the same run as the undisturbed one."""
    flags = [
        *("--model", tiny["llama"], "--train-file", pairs["train"], "--validation-split-percentage", "0"),
        *("--zero", "2", "--nproc", "2", *SHORT, "--max-steps", str(STEPS), "--save-every", "10"),
        *("--hang-timeout", "0"),
    ]
    whole = dsrun(*flags, output=tmp_path / "whole").ok()

    job = {"SLURM_JOB_ID": "4711"}
    # Each attempt waits in its sixteenth step until it is killed.
    hold = Hold(tmp_path, "forward", call=16)
    run = Training(tmp_path / "run", *flags, env=job | hold.env)
    run.at_step(15, attempt=0)
    family = run.processes()
    mark = family["rank-1"].environ()["DSRUN_RUN_ID"].rpartition("/")[2]
    assert family["rank-0"].ppid() == family["rank-1"].ppid() == family["pt_elastic"].pid
    assert family["pt_elastic"].ppid() == family["dsrun-warm"].pid
    family["rank-1"].kill()
    run.at_step(25, attempt=1)
    assert run.processes()["dsrun-warm"].pid == family["dsrun-warm"].pid
    standby = family["dsrun-standby"].pid
    run.processes()["dsrun-warm"].kill()
    run.at_step(35, attempt=2)
    # It has the imports already, and a standby of its own.
    assert run.processes()["dsrun-warm"].pid == standby
    assert run.processes()["dsrun-standby"].pid != standby
    run.processes()["rank-0"].send_signal(signal.SIGTERM)
    hold.release()
    _, said = run.process.communicate(timeout=HANDSHAKE_TIMEOUT_S)

    assert run.process.returncode == 75, said
    assert "rank 1 was killed (SIGKILL) after step" in said
    assert "stopped by SIGTERM to rank 0 on " in said.splitlines()[-1]
    # What is trained is said once; what a remedy may change, by each of the three attempts.
    assert [said.count(f"\n  {row}  ") for row in ("task", "batch")] == [1, 3]
    assert not members(mark)
    killed, orphaned = (event for event in run.events("failure") if "attempt" in event)
    assert (killed["cause"], killed["rank"], killed["exit_code"]) == ("rank_killed", 1, -9)
    assert (orphaned["cause"], orphaned["exit_code"]) == ("agent_killed", -9)
    assert noticed_after(killed) < SOON_S
    assert noticed_after(orphaned) < SOON_S
    stopped_at = max(run.steps())
    assert run.folder.checkpoint(stopped_at).is_dir()
    assert not run.folder.finished.exists()

    # As after a requeue: `--resume never` was about the first start only.
    env = {**job, "SLURM_RESTART_COUNT": "1"}
    done = dsrun(*flags, "--resume", "never", output=tmp_path / "run", env=env).ok()
    assert f"resuming from {run.folder.checkpoint(stopped_at)}" in done.err
    assert run.folder.finished.exists()
    assert run.losses() == dict(enumerate(whole.losses, start=1))
    weights = [
        (folder / "model" / "model.safetensors").read_bytes() for folder in (tmp_path / "whole", run.folder.path)
    ]
    assert weights[0] == weights[1]


def test_restart_before_first_save_uses_given_checkpoint(tiny, pairs, tmp_path):
    """Killed before its first save, a run goes back to the checkpoint it was given with --resume."""
    flags = ["--model", tiny["llama"], "--train-file", pairs["train"], "--zero", "0", "--nproc", "1", *SHORT]
    dsrun(*flags, "--max-steps", "4", "--save-every", "4", output=tmp_path / "old").ok()
    given = str(tmp_path / "old" / "checkpoint-4")
    run = Training(tmp_path / "new", *flags, "--max-steps", "100000", "--save-every", "50000", "--resume", given)
    run.at_step(6, attempt=0)
    run.processes()["rank-0"].kill()
    deadline = time.monotonic() + HANDSHAKE_TIMEOUT_S
    while len(run.events("training")) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    run.process.send_signal(signal.SIGTERM)
    _, said = run.process.communicate(timeout=HANDSHAKE_TIMEOUT_S)
    assert run.process.returncode == 75, said
    assert [event["step"] for event in run.events("training")] == [4, 4]
    assert [event["path"] for event in run.events("resume")] == ["checkpoint-4", "checkpoint-4"]


def test_run_yaml_edited_during_run_counts_from_next_start(tiny, pairs, tmp_path):
    """A rank that is started again trains by the settings of the run; the next start names what has changed."""
    file = tmp_path / "run.yaml"
    file.write_text(f"train:\n  model: {tiny['llama']}\n  train_file: {pairs['train']}\n  weight_decay: 0.1\n")
    flags = ["--config", str(file), "--zero", "0", "--nproc", "1", *SHORT]
    run = Training(tmp_path / "run", *flags, "--max-steps", "100000", "--save-every", "50000")
    run.at_step(2, attempt=0)
    file.write_text(file.read_text().replace("0.1", "0.2"))
    run.processes()["rank-0"].kill()
    run.at_step(2, attempt=1)
    run.process.send_signal(signal.SIGTERM)
    _, said = run.process.communicate(timeout=HANDSHAKE_TIMEOUT_S)
    assert run.process.returncode == 75, said
    assert json.loads(run.folder.run_json.read_text())["specs"]["train"]["weight_decay"] == 0.1

    again = dsrun(*flags, "--max-steps", "100000", "--dry-run", output=run.folder.path).ok()
    assert "--weight_decay: 0.1 -> 0.2" in again.err
    assert f"({file}:4)" in again.err


def test_stop_signal_before_training_saves_nothing(tiny, pairs, tmp_path):
    """Told to stop before training, it leaves at once and saves nothing."""
    flags = ["--model", tiny["llama"], "--train-file", pairs["train"], "--nproc", "2", *SHORT]
    hold = Hold(tmp_path, "import", rank=None)
    run = Training(tmp_path / "run", *flags, env=hold.env)
    hold.wait()
    run.process.send_signal(signal.SIGTERM)
    _, said = run.process.communicate(timeout=HANDSHAKE_TIMEOUT_S)
    assert run.process.returncode == 75, said
    assert "nothing new was saved" in said
    assert not run.folder.checkpoints()


def test_usage_error_in_worker_is_not_restarted(tiny, tmp_path):
    """A mistake that only the workers see is no reason to start again."""
    (tmp_path / "data.jsonl").write_text('{"left": 1, "right": 2}\n' * 20)
    done = dsrun("--model", tiny["t5"], "--train-file", tmp_path / "data.jsonl", *SHORT, output=tmp_path / "run")
    assert done.code == 2
    assert "left" in done.err.splitlines()[-1]
    assert "restart" not in done.events


@pytest.mark.exhaustive
def test_no_warm_starts_ranks_without_zygote(tiny, pairs, tmp_path):
    """Without the zygote, torch starts the ranks, and none outlives the supervisor."""
    flags = ["--model", tiny["llama"], "--train-file", pairs["train"], "--nproc", "2", "--no-warm", *SHORT]
    run = Training(tmp_path / "run", *flags, "--max-steps", "100000", "--save-every", "50000")
    run.at_step(2, attempt=0)
    ranks = below(run.process.pid, "-u", "-m", "dsrun.train")
    assert sorted(each.environ()["RANK"] for each in ranks) == ["0", "1"]
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.communicate()
    assert not left_of(ranks, GONE_S)
