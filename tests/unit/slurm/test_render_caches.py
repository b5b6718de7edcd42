"""Where the caches of a rendered script lie, who shares them, and when they are removed. Run under the real bash."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.slurm.stand_ins import SCONTROL, other, training, until

ROOT = Path(__file__).parents[3]


def test_sbatch_script_cache_folder_is_private(shell):
    """Caches lie in a folder that nobody else can write to."""
    first = Path(shell.run(training(shell)).environment["TRITON_CACHE_DIR"]).parents[1]
    assert (first.is_dir(), first.name) == (True, f"dsrun-{os.getuid()}")
    assert stat.S_IMODE(first.stat().st_mode) == 0o700


def test_sbatch_script_avoids_cache_folder_of_other_user(shell):
    """No cache is read from a folder of another user."""
    # A link that leads to nothing is owned by nobody as far as bash can tell, and mkdir does not replace it.
    (shell.tools / f"dsrun-{os.getuid()}").symlink_to("nowhere")
    cache = Path(shell.run(training(shell)).environment["TRITON_CACHE_DIR"])
    assert cache.parent.is_dir()
    assert cache.parents[1].name != f"dsrun-{os.getuid()}"


def test_link_to_own_files_is_no_cache_folder(shell, tmp_path):
    """Whoever put it into /tmp would have them removed by their age."""
    home = tmp_path / "home"
    (home / "thesis").mkdir(parents=True)
    os.utime(home / "thesis", times=(0, 0))
    link = shell.tools / f"dsrun-{os.getuid()}"
    link.symlink_to(home)
    caches = {Path(shell.run(training(shell)).environment["TRITON_CACHE_DIR"]).parents[1] for _ in range(2)}
    assert [path.name for path in home.iterdir()] == ["thesis"]
    # The next job uses the same one.
    assert [path.name[: len(link.name) + 1] for path in caches] == [f"{link.name}."]


def folder(done, name="TORCH_EXTENSIONS_DIR"):
    return Path(done.environment[name])


@pytest.mark.parametrize("render_it", [training, other])
def test_compiled_code_is_kept_per_versions_of_the_interpreter(shell, render_it):
    """Jobs share it one after another; those of other versions have a folder of their own."""
    first = folder(shell.run(render_it(shell)))
    shell.variables["SLURM_JOB_ID"] = "13"
    assert folder(shell.run(render_it(shell))) == first
    shell.variables["VERSIONS"] = "ba9876543210"
    assert folder(shell.run(render_it(shell))) != first


HOLDS = 'touch "$STAND_INS/holds"; until [ -e "$STAND_INS/go" ]; do sleep 0.02; done; exit 0'


@pytest.fixture
def holding(shell):
    """A job of another program that runs, and where its operations are compiled."""
    shell.worker = HOLDS
    process = shell.start(other(shell))
    until((shell.tools / "holds").exists, "the worker never started")
    yield next((shell.tools / f"dsrun-{os.getuid()}").glob("compiled-*/alone-0")) / "extensions"
    (shell.tools / "go").touch()
    shell.ended(process)


def test_programs_that_run_at_the_same_time_compile_apart(shell, holding):
    """The lock of a build that goes on stays; one that a killed job left goes when its folder is used again."""
    kept, left = holding / "op" / "lock", holding.parents[1] / "alone-1" / "extensions" / "cpu_adam" / "lock"
    for lock in (kept, left):
        lock.parent.mkdir(parents=True)
        lock.touch()
    shell.worker = "exit 0"
    assert folder(shell.run(other(shell))) == left.parents[1]
    assert (kept.exists(), left.exists()) == (True, False)


def test_only_what_no_job_uses_is_removed_after_30_days(shell, holding):
    place = holding.parents[1]
    names = ["compiled-000000000000", "compiled-111111111111", "extensions-4711", "extensions-4712", "triton"]
    for name in names:
        (place.parent / name / "op").mkdir(parents=True)
        (place.parent / name / ".in-use").touch() if name.startswith("compiled") else None
    for name, days in zip(names, (31, 29, 31, 29, 31), strict=True):
        for path in (place.parent / name, place.parent / name / ".in-use"):
            if path.exists():
                os.utime(path, times=(time.time() - days * 86400,) * 2)
    os.utime(place / ".in-use", times=(0, 0))
    os.utime(place / "alone-0" / ".in-use", times=(0, 0))
    (place / "alone-7").mkdir()
    os.utime(place / "alone-7", times=(0, 0))
    shell.worker, shell.variables["VERSIONS"] = "exit 0", "ba9876543210"
    shell.run(other(shell))
    left = {path.name for path in place.parent.iterdir()}
    assert left == {place.name, "compiled-111111111111", "extensions-4712", "compiled-ba9876543210"}
    assert {path.name for path in place.glob("alone-*")} == {"alone-0"}


@pytest.mark.parametrize("why", ["no flock", "no versions"])
def test_job_compiles_apart_where_nothing_can_be_shared(shell, why):
    if why == "no flock":
        shell.put("flock", "exit 127")
    else:
        shell.variables["VERSIONS"] = "Traceback"
    assert "compiled-job-12" in folder(shell.run(other(shell))).parts
    assert "compiled-job-12" in folder(shell.run(training(shell))).parts


def test_logs_of_the_agent_are_removed_by_the_next_job(shell):
    """torch's own go into TMPDIR, and stay there."""
    logs = folder(shell.run(other(shell)), "PET_LOG_DIR")
    (logs / "12-0_x" / "attempt_0").mkdir(parents=True)
    shell.run(other(shell))
    assert list(logs.iterdir()) == []


def test_staged_copy_of_a_job_that_is_gone_is_removed_by_any_job(shell):
    shell.put(
        "scontrol", SCONTROL.replace('"$STAND_INS/job"', '"$STAND_INS/job"; [ "$3" != 11 ] || echo Invalid job id')
    )
    copies = [shell.tools / f"dsrun-{os.getuid()}-{job}" for job in (11, 13)]
    for copy in copies:
        copy.mkdir()
    shell.run(other(shell))
    assert [copy.exists() for copy in copies] == [False, True]


def test_versions_are_those_of_the_interpreter_that_starts(shell, tmp_path):
    """The real program, with packages of other versions, under another compiler, on another prefix of a staged copy."""
    text = (ROOT / "slurm" / "job.bash").read_text()
    program = re.search(r"-c '\n(import hashlib.*?)' </dev/null", text, re.S)[1]

    def key(**environ):
        words = [sys.executable, "-c", program]
        return subprocess.run(
            words, env=os.environ | environ, capture_output=True, text=True, check=True
        ).stdout.strip()

    plain = key()
    assert re.fullmatch("[0-9a-f]{12}", plain)
    assert key() == plain
    facts = tmp_path / "deepspeed-0.0.1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.0.1\n")
    others = [key(PYTHONPATH=str(tmp_path)), key(TORCH_CUDA_ARCH_LIST="9.0"), key(CXX=sys.executable)]
    assert len({plain, *others, key(DSRUN_LOCAL=sys.prefix)}) == 5
