"""run.yaml -> what was given, each value with its line.

The file is read as a tree of nodes, not as Python values: a flag's own type decides what its text means, so
that `source_lang: no`, `dataset_config: 3.0` and `learning_rate: 1e-4` are what they look like (YAML 1.1
would make them False, a float and a string).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from dsrun.errors import UsageError, did_you_mean
from dsrun.recipe.flags import Flag, normalise
from dsrun.recipe.other_tools import answer
from dsrun.recipe.parsed_value import YAML_FLOAT, ParsedValue, from_data, from_words
from dsrun.recipe.removed import SAME, table, translate, vocabulary

NULL_TAG = "tag:yaml.org,2002:null"
FLOAT_TAG = "tag:yaml.org,2002:float"


class _Loader(yaml.SafeLoader):
    """YAML 1.1 without its worst trap: `1e-8` in an inline DeepSpeed config is a number."""


_Loader.add_implicit_resolver(FLOAT_TAG, YAML_FLOAT, list("-+.0123456789"))


def sections() -> dict[str, Mapping[str, Flag]]:
    """The flags by the keys that each section of run.yaml has; an empty one is left to another command."""
    known = vocabulary()
    zero = {"stage": known["zero"], "offload": known["offload"], "nvme_path": known["nvme_path"]}
    names = ("nproc", "nproc_per_node", "master_port", "find_port", "max_restarts", "hang_timeout", "remedy", "warm")
    launch = {name: known[name] for name in names}
    return {"train": known, "zero": zero, "launch": launch, "slurm": {}}


def read_run_file(path: Path, shown: str) -> tuple[ParsedValue, ...]:
    """Every value in run.yaml, in order. `shown` is the path as the user wrote it.

    Raises UsageError, with file and line, for text that is not YAML, an unknown or doubled key, and a value
    that its flag does not take.
    """
    with _opened(path, shown) as (loader, root):
        return tuple(_from_root(loader, root, shown))


def read_section(path: Path, shown: str, section: str) -> list[tuple[str, list[str], str]]:
    """The keys of one section as (key, words, "run.yaml:4: slurm.nodes"), for a command that has options of its own.

    A scalar is one word as it stands in the file (`20:00:00` is not a number of minutes here); a list has several, and
    a mapping one `key=value` each. Keys without a value are left out. Raises UsageError as `read_run_file` does.
    """
    with _opened(path, shown) as (_, root):
        sections = _pairs(root, shown, "the file") if root is not None and root.tag != NULL_TAG else []
        node = next((value for key, value in sections if key.value == section), None)
        if node is None or node.tag == NULL_TAG:
            return []
        return [
            (key.value, _plain_scalars(value, where), where)
            for key, value in _pairs(node, shown, f"{section}:")
            if value.tag != NULL_TAG
            for where in [f"{shown}:{_line(key)}: {section}.{key.value}"]
        ]


def _plain_scalars(node: yaml.Node, where: str) -> list[str]:
    scalars = _scalars(node)
    if scalars is None and isinstance(node, yaml.MappingNode):
        pairs = [(key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)]
        if all(isinstance(value, yaml.ScalarNode) for _, value in pairs) and len(pairs) == len(node.value):
            scalars = [f"{key.value}={value.value}" for key, value in pairs]
    if scalars is None:
        raise UsageError(f"{where}: neither a value nor a list of values")
    return scalars


@contextmanager
def _opened(path: Path, shown: str) -> Iterator[tuple[_Loader, yaml.Node | None]]:
    """The file's root node, and its loader; what is wrong with its YAML becomes a UsageError."""
    try:
        loader = _Loader(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{shown}: cannot be read: {error.strerror}", fix="give a run.yaml") from None
    except (UnicodeDecodeError, yaml.reader.ReaderError):
        raise UsageError(f"{shown}: not a text file", fix="give a run.yaml") from None
    try:
        yield loader, loader.get_single_node()
    except RecursionError:
        raise UsageError(f"{shown}: nested too deeply", fix="give a run.yaml") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise UsageError(f"{shown}{place}: not YAML: {error.problem}") from None
    finally:
        loader.dispose()


def _from_root(loader: _Loader, root: yaml.Node | None, shown: str) -> Iterable[ParsedValue]:
    if root is None or root.tag == NULL_TAG:
        return
    for key, node in _pairs(root, shown, "the file"):
        section = key.value
        if section not in sections():
            _unknown_section(key, shown)
        if section == "slurm" or node.tag == NULL_TAG:
            continue
        for name, value in _pairs(node, shown, f"{section}:"):
            given = _from_pair(loader, name, value, section, shown)
            if given is not None:
                yield given


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _pairs(node: yaml.Node, shown: str, what: str) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
    """The keys and values of a mapping, refused when it is none or a key is doubled."""
    if not isinstance(node, yaml.MappingNode):
        raise UsageError(f"{shown}:{_line(node)}: {what} does not hold `key: value` lines")
    first: dict[str, int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise UsageError(f"{shown}:{_line(key)}: a key must be one word")
        name = normalise(key.value)
        if name in first:
            raise UsageError(f"{shown}:{_line(key)}: {key.value} is given twice, first in line {first[name]}")
        first[name] = _line(key)
    return list(node.value)


def _unknown_section(key: yaml.ScalarNode, shown: str) -> NoReturn:
    where = f"{shown}:{_line(key)}: unknown section {key.value}"
    if normalise(key.value) in vocabulary():
        raise UsageError(where, fix=f"{key.value} belongs under train:")
    raise UsageError(where, fix=did_you_mean(key.value, sections(), f"known: {', '.join(sections())}"))


def _from_pair(loader: _Loader, key: yaml.ScalarNode, node: yaml.Node, section: str, shown: str) -> ParsedValue | None:
    """One line of a section. An empty value leaves the flag as it is."""
    name = normalise(key.value)
    source = f"{shown}:{_line(key)}"
    where = f"{source}: {section}.{key.value}"
    flag = sections()[section].get(name)
    if flag is None:
        keys = sections()[section]
        listed = "docs/train.md lists all flags" if section == "train" else f"known: {', '.join(keys)}"
        of_others = answer(f"{source}: {section}.{key.value}", name) if section == "train" else None
        raise of_others or UsageError(
            f"{source}: unknown key {section}.{key.value}", fix=did_you_mean(name, keys, listed)
        )
    if flag.name == "config":
        raise UsageError(f"{where}: a run file cannot name another", fix="give --config on the command line")
    if node.tag == NULL_TAG and flag.optional:
        return None
    spelling = f"{section}.{name}"
    scalars = _scalars(node)
    if scalars is not None and (len(scalars) == 1 or flag.kind in ("list", "list|str")):
        return from_words(flag, scalars, spelling=spelling, source=source, where=where)
    return from_data(flag, _data(loader, flag, node, shown), spelling=spelling, source=source, where=where)


def _scalars(node: yaml.Node) -> list[str] | None:
    """The text of a scalar, or of a list of scalars, as it stands in the file; None for anything else."""
    if isinstance(node, yaml.ScalarNode):
        return [node.value]
    if isinstance(node, yaml.SequenceNode) and all(isinstance(each, yaml.ScalarNode) for each in node.value):
        return [each.value for each in node.value]
    return None


def _data(loader: _Loader, flag: Flag, node: yaml.Node, shown: str) -> Any:
    """A mapping or a nested list as Python values; the values of KEY=VALUE flags stay as they are written."""
    _check_doubles(node, shown)
    if isinstance(node, yaml.MappingNode) and flag.metavar == "KEY=VALUE":
        return {
            key.value: each.value if isinstance(each, yaml.ScalarNode) else json.dumps(_construct(loader, each))
            for key, each in node.value
        }
    return _construct(loader, node)


def _construct(loader: _Loader, node: yaml.Node) -> Any:
    return loader.construct_document(node)


def _check_doubles(node: yaml.Node, shown: str) -> None:
    """Refuse a doubled key at any depth: YAML keeps the last one silently."""
    waiting, seen = [node], set()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, yaml.MappingNode):
            waiting.extend(value for _, value in _pairs(each, shown, "it"))
        elif isinstance(each, yaml.SequenceNode):
            waiting.extend(each.value)


SECTION = "train"


@dataclass(frozen=True)
class UpgradedRun:
    """The new text, one line for each change, and one for each flag that has no equivalent and was left alone."""

    text: str
    changes: tuple[str, ...]
    left: tuple[str, ...]


@dataclass(frozen=True)
class _Edit:
    """Put `text` in the place of the characters from `start` to `end`."""

    start: int
    end: int
    text: str


def upgrade_run_file(path: Path, shown: str) -> UpgradedRun:
    """Rewrite the removed training flags of a run.yaml. `shown` is the path as the user wrote it.

    Raises UsageError for a file that `dsrun train --config` would not read either.
    """
    given = {each.source: each for each in read_run_file(path, shown)}
    text = path.read_bytes().decode("utf-8")  # read_text would change the ends of lines
    present = {each.name for each in given.values()}
    edits, changes, left = [], [], []
    for key, value in _section(text, shown):
        each = given.get(f"{shown}:{key.start_mark.line + 1}")
        if each is None or normalise(key.value) not in table():
            continue
        try:
            _, notice = translate(each, present)
        except UsageError as error:
            left.append(str(error))
            continue
        edits.append(_edit(text, key, value, each, present))
        changes.append(str(notice))
    for edit in reversed(edits):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return UpgradedRun(text, tuple(changes), tuple(left))


def _section(text: str, shown: str) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    for key, value in root.value if isinstance(root, yaml.MappingNode) else ():
        if key.value == SECTION and isinstance(value, yaml.MappingNode):
            if value.flow_style:
                raise UsageError(
                    f"{shown}:{value.start_mark.line + 1}: {SECTION}: is in braces", fix="write one flag a line"
                )
            return list(value.value)
    return []


def _edit(text: str, key: yaml.ScalarNode, value: yaml.Node, given: ParsedValue, present: Collection[str]) -> _Edit:
    case = table()[given.name].case(given.value)
    if not case.becomes or case.becomes in present:
        return _without(text, key, value)
    start, end = key.start_mark.index, key.end_mark.index
    if case.value is SAME:
        return _Edit(start, end, case.becomes)
    return _Edit(start, value.end_mark.index, f"{case.becomes}: {_as_yaml(case.value)}")


def _without(text: str, key: yaml.ScalarNode, value: yaml.Node) -> _Edit:
    """The lines of a key and its value taken out; comments behind them stay."""
    lines = text.splitlines(keepends=True)
    first, last = key.start_mark.line, value.end_mark.line
    if value.end_mark.column == 0 and last > first:
        last -= 1
    while last > first and (not lines[last].strip() or lines[last].lstrip().startswith("#")):
        last -= 1
    start = sum(map(len, lines[:first]))
    return _Edit(start, start + sum(map(len, lines[first : last + 1])), "")


def _as_yaml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)
