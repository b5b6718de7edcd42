"""Checkpoints of real engines: killed while saving, on a failing disk, without a shared one, in the background."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import complete_checkpoints, read_manifest, verify
from dsrun.runs.records import read_records
from dsrun.system.net import free_port
from tests.faults.hold import INJECT
from tests.forkserver.client import HEAVY
from tests.integration.conftest import SHORT, dsrun, many_runs, records
from tests.processes import by_name, wait_for

pytestmark = pytest.mark.train

ROOT = Path(__file__).parents[2]


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [["--zero", "2"], ["--zero", "3", "--background"]])
def test_kill_during_checkpoint_save_is_recovered(options):
    """Saves killed at random moments are all recovered from."""
    argv = [sys.executable, "-m", "tests.faults.kill_saves", "--kills", "5", "--seed", "5", *options]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    assert json.loads(done.stdout)["recoveries"] == 5


@pytest.mark.parametrize("rank", [0, 1])
def test_checkpoint_save_disk_error_on_one_rank_is_one_line(rank, tiny, pairs, tmp_path):
    """A limit on the size of files (setrlimit(2)) fails the large writes of one rank, as a full disk would."""
    run = RunFolder(tmp_path / "run")
    argv = [
        sys.executable, "-m", "dsrun", "train", "--model", tiny["t5"], "--zero", "2", "--nproc", "2",
        "--train-file", pairs["train"], *SHORT, "--max-steps", "100000", "--save-steps", "10",
        "--output", str(run.path),
    ]  # fmt: skip
    with HEAVY.popen(argv, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        try:
            wait_for(lambda: len(complete_checkpoints(run)) > 0)
            worker = by_name(process.pid)[f"rank-{rank}"]
            _, hard = resource.prlimit(worker.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (100_000, hard))
            _, said = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 1
    (line,) = [line for line in said.splitlines() if "failed" in line]
    step, newest = complete_checkpoints(run)[0]
    assert f"saving checkpoint-{step + 10} failed: rank {rank} on " in line
    assert "File too large" in line
    assert f"checkpoint-{step} is whole" in line
    assert verify(newest) == []
    assert not list((run.path / ".saving").glob("*"))
    failures = [row for row in read_records(run.events) if row["kind"] == "failure"]
    assert {row["cause"] for row in failures} == {"disk_full"}


def test_save_that_failed_in_file_of_deepspeed_is_tried_again_by_all_ranks(tiny, pairs, tmp_path):
    """One rank's file server does not answer once, while DeepSpeed copies its scripts."""
    fault = {"point": "scripts", "action": "error EIO", "rank": 0, "marker": str(tmp_path / "struck")}
    env = {"DSRUN_FAULT": json.dumps(fault), "PYTHONPATH": os.pathsep.join([str(INJECT), str(ROOT)])}
    ran = dsrun(
        "--model", tiny["t5"], "--train-file", pairs["train"], "--zero", "2", "--nproc", "2", *SHORT,
        "--save-every", "2", "--max-steps", "4", output=tmp_path / "run", env=env,
    ).ok()  # fmt: skip
    assert "saving checkpoint-2 failed: rank 0 on " in ran.err
    assert [each["step"] for each in read_records(ran.folder / "events.jsonl") if each["kind"] == "checkpoint_end"] == [
        3,
        4,
    ]
    for step, folder in complete_checkpoints(RunFolder(ran.folder)):
        assert (folder / "latest").read_text() == f"global_step{step}"
        assert (folder / "zero_to_fp32.py").stat().st_size


def test_resume_saves_evaluates_and_logs_as_often_as_asked_now(tiny, pairs, tmp_path):
    """The intervals in a checkpoint's trainer_state.json are those of the run that saved it."""
    flags = [
        "--model", tiny["t5"], "--train-file", pairs["train"], "--validation-file", pairs["validation"],
        "--zero", "0", "--nproc", "1", *SHORT, "--eval-strategy", "steps",
    ]  # fmt: skip
    every = ("--save-every", "--eval-steps", "--logging-steps")
    first = [word for flag in every for word in (flag, "2")]
    dsrun(*flags, *first, "--max-steps", "2", output=tmp_path / "run").ok()
    now = [word for flag in every for word in (flag, "3")]
    dsrun(*flags, *now, "--max-steps", "7", output=tmp_path / "run").ok()
    run = RunFolder(tmp_path / "run")
    found = read_records(run.metrics)
    assert [each["step"] for each in found if "loss" in each] == [1, 2, 3, 6, 7]
    assert [each["step"] for each in found if "eval_loss" in each] == [2, 3, 6, 7]
    saved = [each["step"] for each in read_records(run.events) if each["kind"] == "checkpoint_end"]
    assert saved == [2, 3, 6, 7]


def test_async_save_checkpoints_equal_synchronous_ones(tiny, pairs, tmp_path):
    """The same losses, weights and checkpoints; rotation, the best and the last one as in the foreground."""
    flags = [
        "--model", tiny["llama"], "--zero", "2", "--train-file", pairs["train"],
        "--validation-file", pairs["validation"], *SHORT, "--max-steps", "8", "--save-steps", "2", "--keep", "2",
        "--eval-strategy", "steps", "--eval-steps", "2", "--load-best-model-at-end",
    ]  # fmt: skip
    runs = {name: tmp_path / name for name in ("front", "back")}
    many_runs(
        [
            [*flags, "--output", str(runs["front"])],
            [*flags, "--async-save", "--output", str(runs["back"])],
        ],
        ranks=2,
        scratch=tmp_path,
    )
    front, back = (RunFolder(runs[name]) for name in ("front", "back"))
    assert records(back.path, "loss") == records(front.path, "loss")
    ours, theirs = (load_file(run.model / "model.safetensors") for run in (back, front))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert [step for step, _ in back.checkpoints()] == [step for step, _ in front.checkpoints()]
    assert back.checkpoints()[0][0] == 8
    for run in (front, back):
        assert [verify(path) for _, path in run.checkpoints()] == [[]] * len(run.checkpoints())
        ends = [row for row in read_records(run.events) if row["kind"] == "checkpoint_end"]
        assert [row["step"] for row in ends] == [2, 4, 6, 8]
        assert all(row["bytes"] > 0 and row["seconds"] > 0 and row["written_s"] > 0 for row in ends)
        assert not (run.path / ".saving").exists()


def test_checkpoint_manifest_and_metadata(tiny, pairs, tmp_path):
    """The manifest's facts; paths as they are after the rename; no pickle of the arguments with the Hub token."""
    run = RunFolder(tmp_path / "run")
    flags = [
        "--model", tiny["t5"], "--zero", "1", "--train-file", pairs["train"], "--validation-file", pairs["validation"],
        *SHORT, "--max-steps", "4", "--save-steps", "2", "--eval-strategy", "steps", "--eval-steps", "2",
        "--predict-with-generate", "false", "--load-best-model-at-end", "--hub-token", "hf_secretsecret",
    ]  # fmt: skip
    dsrun(*flags, "--nproc", "2", output=run.path).ok()
    checkpoint = run.checkpoint(4)
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    assert state["best_model_checkpoint"] == str(run.checkpoint(state["best_global_step"]))
    manifest = read_manifest(checkpoint)
    facts = manifest["extra"]
    assert {name: facts[name] for name in ("step", "world_size", "zero_stage", "model_type", "seed")} == {
        "step": 4,
        "world_size": 2,
        "zero_stage": 1,
        "model_type": "t5",
        "seed": 42,
    }
    assert facts["global_batch"] == facts["micro_batch"] * facts["accumulation"] * 2 == 8
    assert len(facts["config_sha256"]) == len(facts["tokenizer_sha256"]) == 64
    assert facts["versions"]["deepspeed"]
    on_disk = {
        path.relative_to(checkpoint).as_posix()
        for path in checkpoint.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }
    assert set(manifest["files"]) == on_disk
    assert "training_args.bin" not in on_disk
    assert not [path for path in checkpoint.rglob("*") if path.is_file() and b"hf_secretsecret" in path.read_bytes()]


def test_resume_with_changed_model_config_is_refused(tiny, pairs, tmp_path):
    """Resuming with a changed model config is refused unless --force is given."""
    flags = [
        "--model",
        tiny["llama"],
        "--zero",
        "2",
        "--train-file",
        pairs["train"],
        *SHORT,
        "--save-steps",
        "1",
    ]
    run = tmp_path / "run"
    dsrun(*flags, "--max-steps", "1", output=run).ok()
    changed = tmp_path / "changed"
    changed.mkdir()
    for file in Path(tiny["llama"]).iterdir():
        (changed / file.name).write_bytes(file.read_bytes())
    config = json.loads((changed / "config.json").read_text())
    (changed / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
    refused = dsrun(*flags[2:], "--model", str(changed), "--max-steps", "2", output=run)
    assert refused.code == 2
    assert "another model config (rms_norm_eps was 1e-06, is 0.001)" in refused.err
    dsrun(*flags[2:], "--model", str(changed), "--max-steps", "2", "--force", output=run).ok()


UNSHARED = """
import os, sys
from pathlib import Path
from dsrun.errors import UsageError
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.runs.folder import RunFolder
from dsrun.train.base import distributed
from dsrun.train.checkpoint import resume
resume._NFS_PATIENCE_S = 1.0
distributed.init_process_group(distributed.world_from_env(use_cpu=True), deepspeed=False)
folder = RunFolder(Path(sys.argv[1]))
folder.logs.mkdir(parents=True)
try:
    resume.find_checkpoint(TrainSpec(), folder, facts={}, notify=print)
except UsageError as error:
    print("UsageError:", error, file=sys.stderr, flush=True)
    # As the worker ends. A process that Python takes apart can abort in gloo's threads, when its peer has gone before.
    os._exit(1)
"""


def two_nodes(*commands):
    """What two ranks say on stderr that run `python COMMAND`, rank by rank; both have to fail."""
    port = str(free_port())
    nodes = []
    for rank, command in enumerate(commands):
        env = {
            **os.environ, "RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
        }  # fmt: skip
        argv = [sys.executable, *command]
        nodes.append(HEAVY.popen(argv, env=env, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True))
    said = [node.communicate(timeout=300)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [1, 1]
    return said


def test_nodes_without_shared_filesystem_are_refused(tmp_path):
    """Two ranks whose run folder has one name and two places, as with --output on a local disk of each node."""
    for words in two_nodes(*(["-c", UNSHARED, str(tmp_path / f"node{rank}")] for rank in range(2))):
        assert "UsageError: the nodes do not share the run folder" in words


def test_ranks_with_different_micro_batch_sizes_are_refused(tiny, pairs, tmp_path):
    """As where a node has not yet seen the remedy or the checkpoint from which the batch follows."""
    flags = [
        "-m",
        "dsrun.train",
        "--model",
        tiny["llama"],
        "--train-file",
        pairs["train"],
        "--output",
        str(tmp_path),
    ]
    flags += ["--validation-split-percentage", "0", *SHORT]
    said, _ = two_nodes(*([*flags, "--micro-batch-size", rows] for rows in ("2", "4")))
    rank_0, rank_1 = "8 = 2 × 2 ranks × 2 steps on rank 0", "8 = 4 × 2 ranks × 1 step on rank 1"
    assert f"error: the ranks differ in their batch: {rank_0}, {rank_1}" in said
