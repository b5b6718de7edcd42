"""Which source is built: a released version, a file, a folder or a commit; and fetching it into a folder."""

import re
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from dsrun.errors import UsageError, nearest
from dsrun.refusals import Refusals
from dsrun.system.files import sha256_of
from dsrun.wheel.checkout import check_links, check_out, copy_tree, parse_remote, remote_commit, tree_digest, tree_files
from dsrun.wheel.platform.ops import DEEPSPEED
from dsrun.wheel.platform.wheel_package import WheelPackage, wheel_package
from dsrun.wheel.sdist import fetch_sdist, read_version, release_version, unpack

SourceKind = Literal["sdist", "tree", "git"]
_VERSION = re.compile(r"\s*={0,3}\s*v?(\d+(?:\.\d+)+[\w.]*)(?:#sha256=([0-9a-fA-F]{64}))?")
_SHORT = 8
_TEXTS = Refusals(__file__, "refusals.toml")


@dataclass(frozen=True, kw_only=True)
class SourceIdentity:
    """Which source a build takes, known before anything is fetched.

    `digest` names its content: "sha256:…" of the sdist or of the tree's files, "git:…" with the commit. `label` is
    "" for an unchanged release, else the part of the wheel's local version that says what it is: "git.1a2b3c4d",
    "patched.1a2b3c4d". `version` is "" for a repository elsewhere, until it is fetched."""

    kind: SourceKind
    version: str
    digest: str
    label: str


def identify_source(text: str | None, package: WheelPackage | None = None) -> SourceIdentity:
    """Which source of `package` (DeepSpeed) `--source text` means.

    A version ("0.19.8", or with its hash "0.19.9#sha256=HEX"), a .tar.gz file, a folder, "git+URL@REF", or None for
    the lock's default. Asks no server unless `text` is a repository with a branch or tag. Raises UsageError."""
    package = package or wheel_package()
    if text is None or not text.strip():
        if not package.default:
            raise _TEXTS.error("source.not_released", package=package)
        return _released(package.default, package.sdist[package.default])
    text = text.strip()
    if text.startswith("git+"):
        commit = remote_commit(parse_remote(text))
        return SourceIdentity(kind="git", version="", digest=f"git:{commit}", label=f"git.{commit[:_SHORT]}")
    version = _VERSION.fullmatch(text.removeprefix(package.name))
    path = _existing(text)
    if path is None and version:
        return _released(version[1], _hash_of(version[1], version[2], package))
    if path is not None:
        return _folder(path, package) if path.is_dir() else _file(path, package)
    raise _TEXTS.error("source.unknown", text=text, versions=", ".join(package.sdist))


def _existing(text: str) -> Path | None:
    """The file or folder that `text` names; None when it does not exist or is not a valid name."""
    try:
        path = Path(text).expanduser()
        return path if text and (path.is_dir() or path.is_file()) else None
    except (OSError, ValueError, RuntimeError):
        return None


def resolve_source(
    text: str | None, into: Path, *, cache: Path, name: str = DEEPSPEED, python: str = sys.executable
) -> SourceIdentity:
    """Put the source of the package `name` that `text` means into the new folder `into`, where it may be changed.

    Fetched sdists are kept in the folder `cache`; their hash is compared at each use. A package's setup.py may need
    the packages of the environment of `python` to tell its name. Raises UsageError, ToolError or
    MissingError; `into` then does not exist."""
    package = wheel_package(name)
    wanted = identify_source(text, package)
    if into.exists():
        raise UsageError(f"{into} exists already", fix="give a new folder")
    into.parent.mkdir(parents=True, exist_ok=True)
    text = (text or "").strip()
    try:
        if wanted.kind == "sdist":
            sha256 = wanted.digest.removeprefix("sha256:")
            unpack(_existing(text) or fetch_sdist(wanted.version, sha256, cache, package=package, python=python), into)
            if (found := _tree_version(into, package)) != wanted.version:
                raise UsageError(f"the sdist of {package.title} {wanted.version} contains version {found}")
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
        return replace(wanted, version=wanted.version or _tree_version(into, package))
    except BaseException:
        shutil.rmtree(into, ignore_errors=True)
        raise


def _released(version: str, sha256: str) -> SourceIdentity:
    return SourceIdentity(kind="sdist", version=version, digest=f"sha256:{sha256}", label="")


def _hash_of(version: str, given: str | None, package: WheelPackage) -> str:
    """The expected hash of the sdist of `version`: the lock's, else the given one."""
    locked = package.sdist.get(version)
    if locked and given and given.lower() != locked:
        raise UsageError(f"the lock's SHA-256 of {package.title} {version} is {locked}, not {given.lower()}")
    if locked or given:
        return locked or str(given).lower()
    near = nearest(version, package.sdist)
    hint = f"did you mean {near}? " if near else ""
    versions = ", ".join(package.sdist)
    raise _TEXTS.error("source.no_hash", package=package, version=version, versions=versions, hint=hint)


def _file(path: Path, package: WheelPackage) -> SourceIdentity:
    """An sdist on disk. One named as a version of the lock must have its hash."""
    sha256 = sha256_of(path)
    version = read_version(path, package)
    locked = package.sdist.get(version)
    if locked == sha256:
        return _released(version, sha256)
    named = re.fullmatch(rf"{package.stem}-(.+)\.tar\.gz", path.name)
    if locked and named and named[1] == version:
        names = {"package": package, "version": version}
        raise _TEXTS.error("sdist.not_released", path=path, sha256=sha256, locked=locked, **names)
    return SourceIdentity(kind="sdist", version=version, digest=f"sha256:{sha256}", label=f"patched.{sha256[:_SHORT]}")


def _folder(path: Path, package: WheelPackage) -> SourceIdentity:
    version = _tree_version(path, package)
    digest = tree_digest(path, tree_files(path))
    label = f"patched.{digest.removeprefix('sha256:')[:_SHORT]}"
    return SourceIdentity(kind="tree", version=version, digest=digest, label=label)


def _tree_version(path: Path, package: WheelPackage) -> str:
    """The version of the source in `path`. Raises UsageError for a folder that is not the package's source."""
    lacking = [name for name in package.tree if not (path / name).exists()]
    if lacking:
        tree = ", ".join(package.tree)
        raise _TEXTS.error("source.no_tree", path=path, lacking=lacking[0], package=package, tree=tree)
    file = path / package.version_file
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise _TEXTS.error("source.unreadable", path=file, reason=error.strerror or error) from None
    return release_version(package.version_in(text), file)
