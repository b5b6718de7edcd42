"""Flags of sbatch that `dsrun render-slurm` takes although its scripts say the same in other words.

A script has one task a node, with all its GPUs. What fits that is translated; what does not is refused, and why.
"""

import re
from collections.abc import Sequence

from dsrun.errors import UsageError
from dsrun.slurm.render.notation import parse_gpus
from dsrun.slurm.render.spec import RESERVED_OPTIONS

_SHORT = {"-n": "--ntasks", "-G": "--gpus", "-N": "--nodes"}
_TRANSLATED = ("ntasks", "ntasks-per-node", "gpus", "gpus-per-task", "cpus-per-gpu")
# What sbatch may have as it is.
_PASSED_ON = ("mem-per-gpu", "mem-per-cpu", "switches", "segment")
_FLAG = re.compile(rf"--(?P<name>{'|'.join((*_TRANSLATED, *_PASSED_ON))})(?:=(?P<value>.*))?", re.DOTALL)
_GLUED = re.compile(r"(-[nGN])=?(.+)", re.DOTALL)


def translate(args: Sequence[str]) -> list[str]:
    """`args` with the flags of sbatch in the words of render-slurm.

    Raises UsageError for what one task a node cannot be.
    """
    words = _long(args)
    kept: list[str] = []
    found: list[tuple[str, str]] = []
    rest = iter(words)
    for word in rest:
        match = _FLAG.fullmatch(word.replace("_", "-") if word.startswith("--") and "=" not in word else word)
        if match is None:
            kept.append(word)
            continue
        value = match["value"] if match["value"] is not None else next(rest, "")
        found.append((match["name"], value))
    nodes = _value(words, "--nodes") or "1"
    for name, value in found:
        kept += _translated(name, value, nodes, kept)
    return kept


def _long(args: Sequence[str]) -> list[str]:
    """The short flags that take a number, also glued to it (-n4), as long ones."""
    words: list[str] = []
    for word in args:
        glued = _GLUED.fullmatch(word)
        if word in _SHORT:
            words.append(_SHORT[word])
        elif glued:
            words.append(f"{_SHORT[glued[1]]}={glued[2]}")
        else:
            words.append(word)
    return words


def _translated(name: str, value: str, nodes: str, others: Sequence[str]) -> list[str]:
    if name in _PASSED_ON:
        return ["--sbatch", f"{name}={value}"]
    if name in ("ntasks", "ntasks-per-node"):
        if value != (nodes if name == "ntasks" else "1"):
            raise UsageError(f"--{name} {value} with {nodes} node{'s' * (nodes != '1')}", fix=RESERVED_OPTIONS[name])
        return []
    gpus = parse_gpus(value)
    if name == "cpus-per-gpu":
        per_node = parse_gpus(_value(others, "--gpus-per-node") or "")
        if per_node is None or not value.isdecimal():
            raise UsageError(f"--cpus-per-gpu {value}: of how many GPUs", fix="add --gpus-per-node N")
        return ["--cpus-per-task", str(int(value) * per_node[1])]
    if gpus is None:
        raise UsageError(f"--{name} {value!r} is not a number of GPUs", fix="write --gpus-per-node 4, or a100:4")
    kind, count = gpus
    if name == "gpus":
        if not nodes.isdecimal() or count % int(nodes):
            raise UsageError(f"--gpus {value} on {nodes} nodes", fix=RESERVED_OPTIONS["gpus"])
        count //= int(nodes)
    return ["--gpus-per-node", f"{kind}:{count}" if kind else str(count)]


def _value(words: Sequence[str], flag: str) -> str | None:
    """The value of a long flag, with a blank or an equals sign before it."""
    for place, word in enumerate(words):
        plain = word.replace("_", "-")
        if plain == flag:
            return words[place + 1] if place + 1 < len(words) else None
        if plain.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None
