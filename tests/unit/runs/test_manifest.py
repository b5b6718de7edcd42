"""Complete and damaged checkpoints, with every kind of damage that a crash or a disk can do."""

import errno
import json
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsrun.findings.finding import finding_of, text_of
from dsrun.runs import manifest
from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import (
    complete_checkpoints,
    is_complete,
    read_manifest,
    verify,
    write_manifest,
)

WEIGHTS = bytes(range(256)) * 64


def save(run: RunFolder, step: int):
    checkpoint = run.checkpoint(step)
    shard = checkpoint / f"global_step{step}" / "zero_pp_rank_0.pt"
    shard.parent.mkdir(parents=True)
    shard.write_bytes(WEIGHTS)
    (checkpoint / "trainer_state.json").write_text("{}")
    (checkpoint / "empty").touch()
    return checkpoint


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path / "run")


def test_manifest_lists_every_file(run):
    checkpoint = save(run, 5)
    assert not is_complete(checkpoint)
    path = write_manifest(checkpoint, {"step": 5, "world_size": 2})
    assert path == checkpoint / "manifest.json"
    manifest = read_manifest(checkpoint)
    assert manifest
    assert (manifest["version"], manifest["extra"]) == (1, {"step": 5, "world_size": 2})
    assert manifest["files"] == {
        "empty": {"size": 0, "crc32": "00000000"},
        "global_step5/zero_pp_rank_0.pt": {"size": len(WEIGHTS), "crc32": f"{zlib.crc32(WEIGHTS):08x}"},
        "trainer_state.json": {"size": 2, "crc32": f"{zlib.crc32(b'{}'):08x}"},
    }
    assert is_complete(checkpoint)
    assert verify(checkpoint) == []


def test_manifest_can_be_rewritten(run):
    """A manifest can be written again."""
    checkpoint = save(run, 5)
    write_manifest(checkpoint, {})
    (checkpoint / "latest_universal").write_text("global_step5_universal")
    assert verify(checkpoint) == []  # what is not listed does not matter
    write_manifest(checkpoint, {})
    manifest = read_manifest(checkpoint)
    assert manifest
    assert set(manifest["files"]) == {
        "empty",
        "global_step5/zero_pp_rank_0.pt",
        "latest_universal",
        "trainer_state.json",
    }


def test_manifest_fsyncs_every_checkpoint_folder(run, monkeypatch):
    """A power cut must not lose any name in a checkpoint.

    The swap files of NVMe offload lie in a folder of each rank, in a folder without files of its own.
    """
    checkpoint = save(run, 5)
    (checkpoint / "global_step5" / "offloaded_tensors" / "rank0").mkdir(parents=True)
    (checkpoint / "global_step5" / "offloaded_tensors" / "rank0" / "0.swp").write_bytes(bytes(8))
    synced = []
    monkeypatch.setattr("dsrun.runs.manifest.fsync_folder", synced.append)
    write_manifest(checkpoint, {})
    assert set(synced) == {checkpoint, *(path for path in checkpoint.rglob("*") if path.is_dir())}


def test_manifest_checksum_of_file_larger_than_chunk(run, monkeypatch):
    monkeypatch.setattr("dsrun.runs.checksum._CHUNK", 1000)
    checkpoint = save(run, 5)
    write_manifest(checkpoint, {})
    manifest = read_manifest(checkpoint)
    assert manifest
    assert manifest["files"]["global_step5/zero_pp_rank_0.pt"]["crc32"] == f"{zlib.crc32(WEIGHTS):08x}"


def shorten(checkpoint):
    (checkpoint / "trainer_state.json").write_text("{")


def remove(checkpoint):
    (checkpoint / "trainer_state.json").unlink()


def remove_manifest(checkpoint):
    (checkpoint / "manifest.json").unlink()


def tear_manifest(checkpoint):
    path = checkpoint / "manifest.json"
    path.write_text(path.read_text()[:-20])


def nest_manifest(checkpoint):
    (checkpoint / "manifest.json").write_text("[" * 100_000)


def empty_manifest(checkpoint):
    (checkpoint / "manifest.json").write_text("[]")


@pytest.mark.parametrize(
    ("damage", "key", "name", "values"),
    [
        (shorten, "checkpoint_corrupt.size", "trainer_state.json", {"size": 1, "saved": 2}),
        (remove, "checkpoint_incomplete.no_file", "trainer_state.json", {}),
        (remove_manifest, "checkpoint_incomplete.no_manifest", "", {}),
        (tear_manifest, "checkpoint_incomplete.bad_manifest", "", {}),
        (empty_manifest, "checkpoint_incomplete.bad_manifest", "", {}),
        (nest_manifest, "checkpoint_incomplete.bad_manifest", "", {}),
    ],
)
def test_torn_checkpoint_passed_over_and_named(run, damage, key, name, values):
    """A torn checkpoint is passed over, and named."""
    for step in (7, 9):
        write_manifest(save(run, step), {})
    torn = run.checkpoint(9)
    damage(torn)
    assert not is_complete(torn)
    assert complete_checkpoints(run) == [(7, run.checkpoint(7))]
    (found,) = verify(torn)
    assert found.name == name
    assert found.finding == finding_of(key, where=str(torn / name), fix=text_of("checkpoint.older"), **values)
    assert found.finding.level == "error"


def test_damage_names_its_file_for_json_and_below_a_checkpoint(run):
    """JSON's messages begin with the file's name; words that name the checkpoint have the path below it."""
    checkpoint = save(run, 5)
    write_manifest(checkpoint, {})
    (checkpoint / "global_step5" / "zero_pp_rank_0.pt").unlink()
    (found,) = verify(checkpoint)
    assert str(found) == f"global_step5/zero_pp_rank_0.pt: {found.finding.message}"
    assert found.named.message == f"zero_pp_rank_0.pt: {found.finding.message}"
    (checkpoint / "manifest.json").unlink()
    (found,) = verify(checkpoint)
    assert str(found) == found.finding.message
    assert found.named.message == f"checkpoint-5: {found.finding.message}"


@settings(max_examples=30)
@given(place=st.integers(0, len(WEIGHTS) - 1), bit=st.integers(0, 7))
def test_verify_finds_flipped_bit_in_checkpoint(tmp_path_factory, place, bit):
    """verify() finds a flipped bit."""
    checkpoint = save(RunFolder(tmp_path_factory.mktemp("run")), 5)
    write_manifest(checkpoint, {})
    damaged = bytearray(WEIGHTS)
    damaged[place] ^= 1 << bit
    shard = checkpoint / "global_step5" / "zero_pp_rank_0.pt"
    shard.write_bytes(damaged)
    assert is_complete(checkpoint)
    (found,) = verify(checkpoint)
    assert (found.finding.code, found.finding.where) == ("checkpoint_corrupt", str(shard))
    assert found.finding.message == text_of("checkpoint_corrupt.differs.message")


def test_file_that_cannot_be_read_is_damaged(run, monkeypatch):
    """Root may read everything, so the system's answer is played."""

    def refuse(_path):
        raise OSError(errno.EIO, "Input/output error")

    write_manifest(save(run, 5), {})
    monkeypatch.setattr(manifest, "sum_of", refuse)
    found = verify(run.checkpoint(5))
    reason = text_of("checkpoint_corrupt.unreadable.message", reason="Input/output error")
    assert {each.finding.message for each in found} == {reason}


def test_complete_checkpoints_newest_first(run):
    """Checkpoints are sorted by number, the newest first."""
    for step in (9, 100, 20):
        write_manifest(save(run, step), {})
    assert [step for step, _ in complete_checkpoints(run)] == [100, 20, 9]


def test_manifest_is_plain_json(run):
    checkpoint = save(run, 5)
    manifest = json.loads(write_manifest(checkpoint, {"loss": float("nan")}).read_text())
    assert manifest["extra"] == {"loss": None}
