"""`dsrun build-wheel` for real: one CPU wheel of DeepSpeed's own operations, and many of a tiny one."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import zipfile
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest

from dsrun.wheel.inspect import read_wheel
from dsrun.wheel.record import sha256_of
from dsrun.wheel.sdist import fetch_sdist, read_lock
from tests.integration.wheel_sources import tiny_tree

ROOT = Path(__file__).parents[2]
# `make test` asks for a compiler and no more; .ci/run installs libaio, so that there it is built and used.
LIBAIO = Path("/usr/include/libaio.h").exists()
REAL_OPS = "cpu_adam,shm_comm" + (",async_io" if LIBAIO else "")
BUILT_OPS = {"cpu_adam", "deepspeed_shm_comm"} | ({"async_io", "pin_memory"} if LIBAIO else set())
BUILDS = {"cpu_adam", "deepspeed_shm_comm"} | ({"async_io+pin_memory"} if LIBAIO else set())
PATIENCE_S = 60


@pytest.fixture(scope="session")
def sdist(tmp_path_factory):
    """The source of the DeepSpeed that is installed here, kept in the user's cache."""
    into = tmp_path_factory.mktemp("sdist")
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return fetch_sdist(
        version("deepspeed"),
        read_lock().sdists[version("deepspeed")],
        into,
        cache=Path(root) / "dsrun-tests/sdists",
    )


class Builder:
    """`dsrun build-wheel` with a cache and a temporary folder of its own."""

    def __init__(self, folder: Path, cache: Path | None = None) -> None:
        self.folder = folder
        self.cache = cache or folder / "cache"
        self.scratch = folder / "tmp"
        self.scratch.mkdir(parents=True, exist_ok=True)

    def start(self, *args: object, **env: str) -> subprocess.Popen[str]:
        environ = {
            **os.environ,
            "DSRUN_CACHE": str(self.cache),
            "TMPDIR": str(self.scratch),
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": str(ROOT),
            **env,
        }
        return subprocess.Popen(
            [sys.executable, "-m", "dsrun", "build-wheel", "--arch", "cpu", *map(str, args)],
            env=environ,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *args: object, **env: str) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        process = self.start(*args, **env)
        out, err = process.communicate()
        return process.returncode, out, err

    def wheel(self, *args: object, **env: str) -> Path:
        code, out, err = self.run(*args, **env)
        assert code == 0, err
        assert out.count("\n") == 1
        return Path(self.folder, out.strip())

    @property
    def stored(self) -> list[str]:
        """Names in the store but the locks."""
        root = self.cache / "wheels"
        return sorted(path.name for path in root.iterdir() if path.suffix != ".lock") if root.is_dir() else []


@pytest.fixture
def builder(tmp_path):
    return Builder(tmp_path)


@pytest.fixture(scope="session")
def tree(sdist, tmp_path_factory):
    return tiny_tree(sdist, tmp_path_factory.mktemp("tree"))


def small(tree, *more):
    return ("--ops", "cpu_lion", "--deepspeed", tree, *more)


# --- one build of DeepSpeed's own operations ---------------------------------------------------------------


@pytest.fixture(scope="session")
def real(sdist, tmp_path_factory):
    """A wheel that two processes asked for at the same time, and what they said."""
    made = Builder(tmp_path_factory.mktemp("real"))
    kept = made.cache / "sdists"
    kept.mkdir(parents=True)
    (kept / sdist.name).symlink_to(sdist)
    both = [
        made.start("--ops", REAL_OPS, "--deepspeed", version("deepspeed"), "--jobs", "2") for _ in range(2)
    ]
    said = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    return made, said


@pytest.fixture(scope="session")
def clean(real, tmp_path_factory):
    """An environment with this wheel in it, and behind it the packages of the tests' own: torch and the rest."""
    folder = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = next(folder.glob("lib/*/site-packages"))
    (packages / "zz-behind.pth").write_text(sysconfig.get_path("purelib") + "\n")
    _, said = real
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", said[0][0].strip()], check=True)
    return folder


def in_clean(clean, code, **env):
    """Run Python code where nothing can be compiled: no compiler on PATH, and asking for one raises."""
    guard = """
import deepspeed.ops.op_builder.builder as b
def jit(self, verbose=True):
    raise AssertionError(f"{self.name} would be compiled")
b.OpBuilder.jit_load = jit
"""
    environ = {
        "PATH": str(clean / "bin"),
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "HOME": str(clean),
        **env,
    }
    done = subprocess.run(
        [str(clean / "bin/python"), "-c", guard + code],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_one_of_two_builds_and_the_other_waits_for_it(real):
    _, ((first, first_said), (second, second_said)) = real
    assert first == second
    assert Path(first.strip()).is_file()
    waited = [("waiting for it" in said, "cpu_adam: compiling" in said) for said in (first_said, second_said)]
    assert sorted(waited) == [(False, True), (True, False)]


def test_the_wheel_holds_what_was_asked_for(real):
    made, said = real
    wheel = Path(said[0][0].strip())
    report = read_wheel(wheel)
    assert set(report.installed_ops) == BUILT_OPS
    assert {lib.op for lib in report.libraries} == set(report.installed_ops)
    assert report.accelerator == "cpu"
    record = json.loads((wheel.parent / "WHEEL.json").read_text())
    assert record["version"] == 1
    assert record["sha256"] == sha256_of(wheel) == report.sha256
    assert record["inputs"]["ops"] == record["ops"]["asked"] == record["ops"]["built"]
    assert record["size"] == wheel.stat().st_size < 4_000_000
    assert record["seconds"]["builds"].keys() == BUILDS
    assert "building 'deepspeed.ops.adam.cpu_adam_op' extension" in (wheel.parent / "build.log").read_text()
    assert list(made.scratch.iterdir()) == []


def test_progress_names_files_and_the_time_left(real):
    _, said = real
    text = "".join(err for _, err in said)
    assert re.search(
        r"^cpu_adam: cpu_adam(_impl)?\.cpp compiled \(1 of 2\); about .* left$", text, re.MULTILINE
    )
    assert re.search(r"^cpu_adam: done in ", text, re.MULTILINE)


def test_an_unchanged_request_compiles_nothing(real):
    made, said = real
    wheel = Path(said[0][0].strip())
    before = wheel.stat()
    code, out, err = made.run("--ops", REAL_OPS, "--deepspeed", version("deepspeed"))
    assert (code, out) == (0, said[0][0])
    assert "compiling" not in err
    assert wheel.stat().st_mtime_ns == before.st_mtime_ns


def test_cpu_adam_steps_like_torchs_own_and_nothing_is_compiled(clean):
    out = in_clean(
        clean,
        """
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam
torch.manual_seed(0)
start = [torch.randn(997), torch.randn(64, 33)]
def trained(make):
    weights = [torch.nn.Parameter(each.clone()) for each in start]
    optimizer = make(weights)
    for step in range(20):
        for number, weight in enumerate(weights):
            weight.grad = torch.sin(weight.detach() * (step + 1) + number)
        optimizer.step()
    return weights
options = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
ours = trained(lambda w: DeepSpeedCPUAdam(w, adamw_mode=True, **options))
theirs = trained(lambda w: torch.optim.AdamW(w, **options))
print(max((a - b).abs().max().item() for a, b in zip(ours, theirs)))
print(min((a - b).abs().max().item() for a, b in zip(ours, start)))
""",
    )
    difference, moved = map(float, out.splitlines()[-2:])
    assert difference < 1e-5
    assert moved > 0.01


@pytest.mark.skipif(not LIBAIO, reason="needs libaio-dev; unit tests say what is said without it")
def test_async_io_writes_and_reads_a_file(clean, tmp_path):
    out = in_clean(
        clean,
        f"""
import torch
from deepspeed.ops.op_builder import AsyncIOBuilder
handle = AsyncIOBuilder().load().aio_handle(4096, 2, False, False, 1)
data = torch.arange(8192, dtype=torch.uint8)
assert handle.sync_pwrite(data, {str(tmp_path / "file")!r}, 0) == 1
back = torch.zeros_like(data)
assert handle.sync_pread(back, {str(tmp_path / "file")!r}, 0) == 1
print(torch.equal(data, back))
""",
    )
    assert out.splitlines()[-1] == "True"
    assert (tmp_path / "file").stat().st_size == 8192


@pytest.mark.train
def test_a_training_run_compiles_nothing(clean, tmp_path, tiny, pairs):
    """Two ranks under ZeRO-2 with the optimizer on the CPU: shm_comm and cpu_adam, both from the wheel."""
    extensions = tmp_path / "extensions"  # where torch puts whatever it compiles while a program runs
    extensions.mkdir()
    argv = [
        str(clean / "bin/python"), "-m", "dsrun", "train", "--model", tiny["t5"], "--train-file", pairs["train"],
        "--zero", "2", "--offload", "cpu", "--bf16", "false", "--max-steps", "2", "--global-batch-size", "8",
        "--nproc", "2", "--output", str(tmp_path / "run"),
    ]  # fmt: skip
    environ = {
        **os.environ,
        "TORCH_EXTENSIONS_DIR": str(extensions),
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(argv, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [path for path in extensions.iterdir() if path.is_dir()] == []
    assert "+cputorch" in json.loads((tmp_path / "run/run.json").read_text())["versions"]["deepspeed"]


# --- many builds of a tiny operation -----------------------------------------------------------------------


@pytest.fixture(scope="session")
def made(tree, tmp_path_factory):
    """A wheel of the tiny operation: who built it, the wheel, what was said."""
    builder = Builder(tmp_path_factory.mktemp("made"))
    code, out, err = builder.run(*small(tree, "--cpu", "x86-64-v2", "--keep"))
    assert code == 0, err
    return builder, Path(out.strip()), err


def library_in(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(next(name for name in archive.namelist() if "cpu_lion_op" in name))


def test_a_patched_tree_says_so_and_the_cpu_level_is_honoured(made):
    _, wheel, _ = made
    assert re.search(r"\+cputorch\d+\.\d+\.x8664v2\.patched\.[0-9a-f]{8}-cp3", wheel.name)
    library = library_in(wheel)
    assert b"scalar" in library
    assert b"avx" not in library


def test_the_record_says_what_went_in(made):
    _, wheel, _ = made
    record = json.loads((wheel.parent / "WHEEL.json").read_text())
    inputs = record["inputs"]
    assert inputs["torch"].split("+")[0] == version("torch").split("+")[0]
    assert inputs["python"] == f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert (inputs["ops"], inputs["cpu"]) == (["cpu_lion"], "x86-64-v2")
    assert wheel.parent.name == record["key"]


def test_the_folder_is_kept_when_asked(made):
    builder, _, said = made
    (folder,) = builder.scratch.iterdir()
    assert f"compiled in {folder}, which is kept" in said
    assert (folder / "trees/cpu_lion/csrc/lion/cpu_lion.cpp").is_file()


def test_a_damaged_wheel_is_built_again_with_the_same_bytes(made, tree, tmp_path):
    """In another temporary folder, with another umask and time zone, with other means that may not matter.

    setuptools takes the compiler's path apart at spaces, so a TMPDIR with one must not be used.
    """
    before, wheel, _ = made
    shutil.copytree(before.cache, tmp_path / "cache")
    damaged = tmp_path / "cache" / wheel.relative_to(before.cache)
    digest = sha256_of(damaged)
    with damaged.open("r+b") as file:
        file.seek(1000)
        file.write(b"\0\0\0\0")
    assert sha256_of(damaged) != digest
    builder = Builder(tmp_path)
    (tmp_path / "a longer name").mkdir()
    mask = os.umask(0o077)
    try:
        code, out, err = builder.run(
            *small(tree, "--cpu", "x86-64-v2", "--jobs", "1", "-o", "dist"),
            TMPDIR=str(tmp_path / "a longer name"),
            TZ="Asia/Tokyo",
        )
    finally:
        os.umask(mask)
    assert (code, out) == (0, f"dist/{wheel.name}\n"), err
    assert "the stored wheel is damaged and is built again" in err
    assert sha256_of(damaged) == sha256_of(tmp_path / "dist" / wheel.name) == digest
    assert sorted(path.suffix for path in (tmp_path / "dist").iterdir()) == [".json", ".log", ".whl"]
    library = library_in(damaged)
    assert b"./csrc/lion/cpu_lion.cpp" in library
    assert b"dsrun-wheel" not in library
    assert list(Path("/tmp").glob(f"dsrun-wheel-{damaged.parent.name}*")) == []


def nothing_left(builder):
    """No wheel, no half of one, no build folder."""
    assert [name for name in builder.stored if not name.endswith(".failed.log")] == []
    assert list(builder.scratch.iterdir()) == []


def test_the_first_error_of_the_compiler_is_the_message(builder, sdist, tmp_path):
    broken = tiny_tree(sdist, tmp_path / "broken", module="int x = 1;\nint y = undeclared;\n")
    code, out, err = builder.run(*small(broken))
    assert (code, out) == (1, "")
    last = err.splitlines()[-1]
    assert last.startswith(
        "error: cpu_lion: csrc/lion/cpu_lion.cpp:2: 'undeclared' was not declared in this scope"
    )
    log = Path(re.search(r"the whole output: (\S+\.failed\.log)", last)[1])
    assert "undeclared" in log.read_text()
    assert len(err.splitlines()) < 10
    nothing_left(builder)


def test_an_operation_that_deepspeed_skips_is_an_error(builder, sdist, tmp_path):
    """With a warning among a thousand lines, and exit code 0."""
    skipping = tiny_tree(sdist, tmp_path / "skipping")
    builder_file = skipping / "op_builder/cpu/cpu_lion.py"
    builder_file.write_text(
        builder_file.read_text() + "\n    def is_compatible(self, verbose=False):\n        return False\n"
    )
    code, out, err = builder.run(*small(skipping))
    assert (code, out) == (1, "")
    assert "cpu_lion is not in it" in err.splitlines()[-1]
    nothing_left(builder)


def compiler(folder, when_compiling):
    """A C++ compiler that does `when_compiling` (shell) when it meets one of the operation's files."""
    folder.mkdir()
    script = folder / "g++"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in\n*csrc/lion/*.cpp*) {when_compiling} ;;\nesac\nexec /usr/bin/env g++ "$@"\n'
    )
    script.chmod(0o755)
    return script


def test_a_compiler_killed_for_memory_is_said(builder, tree, tmp_path):
    """The kernel kills the compiler proper, and g++ reports that."""
    deadly = compiler(tmp_path / "bin", "kill -9 $$")
    code, out, err = builder.run(*small(tree, "--cxx", deadly))
    assert (code, out) == (1, "")
    assert re.search(
        r"error: the compiler of cpu_lion was killed, out of memory .*--jobs 1", err.splitlines()[-1]
    )
    nothing_left(builder)


def test_a_full_disk_is_said(builder, tree, tmp_path):
    full = compiler(tmp_path / "bin", "exec /usr/bin/env g++ -E -x c++ /dev/null > /dev/full")
    code, out, err = builder.run(*small(tree, "--cxx", full))
    assert (code, out) == (1, "")
    assert "no space left on the disk" in err.splitlines()[-1]
    assert "TMPDIR" in err.splitlines()[-1]
    nothing_left(builder)


def test_ctrl_c_ends_the_compilers_and_leaves_nothing(builder, tree, tmp_path):
    slow = compiler(tmp_path / "bin", f"echo $$ >> {tmp_path}/pids; sleep 600")
    process = builder.start(*small(tree, "--cxx", slow))
    pids = tmp_path / "pids"
    until(lambda: pids.exists() and pids.read_text().endswith("\n"), process)
    compilers = [psutil.Process(int(pid)) for pid in pids.read_text().split()]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "error: interrupted"
    assert not [each for each in compilers if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    assert builder.stored == []
    assert list(builder.scratch.iterdir()) == []


def until(condition, process):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_sdist_that_is_not_the_one_in_the_lock(builder, sdist, tmp_path):
    bent = tmp_path / sdist.name
    bent.write_bytes(sdist.read_bytes() + b"\0")
    code, out, err = builder.run("--ops", "cpu_lion", "--deepspeed", bent)
    assert (code, out) == (2, "")
    assert "SHA-256" in err.splitlines()[-1]
    assert builder.stored == []
