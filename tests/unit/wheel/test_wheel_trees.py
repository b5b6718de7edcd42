"""Which DeepSpeed is built, from folders and git: what counts as a change, and what is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from dsrun.errors import ToolError, UsageError
from dsrun.wheel.checkout import tree_digest, tree_files
from dsrun.wheel.select_source import identify_source, resolve_source
from tests.deepspeed_trees import WHEN, content

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


def test_source_tree_is_labelled_by_content_digest(tree, tmp_path):
    """A source tree is called "patched", with a digest of its content."""
    identity = identify_source(str(tree))
    short = identity.digest.removeprefix("sha256:")[:8]
    assert (identity.kind, identity.version, identity.label) == ("tree", "0.19.9", f"patched.{short}")
    source = resolve_source(str(tree), tmp_path / "into", cache=tmp_path / "cache")
    assert source.digest == identity.digest
    assert (tmp_path / "into" / "deepspeed/ops/op_builder").readlink() == Path("../../op_builder")
    assert os.access(tmp_path / "into" / "bin/ds", os.X_OK)
    (tmp_path / "into" / "setup.py").write_text("changed by the build")
    assert identify_source(str(tree)) == identity


@pytest.mark.parametrize("text", [b"abc", b"", b"0.19.9+mine", b"../../x", b"\xff\xfe"])
def test_invalid_tree_version_is_refused(tree, text):
    """With a local part of its own the version would have two."""
    (tree / "version.txt").write_bytes(text)
    with pytest.raises(UsageError, match=r"version\.txt says .*, which is not a release version"):
        identify_source(str(tree))
    (tree / "version.txt").unlink()
    (tree / "version.txt").mkdir()
    with pytest.raises(UsageError, match=r"version\.txt cannot be read: Is a directory"):
        identify_source(str(tree))


def test_tree_version_is_normalised_as_by_setuptools(tree):
    (tree / "version.txt").write_text("0.19.9-RC1\n")
    assert identify_source(str(tree)).version == "0.19.9rc1"


def test_tree_digest_ignores_build_leftovers(tree, tmp_path):
    before = identify_source(str(tree))
    for name in ("build/x.o", "deepspeed/__pycache__/a.pyc", "dist/d.whl", "deepspeed.egg-info/PKG-INFO"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("left over")
    (tree / "deepspeed/ops/cpu_adam_op.so").write_text("built in place")
    (tree / "build.txt").write_text("+local")
    (tree / "deepspeed/git_version_info_installed.py").write_text("version='1'")
    assert identify_source(str(tree)) == before
    resolve_source(str(tree), tmp_path / "into", cache=tmp_path / "cache")
    left = {path.relative_to(tmp_path / "into").as_posix() for path in (tmp_path / "into").rglob("*")}
    assert not left & {"build", "dist", "build.txt", "deepspeed/ops/cpu_adam_op.so", "deepspeed.egg-info"}


def test_tree_digest_changes_with_every_edit(tree):
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


def test_symlink_out_of_tree_is_refused(tree, tmp_path):
    (tmp_path / "secret").write_text("x")
    (tree / "csrc").symlink_to(tmp_path / "secret")
    with pytest.raises(UsageError, match="leads out of the source tree"):
        resolve_source(str(tree), tmp_path / "into", cache=tmp_path / "cache")
    assert not (tmp_path / "into").exists()


def test_fifo_in_tree_is_refused(tree):
    os.mkfifo(tree / "pipe")
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        identify_source(str(tree))


def test_existing_target_is_not_touched(tree, tmp_path):
    (tmp_path / "into").mkdir()
    with pytest.raises(UsageError, match="exists already"):
        resolve_source(str(tree), tmp_path / "into", cache=tmp_path / "cache")
    assert (tmp_path / "into").is_dir()


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
    done = subprocess.run(["git", *map(str, words)], cwd=cwd, env=environ, capture_output=True, text=True, check=True)
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
def test_checkout_is_identified_by_its_files(repository, tmp_path):
    before = identify_source(str(repository))
    (repository / "ignored.o").write_text("")
    git("commit", "--quiet", "--allow-empty", "-m", "two", cwd=repository)
    source = resolve_source(str(repository), tmp_path / "into", cache=tmp_path / "cache")
    assert source == before
    assert not (tmp_path / "into" / ".git").exists()
    assert not (tmp_path / "into" / "ignored.o").exists()
    assert (tmp_path / "into" / "deepspeed/ops/op_builder").is_symlink()


@needs_git
@pytest.mark.parametrize("change", ["edit", "new file", "deletion"])
def test_changed_checkout_is_patched(repository, tmp_path, change):
    if change == "edit":
        (repository / "setup.py").write_text("# mine\n")
    elif change == "new file":
        (repository / "new.cpp").write_text("")
    else:
        (repository / "bin/ds").unlink()
    source = resolve_source(str(repository), tmp_path / "into", cache=tmp_path / "cache")
    assert source.kind == "tree"
    assert source.label == f"patched.{source.digest.removeprefix('sha256:')[:8]}"
    assert (tmp_path / "into" / "new.cpp").exists() == (change == "new file")
    assert (tmp_path / "into" / "bin/ds").exists() == (change != "deletion")


@needs_git
@pytest.mark.parametrize("ref", ["@v0.19.9", "@master", "", "@COMMIT"])
def test_git_source_from_remote(repository, tmp_path, ref):
    commit = git("rev-parse", "HEAD", cwd=repository)
    bare = tmp_path / "bare.git"
    git("clone", "--quiet", "--bare", repository, bare, cwd=tmp_path)
    text = f"git+file://{bare}{ref.replace('COMMIT', commit)}"
    identity = identify_source(text)
    assert (identity.digest, identity.label) == (f"git:{commit}", f"git.{commit[:8]}")
    source = resolve_source(text, tmp_path / "into", cache=tmp_path / "cache")
    assert (source.version, source.digest) == ("0.19.9", f"git:{commit}")
    assert not (tmp_path / "into" / ".git").exists()
    assert (tmp_path / "into" / "setup.py").exists()


@needs_git
def test_git_ref_or_commit_not_found(repository, tmp_path):
    with pytest.raises(UsageError, match="no branch or tag 'v1'"):
        identify_source(f"git+file://{repository}@v1")
    with pytest.raises(ToolError, match=r"has no commit|cannot fetch"):
        resolve_source(f"git+file://{repository}@{'ab' * 20}", tmp_path / "into", cache=tmp_path / "cache")
    assert not (tmp_path / "into").exists()
    with pytest.raises(ToolError, match=r"cannot reach .*: fatal: "):
        identify_source(f"git+file://{tmp_path}/nowhere.git@v1")


@needs_git
def test_git_source_with_symlink_out_is_refused(repository, tmp_path):
    (repository / "csrc").symlink_to("../../../../etc/passwd")
    git("add", ".", cwd=repository)
    git("commit", "--quiet", "-m", "two", cwd=repository)
    with pytest.raises(UsageError, match="leads out of the source tree"):
        resolve_source(f"git+file://{repository}", tmp_path / "into", cache=tmp_path / "cache")
    assert not (tmp_path / "into").exists()
