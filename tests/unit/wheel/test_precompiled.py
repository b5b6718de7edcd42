"""torch's headers compiled once for many files: when that is done, and that the objects stay the same."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys

import pytest

from dsrun.wheel.compile import precompiled
from dsrun.wheel.compile.precompiled import includes_torch, launcher, shared_flags
from tests.tiny_wheels import needs_gcc


@pytest.fixture
def build(tmp_path):
    """A build's folder: a tree with a source, and torch/extension.h as small as can be among the site packages."""
    header = tmp_path / "site/torch/extension.h"
    header.parent.mkdir(parents=True)
    header.write_text("#pragma once\ntemplate <class T> T twice(T x) { return x + x; }\n")
    tree = tmp_path / "trees/op"
    (tree / "includes").mkdir(parents=True)
    (tree / "includes/op.h").write_text("#include <cmath>\n#include <torch/extension.h>\n")
    (tree / "op.cpp").write_text('#include "op.h"\nint four() { return twice(2); }\n')
    (tree / "plain.cpp").write_text("int one() { return 1; }\n")
    return tmp_path


def command(build, source, output, *more):
    tree = build / "trees/op"
    return [
        shutil.which("g++"), "-MMD", "-MF", f"{output}.d", f"-I{tree}/includes", "-isystem", str(build / "site"), "-O1",
        *more,
        f"-DTORCH_EXTENSION_NAME={source}", "-c", str(tree / f"{source}.cpp"), "-o", str(output),
    ]  # fmt: skip


def run(build, argv):
    ours = [sys.executable, "-I", "-S", precompiled.__file__, str(build / "headers"), *argv]
    subprocess.run(ours, check=True, cwd=build)


@needs_gcc
def test_precompiled_header_gives_same_object(build):
    """One header for a set of flags, used by files of other names, and another one for other flags."""
    plain, ours = build / "plain.o", build / "ours.o"
    subprocess.run(command(build, "op", plain), check=True)
    run(build, command(build, "op", ours))
    assert ours.read_bytes() == plain.read_bytes()
    (first,) = (build / "headers").glob("*/torch.h.gch")
    (build / "trees/op/other.cpp").write_text('#include "op.h"\n')
    run(build, command(build, "other", build / "other.o"))
    assert list((build / "headers").glob("*/torch.h.gch")) == [first]
    run(build, command(build, "op", ours, "-fopenmp"))
    assert len(list((build / "headers").glob("*/torch.h.gch"))) == 2


@needs_gcc
def test_header_is_not_waited_for(build):
    """While another process compiles the header, and where that fails, files are compiled without it."""
    argv = command(build, "op", build / "op.o")
    run(build, argv)
    (ready,) = (build / "headers").glob("*/torch.h.gch")
    ready.unlink()
    with (ready.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert precompiled.precompiled(build / "headers", argv) is None
    (ready.parent / "failed").touch()
    assert precompiled.precompiled(build / "headers", argv) is None


def test_files_without_torch_and_other_calls_are_left_alone(build):
    assert precompiled.precompiled(build / "headers", command(build, "plain", build / "plain.o")) is None
    assert precompiled.precompiled(build / "headers", ["/usr/bin/g++", "-shared", "op.o", "-o", "op.so"]) is None
    assert not (build / "headers").exists()
    assert includes_torch(build / "trees/op/op.cpp", [build / "trees/op/includes"])


def test_flags_of_one_file_do_not_count(build):
    argv = command(build, "op", build / "op.o", "-fPIC", "-Icsrc")
    source = build / "trees/op/op.cpp"
    assert list(shared_flags(argv, source, build)) == ["-isystem", str(build / "site"), "-O1", "-fPIC"]


@pytest.mark.parametrize(("kind", "processes", "used"), [("gcc", 4, True), ("gcc", 3, False), ("clang", 7, False)])
def test_headers_precompiled_where_it_pays(tmp_path, monkeypatch, kind, processes, used):
    monkeypatch.setattr(precompiled, "_FREE_BYTES", 0)
    assert bool(launcher(tmp_path / "headers", kind, processes=processes)) == used
    monkeypatch.setattr(precompiled, "_FREE_BYTES", 1 << 62)
    assert launcher(tmp_path / "headers", kind, processes=processes) == []
