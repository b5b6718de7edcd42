import zlib

import pytest

from dsrun.runs.checksum import ChecksumPool, sum_of, threads


def test_checksum_pool_sums_files_as_they_come(tmp_path):
    """Checksums are computed as files are added."""
    sealer = ChecksumPool(tmp_path)
    contents = {"a": b"x" * 100_000, "deep/b": b"", "c": bytes(range(256))}
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
        sealer.add(tmp_path / name)
    sealer.add(tmp_path / "a")  # a second time changes nothing
    sums = sealer.result()
    assert sealer.is_done
    sealer.close()
    assert sums == {
        name: {"size": len(content), "crc32": f"{zlib.crc32(content):08x}"} for name, content in contents.items()
    }


def test_checksum_pool_fails_for_unreadable_file(tmp_path):
    """A file that cannot be read makes the result fail."""
    sealer = ChecksumPool(tmp_path)
    sealer.add(tmp_path / "gone")
    with pytest.raises(FileNotFoundError):
        sealer.result()
    sealer.close()


def test_checksum_of_file_of_several_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr("dsrun.runs.checksum._CHUNK", 1000)
    (tmp_path / "a").write_bytes(bytes(range(250)) * 10)
    assert sum_of(tmp_path / "a") == {"size": 2500, "crc32": f"{zlib.crc32(bytes(range(250)) * 10):08x}"}


def test_checksum_threads_divided_between_processes(monkeypatch):
    """Processes divide the cores among themselves."""
    monkeypatch.setattr("dsrun.runs.checksum.cores", lambda: 8)
    assert [threads(100), threads(100, 4), threads(100, 16), threads(3)] == [8, 2, 1, 3]
