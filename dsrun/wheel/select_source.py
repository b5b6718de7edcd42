"""Which DeepSpeed is built: a released version, a file, a folder or a commit; and fetching it into a folder."""

import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from dsrun.errors import UsageError, nearest
from dsrun.refusals import Refusals
from dsrun.system.files import sha256_of
from dsrun.wheel.checkout import check_links, check_out, copy_tree, parse_remote, remote_commit, tree_digest, tree_files
from dsrun.wheel.sdist import fetch_sdist, read_lock, read_version, release_version, unpack

SourceKind = Literal["sdist", "tree", "git"]
_VERSION = re.compile(r"(?:deepspeed)?\s*={0,3}\s*v?(\d+(?:\.\d+)+[\w.]*)(?:#sha256=([0-9a-fA-F]{64}))?")
_SHORT = 8
_TEXTS = Refusals(__file__, "refusals.toml")


@dataclass(frozen=True, kw_only=True)
class SourceIdentity:
    """Which source a build takes, known before anything is fetched.

    `digest` names its content: "sha256:…" of the sdist or of the tree's files, "git:…" with the commit. `label` is
    "" for an unchanged release, else the part of the wheel's local version that says what it is: "git.1a2b3c4d",
    "patched.1a2b3c4d". `version` is "" for a repository elsewhere, until it is fetched.
    """

    kind: SourceKind
    version: str
    digest: str
    label: str


def identify_source(text: str | None) -> SourceIdentity:
    """Which source `--deepspeed text` means.

    A version ("0.19.8", or with its hash "0.19.9#sha256=HEX"), a .tar.gz file, a folder, "git+URL@REF", or None for
    the lock's default. Asks no server unless `text` is a repository with a branch or tag. Raises UsageError.
    """
    if text is None or not text.strip():
        lock = read_lock()
        return _released(lock["default"], lock["sdist"][lock["default"]])
    text = text.strip()
    if text.startswith("git+"):
        commit = remote_commit(parse_remote(text))
        return SourceIdentity(kind="git", version="", digest=f"git:{commit}", label=f"git.{commit[:_SHORT]}")
    version = _VERSION.fullmatch(text)
    path = _existing(text)
    if path is None and version:
        return _released(version[1], _hash_of(version[1], version[2]))
    if path is not None:
        return _folder(path) if path.is_dir() else _file(path)
    raise _TEXTS.error("source.unknown", text=text, versions=_versions())


def _existing(text: str) -> Path | None:
    """The file or folder that `text` names; None when it does not exist or is not a valid name."""
    try:
        path = Path(text).expanduser()
        return path if text and (path.is_dir() or path.is_file()) else None
    except (OSError, ValueError, RuntimeError):
        return None


def resolve_source(text: str | None, into: Path, *, cache: Path) -> SourceIdentity:
    """Put the source that `text` means into the new folder `into`, where it may be changed.

    Fetched sdists are kept in the folder `cache`; their hash is compared at each use. Raises UsageError, ToolError or
    MissingError; `into` then does not exist.
    """
    wanted = identify_source(text)
    if into.exists():
        raise UsageError(f"{into} exists already", fix="give a new folder")
    into.parent.mkdir(parents=True, exist_ok=True)
    text = (text or "").strip()
    try:
        if wanted.kind == "sdist":
            unpack(_existing(text) or fetch_sdist(wanted.version, wanted.digest.removeprefix("sha256:"), cache), into)
            if (found := _tree_version(into)) != wanted.version:
                raise UsageError(f"the sdist of DeepSpeed {wanted.version} contains version {found}")
        elif text.startswith("git+"):
            check_out(parse_remote(text), wanted.digest.removeprefix("git:"), into)
            shutil.rmtree(into / ".git")
            check_links(into, tree_files(into))
        else:
            path = Path(text).expanduser()
            files = list(tree_files(path))
            copy_tree(path, files, into)
            if tree_digest(into, files) != wanted.digest:
                raise _TEXTS.error("source.changed", path=path)
        return replace(wanted, version=wanted.version or _tree_version(into))
    except BaseException:
        shutil.rmtree(into, ignore_errors=True)
        raise


def _released(version: str, sha256: str) -> SourceIdentity:
    return SourceIdentity(kind="sdist", version=version, digest=f"sha256:{sha256}", label="")


def _hash_of(version: str, given: str | None) -> str:
    """The expected hash of the sdist of `version`: the lock's, else the given one."""
    locked: str | None = read_lock()["sdist"].get(version)
    if locked and given and given.lower() != locked:
        raise UsageError(f"the lock's SHA-256 of DeepSpeed {version} is {locked}, not {given.lower()}")
    if locked or given:
        return locked or str(given).lower()
    near = nearest(version, read_lock()["sdist"])
    hint = f"did you mean {near}? " if near else ""
    raise _TEXTS.error("source.no_hash", version=version, versions=_versions(), hint=hint)


def _versions() -> str:
    return ", ".join(read_lock()["sdist"])


def _file(path: Path) -> SourceIdentity:
    """An sdist on disk. One named as a version of the lock must have its hash."""
    sha256 = sha256_of(path)
    version = read_version(path)
    locked = read_lock()["sdist"].get(version)
    if locked == sha256:
        return _released(version, sha256)
    named = re.fullmatch(r"deepspeed-(.+)\.tar\.gz", path.name)
    if locked and named and named[1] == version:
        raise _TEXTS.error("sdist.not_released", path=path, version=version, sha256=sha256, locked=locked)
    return SourceIdentity(kind="sdist", version=version, digest=f"sha256:{sha256}", label=f"patched.{sha256[:_SHORT]}")


def _folder(path: Path) -> SourceIdentity:
    version = _tree_version(path)
    digest = tree_digest(path, tree_files(path))
    label = f"patched.{digest.removeprefix('sha256:')[:_SHORT]}"
    return SourceIdentity(kind="tree", version=version, digest=digest, label=label)


def _tree_version(path: Path) -> str:
    """The version in version.txt beside setup.py. Raises UsageError for a folder that is not DeepSpeed's source."""
    lacking = [name for name in ("setup.py", "version.txt", "op_builder") if not (path / name).exists()]
    if lacking:
        raise _TEXTS.error("source.no_tree", path=path, lacking=lacking[0])
    try:
        text = (path / "version.txt").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        why = error.strerror or error
        raise _TEXTS.error("source.unreadable", path=path / "version.txt", reason=why) from None
    return release_version(text, path / "version.txt")
