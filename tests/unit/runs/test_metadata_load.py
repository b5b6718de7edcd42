"""How many metadata requests a run makes: at thousands of ranks each `stat` of a checkpoint's files counts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from dsrun.launch.supervisor.events import RunEventWriter
from dsrun.launch.supervisor.supervise import _Supervision
from dsrun.runs import attempts
from dsrun.runs.attempts import saved_global_batch
from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import newest_complete, write_manifest
from dsrun.train.checkpoint import checkpointing, verify
from dsrun.train.checkpoint.checkpointing import CheckpointingTrainer

FILES = 50


def save(run: RunFolder, step: int) -> None:
    checkpoint = run.checkpoint(step)
    checkpoint.mkdir(parents=True)
    for number in range(FILES):
        (checkpoint / f"shard-{number}").write_text("x")
    write_manifest(checkpoint, {"global_batch": step})


@pytest.fixture
def run(tmp_path):
    run = RunFolder(tmp_path / "run")
    for step in (5, 10, 15):
        save(run, step)
    return run


@pytest.fixture
def looks(monkeypatch):
    """The files of checkpoints that were looked at."""
    found = []
    stat = Path.stat

    def counted(path, **options):
        if path.name.startswith("shard-"):
            found.append(path)
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", counted)
    return found


def test_newest_complete_checkpoint_stats_each_file_once(run, looks):
    assert newest_complete(run) == (15, run.checkpoint(15))
    assert len(looks) == FILES
    (run.checkpoint(15) / "shard-0").unlink()
    looks.clear()
    assert newest_complete(run) == (10, run.checkpoint(10))
    assert len(looks) == 2 * FILES


@pytest.mark.parametrize(("node", "newest"), [(0, 15), (1, None), (1023, None)])
def test_only_first_node_searches_checkpoints(node, newest, run, looks):
    ledger = RunEventWriter(run, lambda line: None)
    supervision = SimpleNamespace(_job=SimpleNamespace(external=False, node_rank=node), _event_writer=ledger)
    assert _Supervision._newest(supervision) == newest
    assert len(looks) == (FILES if newest else 0)


def test_saved_batch_is_read_from_newest_manifest_alone(run, monkeypatch):
    reads = []
    read = attempts.read_manifest
    monkeypatch.setattr(attempts, "read_manifest", lambda path: reads.append(path.name) or read(path))
    assert saved_global_batch(run, "auto") == 15
    assert reads == ["checkpoint-15"]


def test_rotation_reads_old_checkpoints_once(run, monkeypatch):
    surveys = []
    survey = checkpointing.complete_checkpoints
    monkeypatch.setattr(checkpointing, "complete_checkpoints", lambda run: surveys.append(1) or survey(run))
    (run.checkpoint(10) / "shard-0").unlink()
    trainer = SimpleNamespace(_complete=None)
    for step in (20, 25):
        save(run, step)
        steps = CheckpointingTrainer._complete_steps(trainer, SimpleNamespace(run=run, step=step))
    assert steps == [25, 20, 15, 5]
    assert len(surveys) == 1


def test_rank_reads_only_its_share_of_checkpoint(run, looks, monkeypatch):
    """A rank other than 0 looks at no file but those that it is told to read."""
    mine = {"shard-3": {"size": 1, "crc32": "8cdc1683"}}
    monkeypatch.setattr(verify, "rank0_first", lambda work: [])
    monkeypatch.setattr(verify, "rank0_shares", lambda work: mine)
    monkeypatch.setattr(verify, "all_gather_object", lambda found: [found])
    assert verify.read_through(run.checkpoint(15), trust=True, beat=lambda: None) == []
    assert {path.name for path in looks} <= {"shard-3"}


@pytest.mark.parametrize(("ranks", "folder"), [(64, "logs"), (65, "logs/node-3"), (8192, "logs/node-3")])
def test_logs_of_many_ranks_are_in_folders_of_their_nodes(ranks, folder, tmp_path):
    from dsrun.train.worker import next_log

    run = RunFolder.create(tmp_path / "run")
    worker = SimpleNamespace(rank=29, world_size=ranks, local_world_size=8)
    first = next_log(run, worker)
    assert first == run.path / folder / "rank-29.attempt-0.log"
    first.touch()
    second = next_log(run, worker)
    second.touch()
    assert run.rank_logs() == {first: (29, 0), second: (29, 1)}
