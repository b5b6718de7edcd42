"""What `dsrun build-wheel` does around the compiler: many builds of a tiny operation."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
import zipfile
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest

from dsrun.system.files import sha256_of
from tests.forkserver.client import HEAVY
from tests.integration.builder import Builder, small
from tests.integration.wheel_sources import tiny_tree
from tests.processes import alive

pytestmark = pytest.mark.train

PATIENCE_S = 300


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


def test_wheel_version_marks_patched_tree_and_cpu_isa_level(made):
    """A patched tree shows in the wheel's name, and the ISA level holds for the compiled code."""
    _, wheel, _ = made
    assert re.search(r"\+cputorch\d+\.\d+\.x8664v2\.patched\.[0-9a-f]{8}\.k[0-9a-f]{8}-cp3", wheel.name)
    library = library_in(wheel)
    assert b"scalar" in library
    assert b"avx" not in library


def test_wheel_record_lists_build_inputs(made):
    """The record says what went into the wheel."""
    _, wheel, _ = made
    record = json.loads((wheel.parent / "WHEEL.json").read_text())
    inputs = record["inputs"]
    assert inputs["torch"].split("+")[0] == version("torch").split("+")[0]
    assert inputs["python"] == f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert (inputs["ops"], inputs["cpu"]) == (["cpu_lion"], "x86-64-v2")
    assert wheel.parent.name == record["key"]


def test_built_op_is_imported_and_called(made, tmp_path):
    """The op of the wheel is used: another process imports it and calls a function of it."""
    _, wheel, _ = made
    (tmp_path / "cpu_lion_op.so").write_bytes(library_in(wheel))
    code = "import torch, cpu_lion_op; print(cpu_lion_op.here()[0])"
    done = HEAVY.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "./csrc/lion/cpu_lion.cpp\n"), done.stderr


def test_wheel_build_directory_is_kept_on_request(made):
    builder, _, said = made
    (folder,) = builder.scratch.iterdir()
    assert f"compiled in {folder}, which is kept" in said
    assert (folder / "trees/cpu_lion/csrc/lion/cpu_lion.cpp").is_file()


@pytest.mark.exhaustive
def test_corrupt_cached_wheel_is_rebuilt_reproducibly(made, tree, tmp_path):
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


@pytest.mark.exhaustive
def test_wheel_build_error_is_first_compiler_error(builder, sdist, tmp_path):
    """The first error of the compiler is the message."""
    broken = tiny_tree(sdist, tmp_path / "broken", module="int x = 1;\nint y = undeclared;\n")
    code, out, err = builder.run(*small(broken))
    assert (code, out) == (1, "")
    last = err.splitlines()[-1]
    assert last.startswith("error: cpu_lion: csrc/lion/cpu_lion.cpp:2: 'undeclared' was not declared in this scope")
    log = Path(re.search(r"the whole output: (\S+\.failed\.log)", last)[1])
    assert "undeclared" in log.read_text()
    assert len([line for line in err.splitlines() if " … " not in line]) < 10
    nothing_left(builder)


@pytest.mark.exhaustive
def test_wheel_build_fails_when_deepspeed_skips_op(builder, sdist, tmp_path):
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


@pytest.mark.exhaustive
def test_wheel_build_reports_compiler_oom_kill(builder, tree, tmp_path):
    """The kernel kills the compiler proper, and g++ reports that."""
    deadly = compiler(tmp_path / "bin", "kill -9 $$")
    code, out, err = builder.run(*small(tree, "--cxx", deadly))
    assert (code, out) == (1, "")
    assert re.search(r"error: the compiler of cpu_lion was killed, out of memory .*--jobs 1", err.splitlines()[-1])
    nothing_left(builder)


@pytest.mark.exhaustive
def test_wheel_build_reports_full_disk(builder, tree, tmp_path):
    full = compiler(tmp_path / "bin", "exec /usr/bin/env g++ -E -x c++ /dev/null > /dev/full")
    code, out, err = builder.run(*small(tree, "--cxx", full))
    assert (code, out) == (1, "")
    assert "no space left on the disk" in err.splitlines()[-1]
    assert "TMPDIR" in err.splitlines()[-1]
    nothing_left(builder)


@pytest.mark.exhaustive
def test_wheel_build_sigint_ends_compilers_and_cleans_up(builder, tree, tmp_path):
    """Ctrl-C ends the compilers and leaves nothing behind."""
    slow = compiler(tmp_path / "bin", f"echo $$ >> {tmp_path}/pids; sleep 600")
    process = builder.start(*small(tree, "--cxx", slow))
    pids = tmp_path / "pids"
    until(lambda: pids.exists() and pids.read_text().endswith("\n"), process)
    compilers = [psutil.Process(int(pid)) for pid in pids.read_text().split()]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "error: interrupted"
    assert not [each for each in compilers if alive(each)]
    assert builder.stored == []
    assert list(builder.scratch.iterdir()) == []


@pytest.mark.exhaustive
def test_concurrent_wheel_builds_compile_once(builder, tree, tmp_path):
    """Of two builds at once, one compiles and the other waits for it."""
    held = compiler(tmp_path / "bin", f"touch {tmp_path}/begun; while [ ! -e {tmp_path}/go ]; do sleep 0.1; done")
    flags = small(tree, "--cxx", held)
    first = builder.start(*flags)
    until((tmp_path / "begun").exists, first)
    second = builder.start(*flags)
    said = []
    while not re.search("waiting for it|compiling$", "".join(said), re.MULTILINE):
        said.append(second.stderr.readline())
        assert said[-1], "it ended"
    (tmp_path / "go").touch()
    (wheel, one), (same, other) = first.communicate(timeout=PATIENCE_S), second.communicate(timeout=PATIENCE_S)
    assert (first.returncode, second.returncode) == (0, 0)
    assert wheel == same
    assert Path(wheel.strip()).is_file()
    assert ["cpu_lion: compiling" in each for each in (one, "".join(said) + other)] == [True, False]


def until(condition, process):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.exhaustive
def test_wheel_build_survives_closed_stderr(builder, tree):
    """As in `dsrun build-wheel 2> >(head -2)`: the build goes on, and its end is what it would have been."""
    process = builder.start(*small(tree))
    said = [process.stderr.readline() for _ in range(2)]
    process.stderr.close()
    process.stderr = None
    out, _ = process.communicate(timeout=300)
    assert said[1].startswith("compiling with")
    assert process.returncode == 0
    assert Path(builder.folder, out.strip()).is_file()


def test_wheel_build_refuses_sdist_with_wrong_sha256(builder, sdist, tmp_path):
    """An sdist that is not the one in the lock file is refused."""
    bent = tmp_path / sdist.name
    bent.write_bytes(sdist.read_bytes() + b"\0")
    code, out, err = builder.run("--ops", "cpu_lion", "--deepspeed", bent)
    assert (code, out) == (2, "")
    assert "SHA-256" in err.splitlines()[-1]
    assert builder.stored == []
