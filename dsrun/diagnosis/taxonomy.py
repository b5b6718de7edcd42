"""The general cause of an error that no rule knows, by its type, its message, and whose code raised it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from dsrun.datafiles import patterns_beside, toml_beside
from dsrun.diagnosis.rules import FailureCause, cause_named
from dsrun.messages import Message

SCRIPT = "script"
STDLIB = "python"
# As much of a message as a sentence can quote, and as tells: the output of another program may follow.
QUOTED, READ = 160, 4000
# It explains the keys of its rows.
_TABLE = toml_beside(__file__)
_PATTERNS = patterns_beside(__file__)
# More than re keeps.
_compiled = cache(re.compile)


@dataclass(frozen=True, kw_only=True)
class LoggedError:
    """An exception, or with type "" a line that tells of an error in another way.

    `type` may have its module before it. `owner` is the package of the deepest frame (see `owner_of`), "" where the log
    does not tell. `frames` are places as `File "FILE", line N` or FILE:N, the deepest last. `own`: of a run of dsrun.
    """

    type: str
    message: str
    owner: str = ""
    frames: tuple[str, ...] = ()
    own: bool = False


class CauseReading(NamedTuple):
    """The general cause of an error, with a meaning and a fix that quote its message."""

    cause: FailureCause
    means: str
    fix: str


def general_cause(error: LoggedError) -> CauseReading | None:
    """What the first row of the table that knows the error says of it; None where none does."""
    name = re.sub(r"^[\w.]+\(([\w.]+)\)$", r"\1", error.type)  # RayTaskError(ValueError)
    owner = next(_owners(error), error.owner)
    # What a row may call an owner.
    owners = {owner, *(name for name, members in _TABLE["owners"].items() if owner in members)}
    owners |= set() if owner in ("", SCRIPT, STDLIB) else {"library"}
    for row in _TABLE["row"]:
        groups = _match(row, name.rpartition(".")[2], error.message[:READ], owners)
        if groups is not None and not row["cause"]:
            return None
        if groups is not None:
            cause = cause_named(row["cause"])
            fix = row.get("fix") or (cause.other_fix if cause.other_fix and not error.own else cause.fix)
            values = _values(error, name, owner, groups)
            return CauseReading(cause, Message(row.get("means") or cause.means, **values), Message(fix, **values))
    return None


def _match(row: dict[str, Any], name: str, message: str, owners: set[str]) -> dict[str, str] | None:
    """What the row's groups hold in `message`; None where the error is not of this row."""
    if "type" in row and not _compiled(row["type"]).fullmatch(name):
        return None
    if "owner" in row and not owners.intersection(row["owner"]):
        return None
    found = _compiled(row.get("message", "")).search(message)
    if not found or ("unless" in row and _compiled(row["unless"]).search(message)):
        return None
    return {key: value or "" for key, value in found.groupdict().items()}


def owner_of(path: str) -> str:
    """The package that a frame's file belongs to; "python" for the standard library, "script" for the user's own file,
    "" for code without a file."""
    path = path.replace("\\", "/")
    for kind, owner in _TABLE["kinds"].items():
        if found := _PATTERNS[kind].fullmatch(path):
            return str(found.groupdict().get("package") or owner)
    folders = path.split("/")[:-1]
    checkouts = _TABLE["checkouts"]
    for place in reversed(range(len(folders))):
        if folders[place] in checkouts and _is_checkout(folders[:place], folders[place], checkouts[folders[place]]):
            return folders[place]
    return SCRIPT


def _is_checkout(above: list[str], package: str, names: list[str]) -> bool:
    """Whether the folders above that of a package are those of its repository, or of an image that holds it."""
    above = above[:-1] if above and above[-1] in ("src", "python") else above
    parent = re.sub(r"\W|_", "", above[-1].lower()) if above else ""
    return parent in ("", "opt", "workspace") or any(name in parent for name in (package.replace("_", ""), *names))


def _owners(error: LoggedError) -> Iterator[str]:
    """Whose code the frames are, the deepest first, without code that only calls others or is asked by them."""
    owners = (owner_of(each["file"]) for each in _places(error) if not _PATTERNS["passing"].search(each["file"]))
    return (owner for owner in owners if owner not in ("", STDLIB))


def _places(error: LoggedError) -> list[re.Match[str]]:
    """File and line of the frames, the deepest first."""
    return [found for frame in reversed(error.frames) if (found := _PATTERNS["place"].search(frame))]


def _values(error: LoggedError, name: str, owner: str, groups: dict[str, str]) -> dict[str, Any]:
    """What the texts of a row may name."""
    message = " ".join(error.message.split())
    places = _places(error)
    place = next((each for each in places if owner_of(each["file"]) == SCRIPT), places[0] if places else None)
    imports = [groups.get("package", "").partition(".")[0], owner, *_owners(error)]
    packages = [each for each in dict.fromkeys(imports) if each not in ("", SCRIPT, STDLIB, "transformers_modules")]
    return groups | {
        "message": message if len(message) <= QUOTED else f"{message[: QUOTED - 1]}…",
        "type": name.rpartition(".")[2],
        "owner": owner if owner not in ("", SCRIPT) else Message("the program"),
        "where": f"{place['file']}:{place['line']}" if place else Message("the line that the traceback names"),
        "packages": " ".join(_TABLE["distributions"].get(each, each) for each in packages[:2]) or "PACKAGE",
    }
