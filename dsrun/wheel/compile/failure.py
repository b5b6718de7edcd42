"""Why a build failed, in one line: the first real error of its output, or what could not be written."""

import errno
import os
import re
import shutil
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dsrun.datafiles import patterns_beside, toml_beside
from dsrun.errors import DsrunError, ToolError
from dsrun.refusals import Refusals
from dsrun.system.files import DISK_FULL, replacing
from dsrun.wheel.compile.output import split_line
from dsrun.wheel.compile.parallel import BEGIN, END

_QUOTES = str.maketrans("\N{LEFT SINGLE QUOTATION MARK}\N{RIGHT SINGLE QUOTATION MARK}", "''")
_PATTERNS, _TEXTS = patterns_beside(__file__), Refusals(__file__, "refusals.toml")
_LINES = {kind: tuple(map(re.compile, texts)) for kind, texts in toml_beside(__file__)["lines"].items()}
# ninja's own failure is only an echo of the compiler's.
_ECHO = ("Error compiling objects for extension", "Command '['ninja'", "returned non-zero exit status")


@dataclass(frozen=True, kw_only=True)
class BuildFailure:
    """What went wrong first: which build, where, what; `cause` is "memory" or "disk" when it was one of these."""

    label: str
    where: str
    what: str
    cause: str = ""

    @property
    def sentence(self) -> str:
        """One line without the build's label."""
        return f"{self.where}: {self.what}" if self.where else self.what


def first_failure(lines: Iterable[tuple[str, str]], codes: dict[str, int]) -> BuildFailure | None:
    """The failure in `lines` of (label, text). `codes`: exit codes of the builds that ended.

    A full disk or a killed compiler anywhere explains the errors around it. Otherwise the first error of a compiler,
    else of a linker or another tool, else the last Python error, of a build that failed by itself: those that were
    ended because of it complain of that."""
    failed = {label for label, code in codes.items() if code}
    found: dict[str, BuildFailure] = {}
    for label, raw in lines:
        text = _PATTERNS["ansi"].sub("", raw).rstrip().translate(_QUOTES)
        kind, failure = _classify(label, text)
        if failed and label not in failed and kind not in ("disk", "memory"):
            continue
        if failure and (kind == "python" or kind not in found):
            found[kind] = failure
    best = next((found[kind] for kind in ("disk", "memory", "compiler", "tool") if kind in found), None)
    if best:
        return best
    killed = next((label for label, code in codes.items() if code in (-signal.SIGKILL, 137)), None)
    if killed is not None:
        return BuildFailure(label=killed, where="", what="the build was killed", cause="memory")
    return found.get("python")


def is_disk_full(text: str) -> bool:
    return bool(_PATTERNS["disk"].search(text))


def _classify(label: str, text: str) -> tuple[str, BuildFailure | None]:
    if is_disk_full(text):
        return "disk", BuildFailure(label=label, where="", what=text.strip(), cause="disk")
    if _PATTERNS["memory"].search(text):
        return "memory", BuildFailure(label=label, where="", what=text.strip(), cause="memory")
    for kind, patterns in _LINES.items():
        for pattern in patterns:
            match = pattern.match(text)
            if match and not any(echo in text for echo in _ECHO):
                return kind, BuildFailure(label=label, where=match["where"], what=match["what"] or "failed")
    return "", None


def explained(log: Path, codes: dict[str, int], folder: Path) -> DsrunError:
    """The one line a user needs of a failed build."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        failure = first_failure((split_line(line) for line in lines), codes)
    if "" in codes or (failure and failure.cause == "disk"):
        return disk_full(folder, failure.what if failure else os.strerror(errno.ENOSPC))
    if failure is None:
        label = next((label for label, code in codes.items() if code), "")
        split = map(split_line, log.read_text(encoding="utf-8", errors="replace").splitlines())
        printed = [text.strip() for name, text in split if name == label and not text.startswith((BEGIN, END))]
        what = next(filter(None, reversed(printed)), "it printed nothing")
        return ToolError(f"the build of {label or 'the wheel'} failed: {what}")
    if failure.cause == "memory":
        return _TEXTS.error("build.memory", label=failure.label, what=failure.what)
    tree = f"{folder / 'trees' / failure.label}/"
    # ccache gives the compiler paths that are relative to where it runs, the tree's build folder.
    sentence = re.sub(r"^(\.\./)+", "", failure.sentence.replace(tree, ""))
    return ToolError(f"{failure.label}: {sentence}")


def disk_full(folder: Path, why: str) -> DsrunError:
    return _TEXTS.error("build.disk", folder=folder.parent, why=why)


@contextmanager
def explaining(folder: Path, log: Path, kept: Path) -> Iterator[None]:
    """What goes wrong with the build in `folder` is one ToolError; its `log` is then in the file `kept`."""
    try:
        yield
    except ToolError as error:
        raise with_log(error, log, kept) from error
    except OSError as error:
        raise copy_failed(folder, error) from error


def with_log(error: ToolError, log: Path, kept: Path) -> ToolError:
    """`error`, with the path of the full output."""
    if not log.is_file() or not log.stat().st_size:
        return error
    try:
        with replacing(kept) as partial:
            shutil.copyfile(log, partial)
    except OSError:
        return error
    where = f"the whole output: {kept}"
    return ToolError(error.message, fix=f"{error.fix}; {where}" if error.fix else where)


def check_executable(folder: Path) -> None:
    """Raise ToolError when the build's new `folder` lies where no program may be run."""
    if os.statvfs(folder.parent).f_flag & os.ST_NOEXEC:
        raise _TEXTS.error("build.noexec", folder=folder.parent)


def copy_failed(folder: Path, error: OSError) -> DsrunError:
    """The error for a file that could not be written in the build's `folder` or in the store."""
    # copytree goes on after an error, and lists those of all files in one without an error number.
    first = error.args[0][0][-1] if isinstance(error, shutil.Error) else error.strerror or str(error)
    if error.errno in DISK_FULL or is_disk_full(str(first)):
        return disk_full(folder, str(first))
    where = f"{error.filename}: " if error.filename else ""
    return ToolError(f"the build could not write its files: {where}{first}", fix="check TMPDIR and DSRUN_CACHE")
