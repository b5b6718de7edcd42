"""Which words sbatch itself takes for arrays, dependencies, resources, nodes and mail. Tried against sbatch 22.05.

What it does not take is refused with the option's name. Its own words, after the script has gone through a pipe, are
"Job dependency problem", or for node[2-1] "memory allocation failure".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from dsrun.errors import UsageError
from dsrun.system.hostlist import expand_hosts

_INDICES = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?(?:%\d+)?", re.ASCII)
_AFTER = re.compile(
    r"singleton|(?:after|afterany|afternotok|afterok|aftercorr|afterburstbuffer|expand)"
    r"(?::\d+(?:_(?:\d+|\*))?(?:\+\d+)?)+",
    re.ASCII,
)
_RESOURCE = re.compile(
    r"(?:gres[/:])?[A-Za-z][\w.-]*(?::[\w.-]*[A-Za-z_][\w.-]*)?(?::\d+[kKmMgGtTpP]?)?", re.ASCII
)
_MAIL = frozenset(
    {"NONE", "BEGIN", "END", "FAIL", "REQUEUE", "ALL", "INVALID_DEPEND", "STAGE_OUT", "ARRAY_TASKS"}
    | {"TIME_LIMIT", "TIME_LIMIT_90", "TIME_LIMIT_80", "TIME_LIMIT_50"}
)


def _is_array(text: str) -> bool:
    words = text.removeprefix("[").removesuffix("]").split(",")
    return all((found := _INDICES.fullmatch(word)) and _rises(*found.groups()) for word in words)


def _rises(first: str, last: str | None, step: str | None) -> bool:
    return (last is None or int(last) >= int(first)) and (step is None or int(step) > 0)


def _is_dependency(text: str) -> bool:
    return all(_AFTER.fullmatch(word) for word in re.split(r"[,?]", text))


def _is_gres(text: str) -> bool:
    return all(_RESOURCE.fullmatch(word) for word in text.split(","))


def _is_mail_type(text: str) -> bool:
    return all(word.upper() in _MAIL for word in text.split(","))


def _is_nodes(text: str) -> bool:
    if "/" in text:  # sbatch reads a file of that name
        return True
    try:
        return bool(expand_hosts(text))
    except UsageError:
        return False


_NODES = (_is_nodes, "is no list of nodes", "such as gpu01,gpu07 or gpu[01-04]")
CHECKS: Mapping[str, tuple[Callable[[str], bool], str, str]] = {
    "array": (_is_array, "are no numbers of tasks", "such as 0-9, 1,3,7, 0-99:10 or 0-99%4"),
    "dependency": (_is_dependency, "is no dependency", "such as afterok:1234, afterany:12:13 or singleton"),
    "gres": (_is_gres, "is no list of resources of a node", "such as gpu:4, gpu:a100:4 or gpu:4,nvme:1"),
    "nodelist": _NODES,
    "exclude": _NODES,
    "mail_type": (_is_mail_type, "is no list of occasions for mail", "such as END,FAIL,REQUEUE, ALL or NONE"),
}


def check_notation(name: str, text: str, where: str) -> None:
    """Raise UsageError, naming `where`, when sbatch would not read `text` as a value of the field `name`."""
    if name not in CHECKS:
        return
    is_one, what, fix = CHECKS[name]
    if not is_one(text):
        raise UsageError(f"{where}: {text!r} {what}", fix=fix)
