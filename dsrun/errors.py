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
    docs/diagnose.md, where one fits.
    """

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


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name that was probably meant, in whatever case and with hyphens or underscores; None without one."""
    import difflib

    folded = {each.lower().replace("-", "_"): each for each in known}
    matches = difflib.get_close_matches(name.lower().replace("-", "_"), folded, n=1, cutoff=cutoff)
    return folded[matches[0]] if matches else None


def did_you_mean(name: str, known: Iterable[str], otherwise: str | None = None, *, cutoff: float = 0.6) -> str:
    """The fix for an unknown name: the nearest known one, else `otherwise`, by default all that are known."""
    known = sorted(set(known))
    match = nearest(name, known, cutoff=cutoff)
    if match or otherwise is not None:
        return f"did you mean {match}?" if match else otherwise or ""
    return f"known: {', '.join(known)}" if known else "remove it"
