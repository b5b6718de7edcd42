"""Logs of every size and packing are read, and a line keeps its number when the middle is left out."""

import gzip
import io
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dsrun.diagnosis import classify
from dsrun.diagnosis.classify import diagnosis, scan_log, scan_stream, scan_text
from dsrun.errors import UsageError

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB"
FULL = "OSError: [Errno 28] No space left on device"


def test_read_gzip_log(tmp_path: Path) -> None:
    """A compressed log is read like any other."""
    plain, packed = tmp_path / "a.log", tmp_path / "b.log"
    plain.write_text(f"x\n{OOM}\n")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    for log in (plain, packed, plain.read_bytes(), packed.read_bytes()):
        assert [hit.line for hit in scan_log(log, "a log")[0].hits] == [2, 2, 2]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_read_log_from_pipe(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    """A pipe is read like any other. As the shell's <(command) is."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(pipe.write_bytes, pack(f"x\n{OOM}\n".encode()))
        assert [hit.line for hit in scan_log(pipe, "a pipe")[0].hits] == [2, 2, 2]


@pytest.mark.parametrize("name", ["none.log", "torn.gz", "."])
def test_unreadable_log_refused_in_one_line(tmp_path: Path, name: str) -> None:
    """A log that cannot be read is refused in one line."""
    torn = gzip.compress(b"x" * 1000)[:20]
    (tmp_path / "torn.gz").write_bytes(torn)
    with pytest.raises(UsageError, match="the log cannot be read"):
        scan_log(tmp_path / name, "the log")
    with pytest.raises(UsageError, match="standard input cannot be read"):
        scan_log(torn, "standard input")


def test_large_log_scanned_at_head_and_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large log only the beginning and the end are scanned."""
    for name, size in (("CHUNK", 100), ("HEAD", 1000), ("TAIL", 2000)):
        monkeypatch.setattr(classify, name, size)
    lines = ["quiet"] * 3000
    lines[20], lines[1500], lines[2990] = FULL, OOM, FULL
    scan, _ = scan_text("\n".join(lines))
    assert [hit.line for hit in scan.hits if hit.cause.code == "disk_full"] == [21, 2991]
    assert not [hit for hit in scan.hits if hit.cause.code == "cuda_oom"]


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_log_scan_independent_of_chunk_size(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """The result does not depend on the size of the chunks."""
    text = f"2026-11-21 12:00:01 x\n{{'loss': 1}}\n{OOM}\n\n{{'loss': 2}}\n{FULL}\nend"
    whole, _ = scan_text(text)
    monkeypatch.setattr(classify, "CHUNK", size)
    pieces, _ = scan_text(text)
    assert [(hit.line, hit.text, hit.steps, hit.time) for hit in pieces.hits] == [
        (hit.line, hit.text, hit.steps, hit.time) for hit in whole.hits
    ]
    assert (pieces.steps, pieces.lines) == (whole.steps, whole.lines) == (2, 7)


def test_log_line_without_end_does_not_fill_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line without an end does not fill the memory."""
    monkeypatch.setattr(classify, "CHUNK", 1000)
    monkeypatch.setattr(classify, "LONGEST", 1000)
    found = diagnosis(*scan_stream(io.BytesIO(b"." * 10_000 + b"\r" + OOM.encode())))
    assert found is not None
    assert found.cause == "cuda_oom"


def test_launcher_table_found_at_log_end() -> None:
    """The launcher's table is found at the end of the log."""
    table = "Root Cause (first observed failure):\n[0]:\n  time      : 2026\n  rank      : 5 (local_rank: 1)\n"
    assert scan_text("x\n" * 5000 + table)[1] == 5
    assert scan_text("x\n")[1] is None
