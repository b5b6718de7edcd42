"""Space, write speed, inodes and quota of the run folder, against the checkpoints of a job."""

import errno
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from dsrun.doctor.host import storage
from dsrun.doctor.host.storage import judged, parse_quota, write_speed
from dsrun.doctor.job.settings import MemoryNeeds, needs
from dsrun.doctor.machine_facts import DoctorTarget
from dsrun.recipe.recipe import Recipe
from tests.unit.doctor.recorded import found_by, levels_by_code, recorded

GIB = 2**30
CONFIG = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096,
}  # fmt: skip
PARAMETERS = 6_738_415_616
"""Of Llama 2 7B, whose shapes these are."""


def job(root: Path, **settings) -> DoctorTarget:
    """Llama 2 7B under ZeRO-2, its run folder below `root`."""
    model = root / "llama"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(CONFIG))
    return DoctorTarget(recipe=Recipe.of({"model": str(model), **settings}, {}), cwd=root)


def disk(*, free: float, inodes: int = 10**6, all_inodes: int = 10**7):
    return SimpleNamespace(
        f_frsize=4096, f_blocks=10**12, f_bavail=int(free * GIB) // 4096, f_files=all_inodes, f_favail=inodes
    )


def test_what_a_job_needs(tmp_path):
    """Two bytes of a weight twice, for DeepSpeed and transformers, and twelve of the optimizer."""
    planned = needs(recorded(tmp_path), job(tmp_path))
    assert planned is not None
    assert planned.checkpoint == 16 * PARAMETERS
    assert planned.model == 2 * PARAMETERS


def test_own_deepspeed_json(tmp_path):
    """Its stage and offload count, not those of flags."""
    (tmp_path / "ds.json").write_text(
        json.dumps(
            {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
        )
    )
    plain, offloaded = (
        needs(recorded(tmp_path), job(tmp_path)),
        needs(recorded(tmp_path), job(tmp_path, deepspeed="ds.json")),
    )
    assert plain is not None
    assert offloaded is not None
    assert offloaded.host > plain.host + 12 * PARAMETERS


@pytest.mark.parametrize("settings", [{"model": "org/not-here"}, {"model": None}])
def test_job_of_an_unknown_model(tmp_path, settings):
    target = job(tmp_path, **settings)
    assert needs(recorded(tmp_path), target) is None
    assert levels_by_code("disk", recorded(tmp_path, statvfs=lambda path: disk(free=500)), target) == {"disk": "info"}


@pytest.mark.parametrize(
    ("free", "settings", "expected"),
    [
        (1000, {}, {"disk": "info"}),
        (350, {}, {"disk_full": "error"}),  # three checkpoints and one more, of 100 GiB each
        (300, {"keep": 1}, {"disk": "info"}),
        (60, {"keep": 1}, {"disk_full": "error"}),
        (60, {"save_strategy": "no"}, {"disk": "info"}),
    ],
)
def test_space_for_checkpoints(tmp_path, free, settings, expected):
    assert (
        levels_by_code("disk", recorded(tmp_path, statvfs=lambda path: disk(free=free)), job(tmp_path, **settings))
        == expected
    )


def test_little_space_without_a_job(tmp_path):
    machine = recorded(tmp_path, statvfs=lambda path: disk(free=3))
    assert levels_by_code("disk", machine, DoctorTarget(cwd=tmp_path)) == {"disk_little": "warning"}


def test_measuring_leaves_no_file(tmp_path):
    """Not even while it writes: an interrupt at any moment leaves nothing."""
    seen = []

    def clock():
        seen.append(list(tmp_path.iterdir()))
        return len(seen) * 0.01

    assert write_speed(tmp_path, clock) > 0
    assert len(seen) > 3
    assert not any(seen)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("step_s", "written"), [(1.0, storage.MIB), (0.0, storage.WRITTEN)])
def test_measuring_ends(tmp_path, monkeypatch, step_s, written):
    """After a quarter of a second, even if one MiB took longer, or 64 MiB."""
    sizes = []
    fsync = os.fsync
    monkeypatch.setattr(storage.os, "fsync", lambda file: (sizes.append(os.fstat(file).st_size), fsync(file)))
    ticks = iter(range(1000))
    write_speed(tmp_path, lambda: next(ticks) * step_s)
    assert sizes[-1] == written


def test_write_speed_of_the_run_folder(tmp_path):
    findings = found_by("write_speed", recorded(tmp_path), job(tmp_path))
    assert findings[0].code in ("write_speed", "write_speed_slow")
    assert "MB/s; a checkpoint takes about" in findings[0].message


@pytest.mark.parametrize(
    ("speed", "checkpoint", "nodes", "code"),
    [
        (1e9, 100 * GIB, 1, "write_speed"),
        (1e8, 100 * GIB, 1, "write_speed_slow"),  # 18 minutes
        (1e8, 100 * GIB, 8, "write_speed"),
        (1e7, None, 1, "write_speed_slow"),
        (1e9, None, 1, "write_speed"),
    ],
)
def test_slow_disk(tmp_path, speed, checkpoint, nodes, code):
    planned = None if checkpoint is None else MemoryNeeds(0, 0, 0, checkpoint, 0)
    finding = judged(tmp_path, speed, planned, nodes)
    assert finding.code == code
    assert bool(finding.fix) == (code == "write_speed_slow")


def test_disk_that_cannot_be_written(tmp_path, monkeypatch):
    def full(folder):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(storage, "write_speed", full)
    finding = found_by("write_speed", recorded(tmp_path), DoctorTarget(cwd=tmp_path))[0]
    assert (finding.level, finding.code) == ("error", "write_speed_fails")
    assert "quota" in finding.fix


@pytest.mark.parametrize(
    ("inodes", "all_inodes", "expected"),
    [
        (10**6, 10**7, {"inodes": "info"}),
        (5000, 10**7, {"inodes_few": "warning"}),
        (3, 10**7, {"inodes_few": "error"}),
        (0, 0, {}),
    ],
)
def test_inodes(tmp_path, inodes, all_inodes, expected):
    machine = recorded(tmp_path, statvfs=lambda path: disk(free=500, inodes=inodes, all_inodes=all_inodes))
    assert levels_by_code("inodes", machine, DoctorTarget(cwd=tmp_path)) == expected


HEADER = (
    "Disk quotas for user alice (uid 1000): \n  Filesystem  blocks   quota   limit   grace   files   quota   limit\n"
)


def quota_machine(root: Path, row: str, code: int = 0):
    command = f"quota --no-wrap --raw-grace --filesystem-list {root}"
    return recorded(
        root, {"/proc/self/mounts": f"/dev/sda1 {root} ext4 rw 0 0\n"}, programs={command: (code, HEADER + row)}
    )


@pytest.mark.parametrize(
    ("row", "code", "expected"),
    [
        ("/dev/sda1 1000000 400000000 500000000 0 1000 0 0 0\n", 0, {"quota": "info"}),
        ("/dev/sda1 499000000* 400000000 500000000 1764100000 1000 0 0 0\n", 1, {"quota_full": "error"}),
        ("/dev/sda1 380000000 400000000 900000000 0 1000 0 0 0\n", 0, {"quota_soft": "warning"}),
        ("/dev/sda1 1000 0 0 0 99990 90000 100000 0\n", 0, {"quota_files": "error"}),
        ("", 0, {}),
    ],
)
def test_quota(tmp_path, row, code, expected):
    """With a job whose checkpoint and model take 113 GiB; quota fails above a limit, and prints it all the same."""
    assert levels_by_code("quota", quota_machine(tmp_path, row, code), job(tmp_path)) == expected


def test_quota_on_lustre(tmp_path):
    """A long name has a line of its own; the group's quota counts too."""
    free = f"{tmp_path}\n                 1024  0 10737418240 -   100  0 0 -\n"
    full = f"{tmp_path} [10737418240]* 0 10737418240 - 100 0 0 -\n"
    programs = {
        "id -un": "alice\n", "id -gn": "lab\n",
        f"lfs quota -q -u alice {tmp_path}": free, f"lfs quota -q -g lab {tmp_path}": full,
    }  # fmt: skip
    machine = recorded(
        tmp_path, {"/proc/self/mounts": f"10.0.0.1@o2ib:/x {tmp_path} lustre rw 0 0\n"}, programs=programs
    )
    assert parse_quota(free)[0].hard == 10737418240 * 1024
    assert levels_by_code("quota", machine, DoctorTarget(cwd=tmp_path)) == {"quota": "info"}
    assert levels_by_code("quota", machine, job(tmp_path)) == {"quota_full": "error"}


def test_no_quota(tmp_path):
    machine = recorded(tmp_path, {"/proc/self/mounts": f"/dev/sda1 {tmp_path} ext4 rw 0 0\n"})
    assert levels_by_code("quota", machine, DoctorTarget(cwd=tmp_path)) == {}
