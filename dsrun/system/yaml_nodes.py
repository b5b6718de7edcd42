"""YAML that somebody wrote: its text, what to write where it is none, and anchors that make it endless."""

import codecs
import json
from pathlib import Path

import yaml

from dsrun.errors import UsageError

MOST_NODES = 100_000
"""No configuration of a run has so many values; a few lines of anchors may stand for billions of them."""


def yaml_text(path: Path, shown: str) -> str:
    """The text of a file in UTF-8, or in UTF-16 as Windows writes it. Raises UsageError for any other."""
    try:
        data = path.read_bytes()
        return data.decode("utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8")
    except OSError as error:
        raise UsageError(f"{shown}: cannot be read: {error.strerror}", fix="give a YAML file") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{shown}:{line}: not text in UTF-8", fix="save it as UTF-8") from None


def not_yaml(error: yaml.MarkedYAMLError, text: str, shown: str) -> UsageError:
    """What to write instead of a line that is not YAML."""
    mark, problem = error.problem_mark or error.context_mark, str(error.problem)
    if mark is None:
        return UsageError(f"{shown}: not YAML: {problem}")
    line = [*text.splitlines(), ""][mark.line]
    key, _, value = (part.strip() for part in line.partition(": "))
    fix = None
    if "\t" in line[: len(line) - len(line.lstrip())]:
        problem, fix = "a tab before a key", "indent with spaces"
    elif value and mark.column > line.index(": ") + 1 and ":" not in key and value[0] not in "[{'\"":
        fix = f"quote the value: {key}: {json.dumps(value, ensure_ascii=False)}"
    elif problem.startswith(("mapping values", "expected <block end>", "could not find expected ':'")):
        fix = "write KEY: VALUE, and keys of one section below one another"
    return UsageError(f"{shown}:{mark.line + 1}:{mark.column + 1}: not YAML: {problem}", fix=fix)


def refuse_endless(root: yaml.Node | None, shown: str) -> None:
    """Raise UsageError, with the line, for an anchor within itself, and for a file that stands for too many values."""
    sizes: dict[int, int] = {}
    if root is not None:
        _size(root, shown, sizes, set())


def _size(node: yaml.Node, shown: str, sizes: dict[int, int], within: set[int]) -> int:
    """How many values a node stands for, those of an anchor counted each time that it is used."""
    place = f"{shown}:{node.start_mark.line + 1}"
    if id(node) in within:
        raise UsageError(f"{place}: an anchor (&) refers to itself", fix="write the value out")
    if id(node) not in sizes:
        within.add(id(node))
        size = 1
        for inner in _children(node):
            size += _size(inner, shown, sizes, within)
            if size > MOST_NODES:
                raise UsageError(f"{place}: stands for more than {MOST_NODES:,} values", fix="use fewer anchors (&)")
        within.discard(id(node))
        sizes[id(node)] = size
    return sizes[id(node)]


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [each for pair in node.value for each in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []
