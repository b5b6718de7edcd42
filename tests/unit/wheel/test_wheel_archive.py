"""Wheels from anywhere: what is refused before anything is unpacked, and what RECORD gives away."""

from __future__ import annotations

import os
import stat
import warnings
import zipfile
from pathlib import Path

import pytest

from dsrun.errors import UsageError
from dsrun.wheel.verify import archive as module
from dsrun.wheel.verify.archive import UNSAFE, check_archive, open_wheel
from dsrun.wheel.verify.contents import build_note
from dsrun.wheel.verify.wheel_check import examine
from tests.tiny_wheels import TAG, VERSION, hashed, make_wheel

NAME = f"deepspeed-{VERSION}-{TAG}.whl"
INFO = f"deepspeed-{VERSION}.dist-info"


def refusal(path: Path) -> str:
    """The one line that opening `path` ends with."""
    with pytest.raises(UsageError) as caught, open_wheel(path):
        pass
    assert "\n" not in str(caught.value)
    assert caught.value.fix
    return caught.value.message


def with_members(folder: Path, *members: tuple[zipfile.ZipInfo | str, bytes]) -> Path:
    path = folder / NAME
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as opened:
        for member, content in members:
            opened.writestr(member, content)
    return path


def test_valid_wheel_opens_without_findings(tmp_path):
    path = make_wheel(tmp_path, {"deepspeed/__init__.py": "", "deepspeed/a.txt": "hello"})
    with open_wheel(path) as archive:
        assert check_archive(archive) == []
        assert archive.read_text("deepspeed/a.txt") == "hello"
        assert (archive.name.version, archive.name.local) == (VERSION, "cputorch2.13")
        archive.unpack(tmp_path / "out")
    assert (tmp_path / "out/deepspeed/a.txt").read_text() == "hello"


@pytest.mark.parametrize("content", [b"", b"<html>404</html>", b"\x7fELF" + bytes(200), b"PK\x03\x04" + bytes(500)])
def test_not_a_zip_archive(tmp_path, content):
    (tmp_path / NAME).write_bytes(content)
    assert "not a wheel: not a zip archive" in refusal(tmp_path / NAME)


def test_missing_file_or_folder(tmp_path):
    (tmp_path / NAME).mkdir()
    assert "cannot be read: Is a directory" in refusal(tmp_path / NAME)
    assert "cannot be read: No such file or directory" in refusal(tmp_path / "missing-1-py3-none-any.whl")


def test_invalid_wheel_name(tmp_path):
    path = make_wheel(tmp_path, {"a": "b"})
    assert "not the name of a wheel" in refusal(path.rename(tmp_path / "deepspeed.whl"))


def test_truncated_wheel_is_refused_at_any_length(tmp_path):
    whole = make_wheel(tmp_path, {"deepspeed/a": b"x" * 3000}).read_bytes()
    for length in range(4, len(whole), 97):
        (tmp_path / NAME).write_bytes(whole[:length])
        assert "truncated" in refusal(tmp_path / NAME)


def test_member_names_cannot_lead_out_of_the_folder(tmp_path):
    path = with_members(tmp_path, ("../../escaped", b"x"), ("deepspeed/a", b"y"))
    with open_wheel(path) as archive:
        archive.unpack(tmp_path / "deep/er")
        assert [each.code for each in check_archive(archive)] == [UNSAFE]
    assert not (tmp_path / "escaped").exists()


def test_crc_mismatch_is_damage(tmp_path):
    path = make_wheel(tmp_path, {"deepspeed/a": bytes(range(256)) * 40})
    raw = bytearray(path.read_bytes())
    raw[60] ^= 0xFF
    path.write_bytes(raw)
    with open_wheel(path) as archive, pytest.raises(UsageError, match="deepspeed/a is damaged"):
        check_archive(archive)


def findings(path: Path) -> list[str]:
    with open_wheel(path) as archive:
        found = check_archive(archive)
    assert {each.level for each in found} <= {"error"}
    assert {each.where for each in found} <= {path.name}
    return [each.message for each in found]


def test_record_hash_mismatch(tmp_path):
    path = make_wheel(tmp_path, {"deepspeed/a": "mine"}, recorded={"deepspeed/a": hashed(b"yours")})
    assert findings(path) == ["deepspeed/a differs from its hash in RECORD"]


def test_record_hash_of_weak_algorithm_is_a_mismatch(tmp_path):
    path = make_wheel(tmp_path, {"deepspeed/a": "mine"}, recorded={"deepspeed/a": "md5=abc"})
    assert findings(path) == ["deepspeed/a differs from its hash in RECORD"]


def test_unrecorded_and_missing_files(tmp_path):
    path = make_wheel(tmp_path, {"deepspeed/a": "a"}, recorded={"deepspeed/gone": hashed(b"")})
    with zipfile.ZipFile(path, "a") as opened:
        opened.writestr("deepspeed/stowaway.so", b"x")
    assert findings(path) == [
        "deepspeed/gone is named in RECORD but missing",
        "deepspeed/stowaway.so is not named in RECORD",
    ]


def test_missing_metadata_and_record(tmp_path):
    path = with_members(tmp_path, ("deepspeed/a", b""))
    assert [message.split(":")[0] for message in findings(path)] == [
        "has no .dist-info/METADATA",
        "has no .dist-info/RECORD",
    ]


def test_renamed_wheel_contradicts_metadata(tmp_path):
    path = make_wheel(tmp_path, {"a": ""}).rename(tmp_path / f"deepspeed-0.19.8+cu130-{TAG}.whl")
    assert f"its METADATA says deepspeed {VERSION}" in findings(path)[0]


def test_version_spelling_is_normalised(tmp_path):
    path = make_wheel(tmp_path, {"a": ""}, version="0.19.8+CPU_torch").rename(
        tmp_path / f"deepspeed-0.19.8+cpu.torch-{TAG}.whl"
    )
    assert findings(path) == []


def link(name):
    found = zipfile.ZipInfo(name)
    found.external_attr = (stat.S_IFLNK | 0o777) << 16
    return found


@pytest.mark.parametrize(
    "member", ["../x", "a/../../x", "/etc/x", "..\\x", "c:x", "~/x", link("deepspeed/link"), "deepspeed/__init__.py"]
)
def test_entry_that_an_installer_should_not_write_is_an_error(tmp_path, member):
    """The last one is in it already. Nothing of such a wheel is unpacked, not even to read its libraries."""
    path = make_wheel(tmp_path, {"deepspeed/__init__.py": "", "deepspeed/a.so": "no library"})
    with zipfile.ZipFile(path, "a") as opened, warnings.catch_warnings(action="ignore"):
        opened.writestr(member, b"x")
    report, findings = examine(path)
    assert ([each.code for each in findings], report.libraries) == ([UNSAFE], ())


@pytest.mark.parametrize("name", [f"{INFO}/METADATA", "deepspeed/git_version_info_installed.py"])
def test_long_text_is_not_parsed(tmp_path, name):
    """Gigabytes of memory, for a note of six megabytes."""
    path = make_wheel(tmp_path, {"deepspeed/__init__.py": ""})
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as opened, warnings.catch_warnings(action="ignore"):
        opened.writestr(name, b"a = 1\n" * 200_000)
    with open_wheel(path) as archive, pytest.raises(UsageError, match=r"has 1\.1 MiB"):
        _ = build_note(archive), archive.read_text(name)


@pytest.mark.parametrize("name", ["../../evil/", "/evil/", "a/../../b/"])
def test_folder_that_leads_out_is_an_error(tmp_path, name):
    path = make_wheel(tmp_path, {"deepspeed/__init__.py": ""})
    with zipfile.ZipFile(path, "a") as opened:
        opened.writestr(name, b"")
    assert [each.code for each in examine(path)[1]] == [UNSAFE]


def test_bomb_is_an_error_and_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_LARGE", 1 << 20)
    path = make_wheel(tmp_path, {"deepspeed/__init__.py": "", "deepspeed/a.so": bytes(2 << 20)})
    _, findings = examine(path)
    assert [each.code for each in findings] == [UNSAFE]


def test_named_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / NAME)
    assert "Not a regular file" in refusal(tmp_path / NAME)


def test_field_of_any_length_in_record(tmp_path):
    path = with_members(tmp_path, (f"{INFO}/METADATA", b"Name: deepspeed\n"), (f"{INFO}/RECORD", b"x" * 200_000))
    with open_wheel(path) as archive:
        assert "wheel_record" in [each.code for each in check_archive(archive)]


def test_text_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_TEXT", 1000)
    path = with_members(tmp_path, (f"{INFO}/METADATA", bytes(1001)))
    with open_wheel(path) as archive, pytest.raises(UsageError, match="METADATA has 1001 B"):
        check_archive(archive)


def test_many_files_without_a_record_are_counted(tmp_path):
    members = [(f"deepspeed/{number}", b"") for number in range(3000)]
    path = with_members(tmp_path, *members, (f"{INFO}/RECORD", b""))
    with open_wheel(path) as archive:
        findings = [each for each in check_archive(archive) if each.code == "wheel_record"]
    assert len(findings) == 21
    assert findings[-1].message.startswith("2,980 more files")
