"""Which DeepSpeed is built: releases held to the lock by the real pip, files, folders, git; and hostile ones."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from dsrun.errors import MissingError, ToolError, UsageError
from dsrun.wheel.checkout import parse_remote
from dsrun.wheel.sdist import fetch_sdist, read_lock
from dsrun.wheel.source import identify_source, resolve_source
from dsrun.wheel.tree import tree_digest, tree_files

LOCKED = read_lock().default
WHEN = 1_700_000_000
# Tells whoever runs it: nothing of an sdist may run before its hash was compared.
SETUP = """
import os, pathlib
pathlib.Path(os.environ["MARK"]).write_text("it ran " + os.environ.get("DS_BUILD_OPS", "unset"))
from setuptools import setup
setup(name="deepspeed", version={version!r})
"""


def content(version: str) -> dict[str, bytes]:
    top = f"deepspeed-{version}"
    return {
        f"{top}/setup.py": SETUP.format(version=version).encode(),
        f"{top}/version.txt": f"{version}\n".encode(),
        f"{top}/PKG-INFO": f"Metadata-Version: 2.1\nName: deepspeed\nVersion: {version}\n".encode(),
        f"{top}/op_builder/__init__.py": b"",
    }


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


def test_the_default_is_known_without_fetching():
    identity = identify_source(None)
    assert (identity.kind, identity.version, identity.label) == ("sdist", LOCKED, "")
    assert identity.digest == f"sha256:{read_lock().sdists[LOCKED]}"
    for text in (LOCKED, f"=={LOCKED}", f"deepspeed=={LOCKED}", f"v{LOCKED}", f" {LOCKED} "):
        assert identify_source(text) == identity


def test_the_lock_holds_hashes():
    lock = read_lock()
    assert lock.default in lock.sdists
    assert all(len(value) == 64 and int(value, 16) for value in lock.sdists.values())


def test_a_version_without_a_hash_is_refused():
    with pytest.raises(
        UsageError, match=r"no hash for DeepSpeed 0\.19\.88.*did you mean 0\.19\.8.*#sha256=HEX"
    ):
        identify_source("0.19.88")
    given = identify_source("0.20.0#sha256=" + "ab" * 32)
    assert (given.version, given.digest) == ("0.20.0", "sha256:" + "ab" * 32)
    with pytest.raises(UsageError, match="the lock's SHA-256"):
        identify_source(f"{LOCKED}#sha256=" + "ab" * 32)


def test_a_file_with_the_wrong_hash_is_never_run(index, tmp_path):
    archive(index / f"deepspeed-{LOCKED}.tar.gz", content(LOCKED))
    with pytest.raises(ToolError, match=r"nothing of it was run") as raised:
        resolve_source(LOCKED, tmp_path / "into", cache=tmp_path / "cache")
    assert read_lock().sdists[LOCKED] in raised.value.message
    assert sha256(index / f"deepspeed-{LOCKED}.tar.gz") in raised.value.message
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "mark").exists()
    assert list((tmp_path / "into").iterdir()) == []
    assert not (tmp_path / "cache").exists()


def test_a_release_is_fetched_verified_and_kept(index, tmp_path):
    path = archive(index / "deepspeed-9.1.0.tar.gz", content("9.1.0"))
    text = f"9.1.0#sha256={sha256(path)}"
    source = resolve_source(text, tmp_path / "into", cache=tmp_path / "cache")
    assert (source.kind, source.version, source.label, source.epoch) == ("sdist", "9.1.0", "", WHEN)
    assert source.folder == tmp_path / "into/deepspeed"
    assert (source.folder / "version.txt").read_text() == "9.1.0\n"
    assert [entry.name for entry in (tmp_path / "into").iterdir()] == ["deepspeed"]
    assert (tmp_path / "mark").read_text() == "it ran ", (
        "a user's DS_BUILD_OPS must not reach the metadata run"
    )
    path.unlink()
    again = resolve_source(text, tmp_path / "again", cache=tmp_path / "cache")
    assert again.digest == source.digest
    (tmp_path / "cache/deepspeed-9.1.0.tar.gz").write_bytes(b"damaged")
    with pytest.raises(ToolError, match="could not fetch"):
        resolve_source(text, tmp_path / "third", cache=tmp_path / "cache")


def test_without_a_cache_nothing_is_kept(index, tmp_path):
    path = archive(index / "deepspeed-9.1.0.tar.gz", content("9.1.0"))
    resolve_source(f"9.1.0#sha256={sha256(path)}", tmp_path / "into")
    assert [entry.name for entry in (tmp_path / "into").iterdir()] == ["deepspeed"]


def test_pip_finds_nothing(index, tmp_path):
    with pytest.raises(ToolError, match=rf"could not fetch the sources of DeepSpeed {LOCKED}") as raised:
        resolve_source(LOCKED, tmp_path / "into")
    assert f"deepspeed-{LOCKED}.tar.gz" in raised.value.fix
    assert list((tmp_path / "into").iterdir()) == []


def test_an_environment_without_pip(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    with pytest.raises(MissingError, match="pip is not installed"):
        fetch_sdist(LOCKED, "ab" * 32, tmp_path / "into", python=str(tmp_path / "env/bin/python"))


# --- files -----------------------------------------------------------------------------------------------


def test_a_file_that_calls_itself_a_locked_release_must_be_it(tmp_path):
    path = archive(tmp_path / f"deepspeed-{LOCKED}.tar.gz", content(LOCKED))
    with pytest.raises(UsageError, match=rf"is not DeepSpeed {LOCKED}: its SHA-256 is {sha256(path)}"):
        identify_source(str(path))


def test_a_file_of_another_name_is_a_patched_one(tmp_path):
    path = archive(tmp_path / "mine.tar.gz", content(LOCKED))
    source = resolve_source(str(path), tmp_path / "into")
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
    "hard link": (GOOD, (link("deepspeed-1.0.0/a", "deepspeed-1.0.0/setup.py", tarfile.LNKTYPE),)),
    "device": (GOOD, (device("deepspeed-1.0.0/a"),)),
    "two folders": ({**GOOD, "other/setup.py": b""}, ()),
    "no version": ({name: data for name, data in GOOD.items() if "version" not in name}, ()),
    "no setup.py": ({name: data for name, data in GOOD.items() if "setup" not in name}, ()),
    "empty": ({}, ()),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_leave_nothing(tmp_path, name):
    files, more = HOSTILE[name]
    path = archive(tmp_path / "x/sdist.tar.gz", files, *more)
    with pytest.raises(UsageError) as raised:
        resolve_source(str(path), tmp_path / "into")
    assert "\n" not in str(raised.value)
    left = [str(entry.relative_to(tmp_path)) for entry in sorted(tmp_path.rglob("*"))]
    assert left in (["into", "x", "x/sdist.tar.gz"], ["x", "x/sdist.tar.gz"])
    assert not Path("/tmp/dsrun-evil").exists()


def test_a_bomb_is_not_unpacked(tmp_path):
    """One megabyte that would become a gigabyte; a header that only claims a terabyte; a header of a gigabyte."""
    member = tarfile.TarInfo("deepspeed-1.0.0/zeros")
    member.size = 1 << 30
    big = tmp_path / "big.tar.gz"
    with gzip.open(big, "wb", compresslevel=1) as file:
        file.write(member.tobuf())
        for _ in range(600):
            file.write(bytes(1 << 20))
    claim = tmp_path / "claim.tar.gz"
    member.size = 1 << 40
    with gzip.open(claim, "wb") as file:
        file.write(member.tobuf(format=tarfile.GNU_FORMAT))
    header = tmp_path / "header.tar.gz"
    member.size, member.type = 1 << 30, tarfile.XHDTYPE
    with gzip.open(header, "wb") as file:
        file.write(member.tobuf())
        file.write(bytes(1 << 20))
    for path in (big, claim, header):
        with pytest.raises(UsageError, match="more than 512 MiB"):
            identify_source(str(path))


def test_truncated_and_foreign_files(tmp_path):
    whole = archive(
        tmp_path / "whole.tar.gz", {**GOOD, "deepspeed-1.0.0/noise": os.urandom(100_000)}
    ).read_bytes()
    for name, data in {
        "cut": whole[:50_000],
        "text": b"not an archive",
        "nothing": b"",
        "plain": whole[:9],
    }.items():
        path = tmp_path / f"{name}.tar.gz"
        path.write_bytes(data)
        with pytest.raises(UsageError, match=r"cannot be used|holds no DeepSpeed"):
            resolve_source(str(path), tmp_path / "into")


def test_what_is_nothing_at_all(tmp_path):
    with pytest.raises(UsageError, match="neither a version nor a file or folder"):
        identify_source(str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="not a source tree of DeepSpeed: it has no setup"):
        identify_source(str(tmp_path))


# --- folders ---------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "my deepspeed"
    for name, data in content("0.19.9").items():
        path = root / Path(name).relative_to("deepspeed-0.19.9")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (root / "deepspeed/ops").mkdir(parents=True)
    (root / "deepspeed/ops/op_builder").symlink_to("../../op_builder")
    (root / "bin").mkdir()
    (root / "bin/ds").write_text("#!/bin/sh\n")
    (root / "bin/ds").chmod(0o755)
    return root


def test_a_folder_is_named_as_patched_by_its_content(tree, tmp_path):
    identity = identify_source(str(tree))
    short = identity.digest.removeprefix("sha256:")[:8]
    assert (identity.kind, identity.version, identity.label) == ("tree", "0.19.9", f"patched.{short}")
    source = resolve_source(str(tree), tmp_path / "into")
    assert source.digest == identity.digest
    assert (source.folder / "deepspeed/ops/op_builder").readlink() == Path("../../op_builder")
    assert os.access(source.folder / "bin/ds", os.X_OK)
    assert source.epoch == 315532800
    (source.folder / "setup.py").write_text("changed by the build")
    assert identify_source(str(tree)) == identity


def test_what_builds_leave_behind_does_not_count(tree, tmp_path):
    before = identify_source(str(tree))
    for name in ("build/x.o", "deepspeed/__pycache__/a.pyc", "dist/d.whl", "deepspeed.egg-info/PKG-INFO"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("left over")
    (tree / "deepspeed/ops/cpu_adam_op.so").write_text("built in place")
    (tree / "build.txt").write_text("+local")
    (tree / "deepspeed/git_version_info_installed.py").write_text("version='1'")
    assert identify_source(str(tree)) == before
    source = resolve_source(str(tree), tmp_path / "into")
    left = {path.relative_to(source.folder).as_posix() for path in source.folder.rglob("*")}
    assert not left & {"build", "dist", "build.txt", "deepspeed/ops/cpu_adam_op.so", "deepspeed.egg-info"}


def test_every_kind_of_change_counts(tree):
    digests = {identify_source(str(tree)).digest}
    (tree / "bin/ds").chmod(0o644)
    digests.add(identify_source(str(tree)).digest)
    (tree / "new.cpp").write_text("")
    digests.add(identify_source(str(tree)).digest)
    (tree / "new.cpp").rename(tree / "other.cpp")
    digests.add(identify_source(str(tree)).digest)
    (tree / "deepspeed/ops/op_builder").unlink()
    (tree / "deepspeed/ops/op_builder").symlink_to("../op_builder")
    digests.add(identify_source(str(tree)).digest)
    assert len(digests) == 5
    os.utime(tree / "setup.py", (1, 1))
    assert identify_source(str(tree)).digest in digests
    assert tree_digest(tree, tree_files(tree)) in digests


def test_a_link_out_of_the_tree_is_refused(tree, tmp_path):
    (tmp_path / "secret").write_text("x")
    (tree / "csrc").symlink_to(tmp_path / "secret")
    with pytest.raises(UsageError, match="leads out of the source tree"):
        resolve_source(str(tree), tmp_path / "into")
    assert list((tmp_path / "into").iterdir()) == []


def test_a_pipe_is_refused(tree):
    os.mkfifo(tree / "pipe")
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        identify_source(str(tree))


def test_an_existing_target_is_not_touched(tree, tmp_path):
    (tmp_path / "into/deepspeed").mkdir(parents=True)
    with pytest.raises(UsageError, match="exists already"):
        resolve_source(str(tree), tmp_path / "into")
    assert (tmp_path / "into/deepspeed").is_dir()


# --- git -------------------------------------------------------------------------------------------------

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(*words: object, cwd: Path) -> str:
    who = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    when = {"GIT_AUTHOR_DATE": f"{WHEN} +0000", "GIT_COMMITTER_DATE": f"{WHEN} +0000"}
    environ = {**os.environ, **who, **when, "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(
        ["git", *map(str, words)], cwd=cwd, env=environ, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tree):
    git("init", "--quiet", "--initial-branch=master", cwd=tree)
    (tree / ".gitignore").write_text("*.o\n")
    git("add", ".", cwd=tree)
    git("commit", "--quiet", "-m", "one", cwd=tree)
    git("tag", "-a", "-m", "annotated", "v0.19.9", cwd=tree)
    return tree


@needs_git
def test_a_clean_checkout_is_its_commit(repository, tmp_path):
    commit = git("rev-parse", "HEAD", cwd=repository)
    (repository / "ignored.o").write_text("")
    source = resolve_source(str(repository), tmp_path / "into")
    assert (source.kind, source.version, source.label) == ("git", "0.19.9", f"git.{commit[:8]}")
    assert (source.digest, source.epoch) == (f"git:{commit}", WHEN)
    assert not (source.folder / ".git").exists()
    assert not (source.folder / "ignored.o").exists()
    assert (source.folder / "deepspeed/ops/op_builder").is_symlink()


@needs_git
@pytest.mark.parametrize("change", ["edit", "new file", "deletion"])
def test_a_changed_checkout_is_patched(repository, tmp_path, change):
    if change == "edit":
        (repository / "setup.py").write_text("# mine\n")
    elif change == "new file":
        (repository / "new.cpp").write_text("")
    else:
        (repository / "bin/ds").unlink()
    source = resolve_source(str(repository), tmp_path / "into")
    assert source.kind == "tree"
    assert source.label == f"patched.{source.digest.removeprefix('sha256:')[:8]}"
    assert (source.folder / "new.cpp").exists() == (change == "new file")
    assert (source.folder / "bin/ds").exists() == (change != "deletion")


@needs_git
@pytest.mark.parametrize("ref", ["@v0.19.9", "@master", "", "@COMMIT"])
def test_a_repository_elsewhere(repository, tmp_path, ref):
    commit = git("rev-parse", "HEAD", cwd=repository)
    bare = tmp_path / "bare.git"
    git("clone", "--quiet", "--bare", repository, bare, cwd=tmp_path)
    text = f"git+file://{bare}{ref.replace('COMMIT', commit)}"
    identity = identify_source(text)
    assert (identity.digest, identity.label) == (f"git:{commit}", f"git.{commit[:8]}")
    source = resolve_source(text, tmp_path / "into")
    assert (source.version, source.digest, source.epoch) == ("0.19.9", f"git:{commit}", WHEN)
    assert not (source.folder / ".git").exists()
    assert (source.folder / "setup.py").exists()


@needs_git
def test_what_the_repository_does_not_have(repository, tmp_path):
    with pytest.raises(UsageError, match="no branch or tag 'v1'"):
        identify_source(f"git+file://{repository}@v1")
    with pytest.raises(ToolError, match=r"has no commit|cannot fetch"):
        resolve_source(f"git+file://{repository}@{'ab' * 20}", tmp_path / "into")
    assert list((tmp_path / "into").iterdir()) == []
    with pytest.raises(ToolError, match="cannot reach"):
        identify_source(f"git+file://{tmp_path}/nowhere.git@v1")


@needs_git
def test_a_repository_with_a_link_out_is_refused(repository, tmp_path):
    (repository / "csrc").symlink_to("../../../../etc/passwd")
    git("add", ".", cwd=repository)
    git("commit", "--quiet", "-m", "two", cwd=repository)
    with pytest.raises(UsageError, match="leads out of the source tree"):
        resolve_source(f"git+file://{repository}", tmp_path / "into")
    assert list((tmp_path / "into").iterdir()) == []


def test_addresses():
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
    "text", ["git+", "#sha256=", "1.2#sha256=zz", "~nobody/x", "\x00", "a" * 5000, "git+x\ny"]
)
def test_nonsense_is_one_line(text):
    with pytest.raises(UsageError) as raised:
        identify_source(text)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "  ", None])
def test_nothing_is_the_default(text):
    assert identify_source(text).version == LOCKED
