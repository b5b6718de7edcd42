"""Which DeepSpeed is built: releases held to the lock by the real pip, and files, hostile ones too."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from dsrun.datafiles import data_folder, read_toml
from dsrun.errors import MissingError, ToolError, UsageError
from dsrun.wheel.checkout import parse_remote
from dsrun.wheel.platform.wheel_package import wheel_package
from dsrun.wheel.sdist import fetch_sdist
from dsrun.wheel.select_source import identify_source, resolve_source
from tests.deepspeed_trees import WHEN, content
from tests.fake_programs import program

LOCKED = wheel_package().default
PACKAGES = read_toml(data_folder("build") / "packages.toml")["packages"]


def archive(path: Path, files: dict[str, bytes], *more: tarfile.TarInfo) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), WHEN
            tar.addfile(member, io.BytesIO(data))
        for member in more:
            tar.addfile(member)
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder that the real pip takes for its whole index, by its own configuration."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name, value in {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "PIP_CONFIG_FILE": os.devnull,
        "MARK": str(tmp_path / "mark"),
        "DS_BUILD_OPS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    return folder


# --- releases --------------------------------------------------------------------------------------------


def test_default_source_is_identified_offline():
    identity = identify_source(None)
    assert (identity.kind, identity.version, identity.label) == ("sdist", LOCKED, "")
    assert identity.digest == f"sha256:{wheel_package().sdist[LOCKED]}"
    for text in (LOCKED, f"=={LOCKED}", f"deepspeed=={LOCKED}", f"v{LOCKED}", f" {LOCKED} "):
        assert identify_source(text) == identity


@pytest.mark.parametrize("name", PACKAGES)
def test_source_lock_holds_sha256(name):
    package = wheel_package(name)
    assert package.default in package.sdist
    assert all(len(value) == 64 and int(value, 16) for value in package.sdist.values())


def test_version_without_hash_is_refused():
    with pytest.raises(UsageError, match=r"no hash for DeepSpeed 0\.19\.88.*did you mean 0\.19\.8.*#sha256=HEX"):
        identify_source("0.19.88")
    given = identify_source("0.20.0#sha256=" + "ab" * 32)
    assert (given.version, given.digest) == ("0.20.0", "sha256:" + "ab" * 32)
    with pytest.raises(UsageError, match="the lock's SHA-256"):
        identify_source(f"{LOCKED}#sha256=" + "ab" * 32)


def test_sdist_with_wrong_hash_is_never_run(index, tmp_path):
    archive(index / f"deepspeed-{LOCKED}.tar.gz", content(LOCKED))
    with pytest.raises(ToolError, match=r"nothing of it was run") as raised:
        resolve_source(LOCKED, tmp_path / "into", cache=tmp_path / "cache")
    assert wheel_package().sdist[LOCKED] in raised.value.message
    assert sha256(index / f"deepspeed-{LOCKED}.tar.gz") in raised.value.message
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "mark").exists()
    assert not (tmp_path / "into").exists()
    assert list((tmp_path / "cache").iterdir()) == []


def test_sdist_is_fetched_verified_and_cached(index, tmp_path):
    path = archive(index / "deepspeed-9.1.0.tar.gz", content("9.1.0"))
    text = f"9.1.0#sha256={sha256(path)}"
    source = resolve_source(text, tmp_path / "into", cache=tmp_path / "cache")
    assert (source.kind, source.version, source.label) == ("sdist", "9.1.0", "")
    assert (tmp_path / "into/version.txt").read_text() == "9.1.0\n"
    assert (tmp_path / "mark").read_text() == "it ran ", "a user's DS_BUILD_OPS must not reach the metadata run"
    path.unlink()
    again = resolve_source(text, tmp_path / "again", cache=tmp_path / "cache")
    assert again.digest == source.digest
    (tmp_path / "cache/deepspeed-9.1.0.tar.gz").write_bytes(b"damaged")
    with pytest.raises(ToolError, match="could not fetch"):
        resolve_source(text, tmp_path / "third", cache=tmp_path / "cache")


def test_sdist_not_found_by_pip(index, tmp_path):
    with pytest.raises(ToolError, match=rf"could not fetch the sources of DeepSpeed {LOCKED}") as raised:
        resolve_source(LOCKED, tmp_path / "into", cache=tmp_path / "cache")
    assert f"deepspeed-{LOCKED}.tar.gz" in raised.value.fix
    assert not (tmp_path / "into").exists()


def test_sdist_finds_no_room(tmp_path):
    """Giving the file, as where there is no index, would not help."""
    python = program(tmp_path / "python", 'echo "OSError: [Errno 28] No space left on device" >&2; exit 2')
    with pytest.raises(ToolError, match="no space left") as raised:
        fetch_sdist(LOCKED, "ab" * 32, tmp_path / "cache", python=str(python))
    assert "TMPDIR" in raised.value.fix
    assert list((tmp_path / "cache").iterdir()) == []


def test_environment_without_pip(tmp_path, monkeypatch):
    """dsrun's own environment: for another one, its pip will do."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    python = str(tmp_path / "env/bin/python")
    monkeypatch.setattr(sys, "executable", python)
    with pytest.raises(MissingError, match="pip is not installed"):
        fetch_sdist(LOCKED, "ab" * 32, tmp_path / "cache", python=python)


# --- files -----------------------------------------------------------------------------------------------


def test_sdist_file_named_as_release_must_match_lock(tmp_path):
    """A file that bears the name of a locked release must have its hash."""
    path = archive(tmp_path / f"deepspeed-{LOCKED}.tar.gz", content(LOCKED))
    with pytest.raises(UsageError, match=rf"is not DeepSpeed {LOCKED}: its SHA-256 is {sha256(path)}"):
        identify_source(str(path))


def test_sdist_file_of_other_name_is_patched(tmp_path):
    path = archive(tmp_path / "mine.tar.gz", content(LOCKED))
    source = resolve_source(str(path), tmp_path / "into", cache=tmp_path / "cache")
    assert (source.version, source.label) == (LOCKED, f"patched.{sha256(path)[:8]}")
    assert source.digest == f"sha256:{sha256(path)}"
    assert path.exists()


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def device(name: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type = tarfile.CHRTYPE
    return member


GOOD = content("1.0.0")
HOSTILE = {
    "traversal": ({**GOOD, "../evil": b"x"}, ()),
    "traversal inside": ({**GOOD, "deepspeed-1.0.0/../../evil": b"x"}, ()),
    "absolute": ({**GOOD, "/tmp/dsrun-evil": b"x"}, ()),
    "link out": (GOOD, (link("deepspeed-1.0.0/a", "../../evil"),)),
    "absolute link": (GOOD, (link("deepspeed-1.0.0/a", "/etc/passwd"),)),
    "hard link out": (GOOD, (link("deepspeed-1.0.0/a", "../../etc/passwd", tarfile.LNKTYPE),)),
    "device": (GOOD, (device("deepspeed-1.0.0/a"),)),
    "two folders": ({**GOOD, "other/setup.py": b""}, ()),
    "no version": ({name: data for name, data in GOOD.items() if "version" not in name}, ()),
    "no setup.py": ({name: data for name, data in GOOD.items() if "setup" not in name}, ()),
    "empty": ({}, ()),
}


@pytest.fixture(params=["filters", "no filters"])
def unpacking(request, monkeypatch):
    """With tarfile as it is, and as before Python 3.11.4, without filters."""
    if request.param == "no filters":
        monkeypatch.delattr(tarfile, "data_filter", raising=False)


@pytest.mark.usefixtures("unpacking")
@pytest.mark.filterwarnings("ignore:Python 3.14 will:DeprecationWarning")
def test_sdist_is_unpacked(tmp_path):
    path = archive(tmp_path / "sdist.tar.gz", GOOD)
    resolve_source(str(path), tmp_path / "into", cache=tmp_path / "cache")
    assert (tmp_path / "into/setup.py").is_file()


@pytest.mark.usefixtures("unpacking")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_sdist_leaves_nothing(tmp_path, name):
    files, more = HOSTILE[name]
    path = archive(tmp_path / "x/sdist.tar.gz", files, *more)
    with pytest.raises(UsageError) as raised:
        resolve_source(str(path), tmp_path / "into", cache=tmp_path / "cache")
    assert "\n" not in str(raised.value)
    left = [str(entry.relative_to(tmp_path)) for entry in sorted(tmp_path.rglob("*"))]
    assert left == ["x", "x/sdist.tar.gz"]
    assert not Path("/tmp/dsrun-evil").exists()


def test_truncated_and_foreign_sdists(tmp_path):
    whole = archive(tmp_path / "whole.tar.gz", {**GOOD, "deepspeed-1.0.0/noise": os.urandom(100_000)}).read_bytes()
    for name, data in {
        "cut": whole[:50_000],
        "text": b"not an archive",
        "nothing": b"",
        "plain": whole[:9],
    }.items():
        path = tmp_path / f"{name}.tar.gz"
        path.write_bytes(data)
        with pytest.raises(UsageError, match=r"cannot be used|contains no DeepSpeed"):
            resolve_source(str(path), tmp_path / "into", cache=tmp_path / "cache")


def test_sdist_without_valid_version(tmp_path):
    path = archive(tmp_path / "odd.tar.gz", {**GOOD, "deepspeed-1.0.0/version.txt": b"abc"})
    with pytest.raises(UsageError, match=r"odd\.tar\.gz: version\.txt says 'abc', which is not a release version"):
        identify_source(str(path))


def test_source_neither_version_nor_path(tmp_path):
    with pytest.raises(UsageError, match="neither a version nor a file or folder"):
        identify_source(str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="not a source tree of DeepSpeed: it has no setup"):
        identify_source(str(tmp_path))


def test_git_source_urls():
    remote = parse_remote("git+ssh://git@host/owner/name.git@feature/x")
    assert (remote.url, remote.ref) == ("ssh://git@host/owner/name.git", "feature/x")
    assert parse_remote("git+https://host/o/n").ref == "HEAD"
    for text in (
        "git+ext::sh -c x",
        "git+https://host",
        "git+/tmp/x",
        "git+https://host/o/n@--upload-pack=x",
    ):
        with pytest.raises(UsageError):
            parse_remote(text)


@pytest.mark.parametrize(
    "text",
    ["git+", "#sha256=", "1.2#sha256=zz", "~nobody/x", "\x00", "a" * 5000, "git+x\ny", "git+https://[::1"],
)
def test_malformed_source_is_one_line_error(text):
    with pytest.raises(UsageError) as raised:
        identify_source(text)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "  ", None])
def test_empty_source_is_the_default(text):
    assert identify_source(text).version == LOCKED
