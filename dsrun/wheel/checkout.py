"""Source trees: which files count and their digest, and commits from elsewhere."""

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from urllib.parse import urlsplit

from dsrun.errors import MissingError, ToolError, UsageError
from dsrun.system.process.proc import capture

_LOCAL_S = 120.0
_NETWORK_S = 1800.0
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SCHEMES = ("https", "ssh", "file", "http", "git")
# A question for a password would wait for ever; a user's own git command beside us must not find the index locked.
_QUIET = {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_LFS_SKIP_SMUDGE": "1"}


@dataclass(frozen=True, kw_only=True)
class GitRemote:
    """A repository elsewhere and what to take from it: a branch, tag or commit; HEAD for its default branch."""

    url: str
    ref: str


def parse_remote(text: str) -> GitRemote:
    """`git+https://host/owner/name.git@v0.19.8` in the form that pip takes. Raises UsageError."""
    url = text.removeprefix("git+")
    try:
        parts = urlsplit(url)
    except ValueError:  # a bracket without its other half
        parts = urlsplit("")
    if parts.scheme not in _SCHEMES or not parts.path.strip("/"):
        raise UsageError(f"{text!r} is not the address of a git repository", fix="git+https://HOST/OWNER/NAME.git@TAG")
    path, _, ref = parts.path.partition("@")
    if ref.startswith("-") or any(sign in ref for sign in " ~^:?*[\\"):
        raise UsageError(f"{ref!r} is not the name of a branch, tag or commit", fix="git+URL@TAG")
    return GitRemote(url=parts._replace(path=path, fragment="", query="").geturl(), ref=ref or "HEAD")


def _git(arguments: Sequence[str], *, cwd: Path | None = None, seconds: float = _LOCAL_S) -> CompletedProcess[str]:
    if shutil.which("git", path=os.environ.get("PATH")) is None:
        raise MissingError("git is not installed", fix="install git, or give a folder or a version to --deepspeed")
    return capture(["git", *arguments], seconds=seconds, changes=_QUIET, cwd=cwd)


def _done(answer: CompletedProcess[str], what: str) -> str:
    if answer.returncode:
        stderr = answer.stderr.strip().splitlines() or ["no output"]
        fatal = [line for line in stderr if line.startswith("fatal: ")]  # advice may come after it
        raise ToolError(f"{what}: {(fatal or stderr[-1:])[0]}")
    return answer.stdout


def remote_commit(remote: GitRemote) -> str:
    """The commit that `remote` stands for now; asks the server unless it is a whole commit id."""
    if _COMMIT.fullmatch(remote.ref):
        return remote.ref
    answer = _git(["ls-remote", "--", remote.url, remote.ref, f"{remote.ref}^{{}}"], seconds=_NETWORK_S)
    lines = [line.split() for line in _done(answer, f"git cannot reach {remote.url}").splitlines()]
    commits = {name: commit for commit, name in lines}
    ref = remote.ref
    # An annotated tag is an object of its own; ^{} is the commit it names.
    for name in (f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"refs/heads/{ref}", ref):
        if name in commits:
            return commits[name]
    raise UsageError(f"{remote.url} has no branch or tag {ref!r}", fix="name a tag, a branch or a whole commit id")


def check_out(remote: GitRemote, commit: str, into: Path) -> None:
    """Put `commit` of `remote` into the new folder `into`, without history.

    Raises ToolError when the server does not hand it out."""
    into.mkdir(parents=True)
    _done(_git(["init", "--quiet", str(into)]), "git init")
    fetched = _git(["fetch", "--quiet", "--depth", "1", "--", remote.url, commit], cwd=into, seconds=_NETWORK_S)
    if fetched.returncode:  # some servers give single commits only when a branch or tag names them
        everything = ["fetch", "--quiet", "--tags", "--", remote.url, "+refs/heads/*:refs/remotes/origin/*"]
        _done(_git(everything, cwd=into, seconds=_NETWORK_S), f"git cannot fetch {remote.url}")
    _done(_git(["checkout", "--quiet", "--detach", commit], cwd=into), f"{remote.url} has no commit {commit[:12]}")


# What building and running leave in a tree.
_LEFT_FOLDERS = frozenset({".git", "__pycache__", "build", "dist", ".pytest_cache", ".mypy_cache", ".tox", ".venv"})
_LEFT_SUFFIXES = (".egg-info", ".pyc", ".o", ".whl")
# setup.py writes these two on every build.
_WRITTEN = frozenset({"build.txt", "deepspeed/git_version_info_installed.py"})


def tree_files(root: Path) -> Iterator[Path]:
    """The source files under `root`, relative to it: without what building and running leave behind."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _LEFT_FOLDERS and not name.endswith(_LEFT_SUFFIXES))
        here = Path(folder)
        # os.walk counts a link to a folder among the folders and does not enter it.
        linked = [name for name in folders if (here / name).is_symlink()]
        for name in sorted([*files, *linked]):
            # A library built in place; those that upstream ships lie in folders called libs.
            built = name.endswith(".so") and here.name != "libs"
            if not built and not name.endswith(_LEFT_SUFFIXES):
                yield (here / name).relative_to(root)


def tree_digest(root: Path, files: Iterable[Path]) -> str:
    """SHA-256 over names, contents, executable bits and link targets of `files` under `root`: "sha256:…"."""
    total = hashlib.sha256()
    for name in sorted(files):
        if name.as_posix() in _WRITTEN:
            continue
        path = root / name
        if path.is_symlink():
            kind, content = "link", os.fsencode(path.readlink())
        elif path.is_file():
            kind = "program" if path.stat().st_mode & stat.S_IXUSR else "file"
            content = path.read_bytes()
        else:
            raise UsageError(f"{path} is neither a file nor a folder nor a link", fix="take it out of the source tree")
        total.update(f"{kind} {len(os.fsencode(name))} {len(content)}\n".encode())
        total.update(os.fsencode(name))
        total.update(content)
    return f"sha256:{total.hexdigest()}"


def check_links(root: Path, files: Iterable[Path]) -> None:
    """Raises UsageError for a link among `files` that leads out of `root`: its target is not part of the digest."""
    inside = root.resolve()
    for name in files:
        path = root / name
        if path.is_symlink() and not path.resolve().is_relative_to(inside):
            raise UsageError(f"{path} is a link that leads out of the source tree", fix="replace it by what it means")


def copy_tree(root: Path, files: Sequence[Path], into: Path) -> None:
    """Copy `files` of `root` into the new folder `into`, links as links. Raises UsageError as `check_links` does."""
    check_links(root, files)
    for name in files:
        target = into / name
        if name.as_posix() not in _WRITTEN:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target, follow_symlinks=False)
