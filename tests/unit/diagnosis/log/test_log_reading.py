"""Logs of every size and packing are read, and a line keeps its number when the middle is left out."""

import bz2
import gzip
import lzma
import os
import random
import sys
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dsrun.diagnosis.classify import ScannedLog, diagnoses, scan_log
from dsrun.diagnosis.log import reading
from dsrun.diagnosis.log.reading import NotText
from dsrun.errors import MissingError, UsageError

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB"
FULL = "OSError: [Errno 28] No space left on device"


def test_read_gzip_log(tmp_path: Path) -> None:
    """A compressed log is read like any other."""
    plain, packed = tmp_path / "a.log", tmp_path / "b.log"
    plain.write_text(f"x\n{OOM}\n")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    for log in (plain, packed, plain.read_bytes(), packed.read_bytes()):
        assert {hit.line for hit in scan_log(log, "a log").scan.hits} == {2}


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_read_log_from_pipe(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    """A pipe is read like any other. As the shell's <(command) is."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(pipe.write_bytes, pack(f"x\n{OOM}\n".encode()))
        assert {hit.line for hit in scan_log(pipe, "a pipe").scan.hits} == {2}


@pytest.mark.parametrize("name", ["none.log", "torn.gz", "."])
def test_unreadable_log_refused_in_one_line(tmp_path: Path, name: str) -> None:
    """A log that cannot be read is refused in one line."""
    torn = gzip.compress(b"x" * 1000)[:20]
    (tmp_path / "torn.gz").write_bytes(torn)
    with pytest.raises(UsageError, match="the log cannot be read"):
        scan_log(tmp_path / name, "the log")
    with pytest.raises(UsageError, match="standard input cannot be read"):
        scan_log(torn, "standard input")


def scan_text(text: str) -> ScannedLog:
    return scan_log(text.encode(), "the log")


@pytest.mark.parametrize(
    "pack", [gzip.compress, bz2.compress, lzma.compress, lambda text: b"\xff\xfe" + text.decode().encode("utf-16-le")]
)
def test_packed_or_utf16_log_read_from_file_and_bytes(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    """gzip, bzip2, xz and UTF-16 are read wherever they come from, also in several pieces."""
    packed = pack((f"{'quiet' * 20}\n" * 60_000 + f"{OOM}\n").encode())
    (tmp_path / "log").write_bytes(packed)
    for log in (packed, tmp_path / "log"):
        assert {hit.line for hit in scan_log(log, "a log").scan.hits} == {60_001}


KILLED = "train.sh: 第 5 行：21130 已杀死               python train.py"


@pytest.mark.parametrize("encoding", ["gbk", "gb18030"])
def test_log_in_gbk_beside_utf8_is_read(encoding: str) -> None:
    """What a shell writes in a locale with GBK, between lines of programs that write UTF-8, in several pieces."""
    log = "开始训练 █▌\n".encode() + b"quiet\n" * 800_000 + KILLED.encode(encoding) + "\r保存\n".encode()
    text = b"".join(data[:limit] for data, limit in reading.read_log(log, "a log")).decode()
    assert text.startswith("开始训练 █▌\nquiet\n")
    assert text.endswith(f"quiet\n{KILLED}\r保存\n")
    assert {hit.line for hit in scan_log(log, "a log").scan.hits} == {800_002}


def test_utf16_log_of_wsl_without_mark_is_read() -> None:
    """wsl.exe writes UTF-16 into a pipe or file, without a byte order mark."""
    log = "参考的对象类型不支持尝试的操作。\r\n错误代码: Wsl/Service/0x8007273d\r\n".encode("utf-16-le")
    (hit,) = scan_log(log, "a log").scan.hits
    assert (hit.line, hit.text) == (2, "错误代码: Wsl/Service/0x8007273d")


@pytest.mark.parametrize(
    "line",
    ["训练在写下一个字时断".encode()[:-1], "déjà vu, naïve, Größe".encode("latin-1"), b"\xd6\xd0\xb9\xfa \xff"],
)
def test_bytes_that_are_not_gbk_stay_as_they_are(line: bytes) -> None:
    """UTF-8 that ends within a character, Western letters of one byte, and bytes that are no text at all."""
    assert b"".join(data[:limit] for data, limit in reading.read_log(b"x\n" + line, "a log")) == b"x\n" + line


def test_zstd_log_read_or_package_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """zstd is read where its package is installed; else the message names the package."""
    zstandard = pytest.importorskip("zstandard")
    packed = zstandard.compress(f"x\n{OOM}\n".encode())
    assert {hit.line for hit in scan_log(packed, "a log").scan.hits} == {2}
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingError, match=r"a log is compressed with zstd \(pip install zstandard"):
        scan_log(packed, "a log")


def test_zip_archive_holds_logs(tmp_path: Path) -> None:
    """The texts in a zip archive are logs of their own names."""
    with zipfile.ZipFile(tmp_path / "logs.zip", "w") as archive:
        archive.writestr("rank-0.log", "fine\n")
        archive.writestr("core", b"\x7fELF" + bytes(100))
        archive.writestr("rank-1.log", f"{OOM}\n")
    found = reading.members(tmp_path / "logs.zip", "logs.zip")
    assert found == {"logs.zip:rank-0.log": b"fine\n", "logs.zip:rank-1.log": f"{OOM}\n".encode()}


@pytest.mark.parametrize("content", [random.Random(1).randbytes(20_000), b"\x7fELF\x02\x01" + bytes(5000)])
def test_binary_file_is_not_a_log(content: bytes) -> None:
    """Random bytes and programs are refused."""
    with pytest.raises(NotText, match="the log is not text"):
        scan_log(content, "the log")


def test_log_after_zeros_of_truncated_file_is_text() -> None:
    """A log that was truncated while it was written begins with zeros."""
    assert {hit.line for hit in scan_log(bytes(100_000) + f"\n{OOM}\n".encode(), "a log").scan.hits} == {2}


def test_every_line_of_large_log_is_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sign in the middle of a large log is found, with its line."""
    monkeypatch.setattr(reading, "CHUNK", 100)
    monkeypatch.setattr(reading, "AHEAD", 100)
    lines = ["quiet"] * 3000
    lines[20], lines[1500], lines[2990] = FULL, OOM, FULL
    hits = scan_text("\n".join(lines)).scan.hits
    assert {hit.line for hit in hits if hit.cause.code == "disk_full"} == {21, 2991}
    assert {hit.line for hit in hits if hit.cause.code == "cuda_oom"} == {1501}


@pytest.mark.parametrize(
    ("noise", "sign", "cause"),
    [
        ("memory report: 12 GiB", "[1.2] Out of memory: Killed process 123 (python)", "host_oom_killed"),
        ("finance, 'banana': nano", "{'loss': nan, 'grad_norm': 1.0}", "nan_loss"),
        ("WARNING: Error: Exception: handled", "ValueError: odd", "config_value"),
    ],
)
def test_sign_found_among_frequent_words(noise: str, sign: str, cause: str) -> None:
    """A sign is found however often its words stand elsewhere."""
    log = f"{noise}\n" * 400 + f"{sign}\n" + f"{noise}\n" * 400
    first = diagnoses(scan_text(log))[0]
    assert (first.cause.code, first.line) == (cause, 401)


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_log_scan_independent_of_chunk_size(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """The result does not depend on the size of the chunks."""
    text = f"2026-11-21 12:00:01 x\n{{'loss': 1}}\n{OOM}\n\n{{'loss': 2}}\n{FULL}\nend"
    whole = scan_text(text).scan
    monkeypatch.setattr(reading, "CHUNK", size)
    pieces = scan_text(text).scan
    assert [(hit.line, hit.text, hit.steps, hit.time) for hit in pieces.hits] == [
        (hit.line, hit.text, hit.steps, hit.time) for hit in whole.hits
    ]
    assert (pieces.steps, pieces.lines) == (whole.steps, whole.lines) == (2, 7)


def test_log_line_without_end_does_not_fill_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line without an end does not fill the memory."""
    monkeypatch.setattr(reading, "CHUNK", 1000)
    monkeypatch.setattr(reading, "LONGEST", 1000)
    found = diagnoses(scan_log(b"." * 10_000 + b"\r" + OOM.encode(), "the log"))
    assert found[0].cause.code == "cuda_oom"


def test_launcher_table_found_at_log_end() -> None:
    """The launcher's table is found at the end of the log."""
    table = (
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026\n  rank      : 5 (local_rank: 1)\n"
        "  exitcode  : -9 (pid: 12)\n"
    )
    assert scan_text("x\n" * 5000 + table).first == (5, -9)
    assert scan_text("x\n").first is None
