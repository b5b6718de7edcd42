"""YAML whose anchors make it endless, or far longer than its text."""

import yaml

from dsrun.errors import UsageError

MOST_NODES = 100_000
"""No configuration of a run has so many values; a few lines of anchors may stand for billions of them."""


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
