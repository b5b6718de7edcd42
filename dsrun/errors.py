"""The errors a user may see: each is one line, knows its exit code and what repairs it."""

from collections.abc import Iterable

EXIT_TOOL_FAILED = 1
EXIT_USAGE = 2
EXIT_FINDINGS = 3
EXIT_MISSING = 4
# EX_TEMPFAIL of <sysexits.h>: saved and not finished; the same command goes on from there.
EXIT_RESUME = 75
EXIT_INTERRUPTED = 130


class DsrunError(Exception):
    """Something went wrong that the user can act on.

    `message` says what and where; `fix` is the command or the line that repairs it; `cause` is the code of
    docs/diagnose.md, where one fits."""

    exit_code = EXIT_TOOL_FAILED

    def __init__(self, message: str, *, fix: str | None = None, cause: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.cause = cause

    def __str__(self) -> str:
        return f"{self.message} ({self.fix})" if self.fix else self.message


class ToolError(DsrunError):
    """A wrapped program failed."""


class UsageError(DsrunError):
    """Wrong flags, configuration or data."""

    exit_code = EXIT_USAGE


class FindingsError(DsrunError):
    """A check found something of level error."""

    exit_code = EXIT_FINDINGS


class MissingError(DsrunError):
    """Something dsrun needs is not installed or not there."""

    exit_code = EXIT_MISSING


# Of a message with C++ frames or a model's whole state dict; its beginning says what is wrong.
LONGEST_MESSAGE = 2000


def one_line(error: BaseException) -> str:
    """The message of any exception, all its lines in one; the name of its class if it has none."""
    text = " ".join(str(error).partition("\nException raised from ")[0].split())
    return (text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 1] + "…") or type(error).__name__


# Of the letters of both names those that they share: a letter in four may differ.
_ALIKE = 0.75


def nearest_names(name: str, known: Iterable[str], count: int) -> list[str]:
    """At most `count` of the known names that were probably meant, the nearest first, in whatever case and with hyphens
    or underscores; else the only one that begins with the whole word. An extension in common says nothing."""
    from difflib import get_close_matches

    names = {_folded(each): each for each in known}
    wanted = _folded(name)
    stem, dot, ending = wanted.rpartition(".")
    alike = {each.removesuffix(dot + ending): each for each in names if stem and each.endswith(dot + ending)}
    others = [each for each in names if each not in alike.values()]
    near = [alike[each] for each in get_close_matches(stem, alike, count, _ALIKE)]
    near = near or get_close_matches(wanted, others, count, _ALIKE)
    begun = [each for each in names if wanted and each.startswith(wanted) and not each[len(wanted) :][:1].isalnum()]
    return [names[each] for each in near or (begun if len(begun) == 1 else [])]


def _folded(name: str) -> str:
    return name.lower().replace("-", "_").lstrip("_")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant; None without one."""
    return next(iter(nearest_names(name, known, 1)), None)


def did_you_mean(name: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """The fix for an unknown name: the nearest known one, else `otherwise`, by default all that are known."""
    known = sorted(set(known))
    match = nearest(name, known)
    if match or otherwise is not None:
        return f"did you mean {match}?" if match else otherwise or ""
    return f"known: {', '.join(known)}" if known else "remove it"
