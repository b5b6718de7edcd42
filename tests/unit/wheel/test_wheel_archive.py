"""Wheels from anywhere: what is refused before anything is unpacked, and what RECORD gives away."""

from __future__ import annotations

import io
import stat
import zipfile
from pathlib import Path

import pytest

from dsrun.errors import UsageError
from dsrun.wheel.verify import archive as archives
from dsrun.wheel.verify.archive import check_archive, open_wheel
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


@pytest.mark.parametrize(
    ("member", "said"),
    [
        ("../../etc/cron.d/x", "leaves the folder"),
        ("deepspeed/../../x", "leaves the folder"),
        ("/etc/passwd", "absolute"),
        ("C:/windows/x", "absolute"),
        ("..\\x", "absolute or unusable"),
    ],
)
def test_path_traversal_is_refused(tmp_path, member, said):
    """Member names that lead out of the folder are refused."""
    # zipfile would mend a backslash on the way in; a hostile archive does not.
    path = with_members(tmp_path, (member.replace("\\", "|"), b"root::0:0"))
    path.write_bytes(path.read_bytes().replace(b"..|x", b"..\\x"))
    message = refusal(path)
    assert said in message
    assert message.startswith(f"{NAME}: refused: ")


def test_symlink_member_is_refused(tmp_path):
    link = zipfile.ZipInfo("deepspeed/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    assert "is a link" in refusal(with_members(tmp_path, (link, b"/etc/passwd")))


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("again", ["deepspeed/a.so", "deepspeed//a.so", "deepspeed/./a.so"])
def test_duplicate_member_is_refused(tmp_path, again):
    path = with_members(tmp_path, ("deepspeed/a.so", b"one"), (again, b"other"))
    assert "'deepspeed/a.so' is in it twice" in refusal(path)


def test_zip_bomb_ratio_is_refused_before_unpacking(tmp_path):
    path = tmp_path / NAME
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as opened,
        opened.open("deepspeed/zeros", "w") as member,
    ):
        for _ in range(65):
            member.write(bytes(1 << 20))
    assert path.stat().st_size < 1 << 20
    assert "(a zip bomb?)" in refusal(path)


def test_zip_bomb_of_many_small_members_is_refused(tmp_path):
    content = bytes(8 << 20)
    path = with_members(tmp_path, *((f"deepspeed/{n}", content) for n in range(9)))
    assert "would unpack to 72 MiB" in refusal(path)


def test_zip_bomb_total_size_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MAX_TOTAL", 1000)
    assert "a zip bomb" in refusal(with_members(tmp_path, ("a", b"x" * 1001)))


def test_false_member_size_unpacks_no_more(tmp_path):
    """A member that is larger than its header says is not unpacked beyond that size."""
    path = with_members(tmp_path, ("deepspeed/a", bytes(1 << 20)))
    raw = path.read_bytes()
    said = (1 << 20).to_bytes(4, "little")
    assert raw.count(said) >= 2
    path.write_bytes(raw.replace(said, (10).to_bytes(4, "little")))
    with open_wheel(path) as archive, pytest.raises(UsageError, match="is damaged"):
        archive.copy("deepspeed/a", io.BytesIO())


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
