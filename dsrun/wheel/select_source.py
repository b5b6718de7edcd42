"""Which DeepSpeed is built: a released version, a file, a folder or a commit; and its files in a folder of ours."""

from __future__ import annotations

import difflib
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from dsrun.errors import UsageError
from dsrun.wheel.cache import sha256_of
from dsrun.wheel.checkout import (
    check_links,
    check_out,
    copy_tree,
    parse_remote,
    read_checkout,
    remote_commit,
    tree_digest,
    tree_files,
)
from dsrun.wheel.sdist import fetch_sdist, read_lock, read_version, release_version, unpack

Kind = Literal["sdist", "tree", "git"]
_VERSION = re.compile(r"(?:deepspeed)?\s*={0,3}\s*v?(\d+(?:\.\d+)+[\w.]*)(?:#sha256=([0-9a-fA-F]{64}))?")
_SHORT = 8


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Which source a build takes, known before anything is fetched.

    `digest` names its content: "sha256:…" of the sdist or of the tree's files, "git:…" with the commit. `label` is
    "" for an unchanged release, else the part of the wheel's local version that says what it is: "git.1a2b3c4d",
    "patched.1a2b3c4d". `version` is "" for a repository elsewhere, until it is fetched.
    """

    kind: Kind
    version: str
    digest: str
    label: str


@dataclass(frozen=True, kw_only=True)
class Source(Identity):
    """The source in a folder of ours that may be written to."""

    folder: Path


def identify_source(text: str | None) -> Identity:
    """Which source `--deepspeed text` means.

    A version ("0.19.8", or with its hash "0.19.9#sha256=HEX"), a .tar.gz file, a folder, "git+URL@REF", or None for
    the lock's default. Asks no server unless `text` is a repository with a branch or tag. Raises UsageError.
    """
    if text is None or not text.strip():
        lock = read_lock()
        return _released(lock.default, lock.sdists[lock.default])
    text = text.strip()
    if text.startswith("git+"):
        commit = remote_commit(parse_remote(text))
        return Identity(kind="git", version="", digest=f"git:{commit}", label=f"git.{commit[:_SHORT]}")
    version = _VERSION.fullmatch(text)
    path = _existing(text)
    if path is None and version:
        return _released(version[1], _hash_of(version[1], version[2]))
    if path is not None:
        return _folder(path) if path.is_dir() else _file(path)
    raise UsageError(
        f"--deepspeed {text!r} is neither a version nor a file or folder that exists",
        fix=f"a version ({_versions()}), a .tar.gz, a folder with setup.py, or git+URL@TAG",
    )


def _existing(text: str) -> Path | None:
    """The file or folder that `text` names; None without, and for what no file system takes as a name."""
    try:
        path = Path(text).expanduser()
        return path if text and (path.is_dir() or path.is_file()) else None
    except (OSError, ValueError, RuntimeError):
        return None


def resolve_source(text: str | None, into: Path, *, cache: Path) -> Source:
    """Put the source that `text` means into `into`/deepspeed, where it may be changed.

    Fetched sdists are kept in `cache` (a folder; their hash is compared at each use). Raises UsageError, ToolError or
    MissingError; `into` then holds nothing new.
    """
    wanted = identify_source(text)
    target = into / "deepspeed"
    if target.exists():
        raise UsageError(f"{target} exists already", fix="give an empty folder")
    into.mkdir(parents=True, exist_ok=True)
    try:
        if wanted.kind == "sdist":
            return _from_sdist(wanted, text, target, cache)
        if text is not None and text.strip().startswith("git+"):
            return _from_remote(wanted, text.strip(), target)
        return _from_folder(wanted, Path(str(text).strip()).expanduser(), target)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _released(version: str, sha256: str) -> Identity:
    return Identity(kind="sdist", version=version, digest=f"sha256:{sha256}", label="")


def _hash_of(version: str, given: str | None) -> str:
    """The hash to hold the sdist of `version` to: the lock's, else the one that was given."""
    locked = read_lock().sdists.get(version)
    if locked and given and given.lower() != locked:
        raise UsageError(f"the lock's SHA-256 of DeepSpeed {version} is {locked}, not {given.lower()}")
    if locked or given:
        return locked or str(given).lower()
    near = difflib.get_close_matches(version, read_lock().sdists, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UsageError(
        f"the lock of dsrun has no hash for DeepSpeed {version} (it has {_versions()})",
        fix=f"{hint}name the hash you trust: --deepspeed '{version}#sha256=HEX', or give the file",
    )


def _versions() -> str:
    return ", ".join(read_lock().sdists)


def _file(path: Path) -> Identity:
    """An sdist on disk. One that calls itself a version of the lock must be that version, byte for byte."""
    sha256 = sha256_of(path)
    version = read_version(path)
    locked = read_lock().sdists.get(version)
    if locked == sha256:
        return _released(version, sha256)
    named = re.fullmatch(r"deepspeed-(.+)\.tar\.gz", path.name)
    if locked and named and named[1] == version:
        raise UsageError(
            f"{path} is not DeepSpeed {version}: its SHA-256 is {sha256}, and the lock has {locked}",
            fix="fetch it again; a patched one must have a name of its own, such as deepspeed-patched.tar.gz",
        )
    return Identity(kind="sdist", version=version, digest=f"sha256:{sha256}", label=f"patched.{sha256[:_SHORT]}")


def _folder(path: Path) -> Identity:
    version = _tree_version(path)
    checkout = read_checkout(path)
    if checkout and not checkout.dirty:
        digest = f"git:{checkout.commit}"
        return Identity(kind="git", version=version, digest=digest, label=f"git.{checkout.commit[:_SHORT]}")
    digest = tree_digest(path, checkout.files if checkout else tree_files(path))
    label = f"patched.{digest.removeprefix('sha256:')[:_SHORT]}"
    return Identity(kind="tree", version=version, digest=digest, label=label)


def _tree_version(path: Path) -> str:
    """What version.txt beside setup.py says. Raises UsageError for a folder that is not DeepSpeed's source."""
    lacking = [name for name in ("setup.py", "version.txt", "op_builder") if not (path / name).exists()]
    if lacking:
        raise UsageError(
            f"{path} is not a source tree of DeepSpeed: it has no {lacking[0]}",
            fix="give the folder that holds setup.py, version.txt and op_builder/",
        )
    try:
        text = (path / "version.txt").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(
            f"{path / 'version.txt'} cannot be read: {error.strerror or error}", fix="give another source tree"
        ) from None
    return release_version(text, path / "version.txt")


def _from_sdist(wanted: Identity, text: str | None, target: Path, cache: Path) -> Source:
    sha256 = wanted.digest.removeprefix("sha256:")
    given = _existing((text or "").strip())
    archive = given or fetch_sdist(wanted.version, sha256, cache)
    if sha256_of(archive) != sha256:
        raise UsageError(f"{archive} changed while it was read", fix="try again when nobody writes to it")
    unpack(archive, target)
    found = _tree_version(target)
    if found != wanted.version:
        raise UsageError(f"the sdist of DeepSpeed {wanted.version} says that it is {found}")
    return _source(wanted, target)


def _from_remote(wanted: Identity, text: str, target: Path) -> Source:
    check_out(parse_remote(text), wanted.digest.removeprefix("git:"), target)
    shutil.rmtree(target / ".git")
    check_links(target, tree_files(target))
    return _source(wanted, target, version=_tree_version(target))


def _from_folder(wanted: Identity, path: Path, target: Path) -> Source:
    checkout = read_checkout(path)
    files = list(checkout.files if checkout else tree_files(path))
    copy_tree(path, files, target)
    changed = wanted.kind == "tree" and tree_digest(target, files) != wanted.digest
    if changed or (checkout and wanted.kind == "git" and wanted.digest != f"git:{checkout.commit}"):
        raise UsageError(f"{path} changed while it was copied", fix="try again when nobody writes to it")
    return _source(wanted, target)


def _source(wanted: Identity, folder: Path, version: str | None = None) -> Source:
    known = replace(wanted, version=version or wanted.version)
    return Source(**vars(known), folder=folder)
