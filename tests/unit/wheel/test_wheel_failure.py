"""The one error a user needs out of thousands of lines."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dsrun.errors import ToolError
from dsrun.wheel.compile.failure import (
    BuildFailure,
    check_executable,
    copy_failed,
    explained,
    first_failure,
    with_log,
)

NOISE = [
    "In file included from csrc/adam/cpu_adam.cpp:6:",
    "csrc/includes/simd.h:12:9: warning: ignoring '#pragma unroll ' [-Wunknown-pragmas]",
    "running build_ext",
]
QUOTED = "\N{LEFT SINGLE QUOTATION MARK}x\N{RIGHT SINGLE QUOTATION MARK}"
ECHO = [
    "ninja: build stopped: subcommand failed.",
    "Traceback (most recent call last):",
    '  File "torch/utils/cpp_extension.py", line 2891, in _run_ninja_build',
    "subprocess.CalledProcessError: Command '['ninja', '-v', '-j', '2']' returned non-zero exit status 1.",
    "RuntimeError: Error compiling objects for extension",
]


@pytest.mark.parametrize("name", ["TREE/csrc/a.cpp", "../../csrc/a.cpp", "csrc/a.cpp"])
def test_file_of_error_is_named_from_the_tree(tmp_path, name):
    log = tmp_path / "build.log"
    file = name.replace("TREE", str(tmp_path / "trees/op"))
    log.write_text(f"op\t{file}:3:1: error: 'foo' was not declared in this scope\n")
    assert explained(log, {"op": 1}, tmp_path).message == "op: csrc/a.cpp:3: 'foo' was not declared in this scope"


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A file system in memory, for as long as this is open."""
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def look(*texts, codes=None):
    return first_failure([("cpu_adam", text) for text in [*NOISE, *texts, *ECHO]], codes or {"cpu_adam": 1})


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "/b/csrc/adam/cpu_adam.cpp:8:10: fatal error: torch/extension.h: No such file or directory",
            "/b/csrc/adam/cpu_adam.cpp:8: torch/extension.h: No such file or directory",
        ),
        (
            "csrc/x.cpp:3:1: error: 'foo' was not declared in this scope",
            "csrc/x.cpp:3: 'foo' was not declared in this scope",
        ),
        (
            "\x1b[01m\x1b[Kcsrc/x.cpp:3:1:\x1b[m\x1b[K \x1b[01;31m\x1b[Kerror: \x1b[m\x1b[Kexpected ';'",
            "csrc/x.cpp:3: expected ';'",
        ),
        (
            '/b/multi_tensor_adam.cu(31): error: identifier "foo" is undefined',
            '/b/multi_tensor_adam.cu(31): identifier "foo" is undefined',
        ),
        ('k.cu(3): error #20: identifier "y" is undefined', 'k.cu(3): identifier "y" is undefined'),
        (
            "nvcc fatal   : Unsupported gpu architecture 'compute_70'",
            "nvcc: Unsupported gpu architecture 'compute_70'",
        ),
        (
            "ptxas /tmp/x.ptx, line 20; error   : Feature 'f' requires .target sm_80 or higher",
            "ptxas: Feature 'f' requires .target sm_80 or higher",
        ),
        ("/usr/bin/ld: cannot find -lcudart: No such file or directory",
         "ld: cannot find -lcudart: No such file or directory"),
        ("x.cpp:(.text+0x5): undefined reference to `io_submit'", "x.cpp: undefined reference to `io_submit'"),
        (f"cc1plus: error: invalid argument {QUOTED}", "cc1plus: invalid argument 'x'"),
        ("g++: error: unrecognized command-line option '-mfoo'", "g++: unrecognized command-line option '-mfoo'"),
    ],
)  # fmt: skip
def test_first_compiler_error(line, sentence):
    found = look(line, "csrc/later.py: a line of no meaning", line.replace("/", "/later/"))
    assert (found.label, found.sentence, found.cause) == ("cpu_adam", sentence, "")


def test_compiler_error_outweighs_earlier_linker_error():
    found = look("/usr/bin/ld: cannot find -laio", "a.cpp:1:1: error: real")
    assert found.sentence == "a.cpp:1: real"


def test_last_python_error_without_compiler_error():
    """Without a compiler's error the last exception of Python is the reason."""
    found = look("ImportError: first", "torch.cuda.CudaError: the reason")
    assert found.sentence == "torch.cuda.CudaError: the reason"


def test_assertion_error_without_message():
    assert look("AssertionError").sentence == "AssertionError: failed"


@pytest.mark.parametrize(
    "line",
    [
        "g++: fatal error: Killed signal terminated program cc1plus",
        "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
        "cc1plus: out of memory allocating 65536 bytes after a total of 1 bytes",
        "virtual memory exhausted: Cannot allocate memory",
    ],
)
def test_compiler_killed_by_oom(line):
    assert look("a.cpp:1:1: error: before", line).cause == "memory"


def test_build_killed_by_sigkill():
    assert first_failure([("cpu_adam", "running build_ext")], {"cpu_adam": -9}) == BuildFailure(
        label="cpu_adam", where="", what="the build was killed", cause="memory"
    )


@pytest.mark.parametrize(
    "line",
    [
        "/tmp/ccX.s: Assembler messages:\n/tmp/ccX.s: Fatal error: can't write 5 bytes: No space left on device",
        "OSError: [Errno 28] No space left on device: 'build/lib'",
        "ld: final link failed: Disk quota exceeded",
    ],
)
def test_full_disk_outweighs_other_errors(line):
    assert look("a.cpp:1:1: error: before", *line.splitlines()).cause == "disk"


def test_build_log_without_error():
    assert first_failure([("a", line) for line in NOISE], {"a": 1}) is None


def test_build_without_a_known_error_shows_its_last_line(tmp_path):
    log = tmp_path / "build.log"
    log.write_text("b\tall is well\na\tsh: 1: /scratch/bin/c++: Permission denied\na\t\nb\tfinished\n")
    error = explained(log, {"a": 126, "b": 0}, tmp_path)
    assert error.message == "the build of a failed: sh: 1: /scratch/bin/c++: Permission denied"
    log.write_text("")
    assert explained(log, {"a": 126}, tmp_path).message == "the build of a failed: it printed nothing"


def test_full_disk_while_a_tree_is_copied_is_one_line(tmp_path):
    """copytree goes on after an error and lists those of all files in one exception without an error number."""
    source, disk = tmp_path / "source", tmp_path / "disk"
    for folder in (source, disk):
        folder.mkdir()
    for number in range(50):
        (source / f"file{number}").write_bytes(bytes(1 << 16))
    with mounted(disk, "size=1m"), pytest.raises(shutil.Error) as caught:
        shutil.copytree(source, disk / "tree")
    error = copy_failed(disk / "build", caught.value)
    assert error.message.startswith(f"no space left on the disk of {disk}")
    assert "No space left on device" in error.message
    assert error.message.count("No space left") == 1


def test_log_without_output_or_room_is_not_named(tmp_path):
    """Nor is half of one kept."""
    error, log, disk = ToolError("it failed"), tmp_path / "build.log", tmp_path / "disk"
    disk.mkdir()
    log.touch()
    assert with_log(error, log, disk / "key.failed.log") is error
    log.write_bytes(bytes(1 << 18))
    with mounted(disk, "size=64k"):
        assert with_log(error, log, disk / "key.failed.log") is error
        assert list(disk.iterdir()) == []


def test_folder_mounted_noexec_is_one_line(tmp_path):
    with mounted(tmp_path, "noexec"), pytest.raises(ToolError, match=f"{tmp_path} is mounted noexec") as caught:
        check_executable(tmp_path / "build")
    assert "TMPDIR" in (caught.value.fix or "")


@pytest.mark.parametrize(
    "complaint",
    [
        "c++: fatal error: Terminated signal terminated program cc1plus",
        "nvcc error   : 'cicc' died due to signal 15 (Terminate signal)",
        "KeyboardInterrupt",
        "RuntimeError: Error compiling",
    ],
)
def test_errors_of_cancelled_builds_are_ignored(complaint):
    """The first failure ends the compilers of the others, and only its own build has an exit code."""
    lines = [("a", "RuntimeError: the reason"), ("b", complaint), ("b", "a.cpp:1:1: error: half a file")]
    assert first_failure(lines, {"a": 1, "c": 0}).sentence == "RuntimeError: the reason"
    assert first_failure([("b", "g++: fatal error: Killed signal terminated program x")], {"a": 1}).cause == "memory"
