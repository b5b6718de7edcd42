"""run.yaml -> what was given, each value with its line.

The file is read as a tree of nodes, not as Python values: a flag's own type decides what its text means, so
that `source_lang: no`, `dataset_config: 3.0` and `learning_rate: 1e-4` are what they look like (YAML 1.1
would make them False, a float and a string)."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from dsrun.errors import UsageError, did_you_mean
from dsrun.recipe.compat.removed import answer, vocabulary
from dsrun.recipe.flags import RecipeFlag, normalise
from dsrun.recipe.mixture import NAME, TEMPERATURE, check_sets, check_value, set_keys
from dsrun.recipe.parsed_value import YAML_FLOAT, ParsedValue, from_data, from_words
from dsrun.system.yaml_nodes import not_yaml, refuse_endless, yaml_text

NULL_TAG = "tag:yaml.org,2002:null"
OF_RENDERERS = ("slurm", "k8s")
"""Sections that `dsrun render-slurm` and `render-k8s` read."""
OF_DOCUMENTS = ("patch",)
"""Their keys that take documents: names of files, or mappings."""
FLOAT_TAG = "tag:yaml.org,2002:float"


class _Loader(yaml.SafeLoader):
    """YAML 1.1 without its worst trap: `1e-8` in an inline DeepSpeed config is a number."""


_Loader.add_implicit_resolver(FLOAT_TAG, YAML_FLOAT, list("-+.0123456789"))


def sections() -> dict[str, Mapping[str, RecipeFlag]]:
    """The flags by the keys that each section of run.yaml has; an empty one is left to another command, or is read
    otherwise."""
    known = vocabulary()
    zero = {"stage": known["zero"], "offload": known["offload"], "nvme_path": known["nvme_path"]}
    names = "nproc nproc_per_node master_port find_port max_restarts hang_timeout elastic remedy warm"
    launch = {name: known[name] for name in names.split()}
    return {"train": known, "zero": zero, "data": {}, "launch": launch, **{name: {} for name in OF_RENDERERS}}


def read_run_file(path: Path, shown: str) -> tuple[ParsedValue, ...]:
    """Every value in run.yaml, in order. `shown` is the path as the user wrote it.

    Raises UsageError, with file and line, for text that is not YAML, an unknown or doubled key, and a value
    that its flag does not take."""
    with _composed(yaml_text(path, shown), shown) as (loader, root):
        return tuple(_from_root(loader, root, shown))


def read_mapping(path: Path, shown: str) -> tuple[dict[str, Any], dict[str, int]]:
    """The keys and values of a YAML file of another tool, and the line of each key. Raises as `read_run_file` does."""
    with _composed(yaml_text(path, shown), shown) as (loader, root):
        if root is None or root.tag == NULL_TAG:
            return {}, {}
        lines = {key.value: _line(key) for key, _ in _pairs(root, shown, "the file")}
        _check_doubles(root, shown)
        return loader.construct_document(root), lines


def read_documents(text: str, shown: str) -> list[Any]:
    """The documents of YAML for another program, without those that are empty. Raises as `read_run_file` does."""
    with _composed(text, shown, several=True) as (loader, root):
        assert root is not None
        _check_doubles(root, shown)
        return [each for each in loader.construct_document(root) if each is not None]


def read_section(path: Path, shown: str, section: str) -> list[tuple[str, list[str], str]]:
    """The keys of one section as (key, words, "run.yaml:4: slurm.nodes"), for a command that has options of its own.

    A scalar is one word as it stands in the file (`20:00:00` is not a number of minutes here); a list has several, and
    a mapping one `key=value` each; of keys in OF_DOCUMENTS each mapping is one word of JSON. Keys without a value are
    left out. Raises UsageError as `read_run_file` does."""
    with _composed(yaml_text(path, shown), shown) as (loader, root):
        sections = _pairs(root, shown, "the file") if root is not None and root.tag != NULL_TAG else []
        node = next((value for key, value in sections if key.value == section), None)
        if node is None or node.tag == NULL_TAG:
            return []
        return [
            (
                key.value,
                _inline(loader, value, where) if key.value in OF_DOCUMENTS else _plain_scalars(value, where),
                where,
            )
            for key, value in _pairs(node, shown, f"{section}:")
            if value.tag != NULL_TAG
            for where in [f"{shown}:{_line(key)}: {section}.{key.value}"]
        ]


def _inline(loader: _Loader, node: yaml.Node, where: str) -> list[str]:
    _check_doubles(node, where)
    return [
        each.value
        if isinstance(each, yaml.ScalarNode)
        else json.dumps(loader.construct_document(each), ensure_ascii=False, default=str)
        for each in (node.value if isinstance(node, yaml.SequenceNode) else [node])
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
def _composed(text: str, shown: str, several: bool = False) -> Iterator[tuple[_Loader, yaml.Node | None]]:
    """The root node of a text, and its loader; what is wrong with its YAML becomes a UsageError. The root of several
    documents is a list of theirs."""
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UsageError(f"{shown}:{line}: not a text file", fix="give a YAML file in UTF-8") from None
    try:
        root: yaml.Node | None
        if several:
            documents = [loader.get_node() for _ in iter(loader.check_node, False)]
            root = yaml.SequenceNode("tag:yaml.org,2002:seq", documents, loader.get_mark())
        else:
            root = loader.get_single_node()
        refuse_endless(root, shown)
        yield loader, root
    except RecursionError:
        raise UsageError(f"{shown}: nested too deeply", fix="give a YAML file") from None
    except yaml.MarkedYAMLError as error:
        raise not_yaml(error, text, shown) from None
    finally:
        loader.dispose()


def _from_root(loader: _Loader, root: yaml.Node | None, shown: str) -> Iterable[ParsedValue]:
    if root is None or root.tag == NULL_TAG:
        return
    for key, node in _pairs(root, shown, "the file"):
        section = key.value
        if section not in sections():
            near = did_you_mean(section, sections(), f"known: {', '.join(sections())}")
            fix = f"{section} belongs under train:" if normalise(section) in vocabulary() else near
            raise UsageError(f"{shown}:{_line(key)}: unknown section {section}", fix=fix)
        if section in OF_RENDERERS or node.tag == NULL_TAG:
            continue
        if section == "data":
            source = f"{shown}:{_line(key)}"
            mix = _mixture(loader, node, shown)
            yield ParsedValue(name="mix", value=mix, spelling="data", source=source, where=f"{source}: data")
            continue
        in_short = section == "zero" and isinstance(node, yaml.ScalarNode)  # zero: 3
        stage = [(yaml.ScalarNode(node.tag, "stage", key.start_mark), node)]
        for name, value in stage if in_short else _pairs(node, shown, f"{section}:"):
            given = _from_pair(loader, name, value, section, shown)
            if given is not None:
                yield given


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _pairs(node: yaml.Node, shown: str, what: str) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
    """The keys and values of a mapping, refused when it is none or a key is doubled."""
    if not isinstance(node, yaml.MappingNode):
        fix = "write KEY: VALUE, one a line, below it"
        raise UsageError(f"{shown}:{_line(node)}: {what} does not hold `key: value` lines", fix=fix)
    first: dict[str, int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise UsageError(f"{shown}:{_line(key)}: a key must be one word")
        name = normalise(key.value)
        if name in first:
            raise UsageError(f"{shown}:{_line(key)}: {key.value} is given twice, first in line {first[name]}")
        first[name] = _line(key)
    return list(node.value)


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
        unknown = f"{source}: unknown key {section}.{key.value}"
        raise of_others or UsageError(unknown, fix=did_you_mean(name, keys, listed))
    if flag.name == "config":
        raise UsageError(f"{where}: a run file cannot name another", fix="give --config on the command line")
    if node.tag == NULL_TAG and flag.optional:
        return None
    return _given(loader, flag, node, shown, spelling=f"{section}.{name}", source=source, where=where)


def _given(loader: _Loader, flag: RecipeFlag, node: yaml.Node, shown: str, **place: str) -> ParsedValue:
    """The value of a flag; `place` are the fields of ParsedValue that say where it is."""
    scalars = _scalars(node)
    if scalars is not None and (len(scalars) == 1 or flag.kind in ("list", "list|str")):
        return from_words(flag, scalars, **place)
    return from_data(flag, _data(loader, flag, node, shown), **place)


def read_mixture(value: Any, cwd: Path) -> dict[str, Any]:
    """The mixture (see `dsrun.recipe.mixture`) of a value of --mix: the name of a YAML file, or its content.

    Raises UsageError, with file and line, for an unknown key, a value that its flag does not take, and sets that do not
    make a mixture."""
    shown = value if isinstance(value, str) else "--mix"
    text = yaml_text(cwd / value, value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    with _composed(text, shown) as (loader, root):
        return _mixture(loader, root, shown)


def _mixture(loader: _Loader, node: yaml.Node | None, shown: str) -> dict[str, Any]:
    found: dict[str, yaml.Node] = {}
    for key, value in [] if node is None or node.tag == NULL_TAG else _pairs(node, shown, "the mixture"):
        name = normalise(key.value)
        if name not in ("sets", TEMPERATURE.name):
            fix = f"{key.value} belongs under the name of a set, below sets:" if name in set_keys() else None
            near = did_you_mean(name, ("sets", TEMPERATURE.name), f"known: sets, {TEMPERATURE.name}")
            raise UsageError(f"{shown}:{_line(key)}: unknown key {key.value} of a mixture", fix=fix or near)
        if value.tag != NULL_TAG:
            found[name] = value
    pairs = _pairs(found["sets"], shown, "sets:") if "sets" in found else []
    if not pairs:
        raise UsageError(f"{shown}: a mixture needs sets", fix="write sets: {NAME: {train_file: FILE}, …}")
    sets = {key.value: _set(loader, key, value, shown) for key, value in pairs}
    mix: dict[str, Any] = {"sets": sets}
    if (node := found.get(TEMPERATURE.name)) is not None:
        mix = {TEMPERATURE.name: _set_value(loader, TEMPERATURE, node, shown, TEMPERATURE.name), **mix}
    check_sets(sets, mix.get(TEMPERATURE.name), {key.value: f"{shown}:{_line(key)}" for key, _ in pairs})
    return mix


def _set(loader: _Loader, key: yaml.ScalarNode, node: yaml.Node, shown: str) -> dict[str, Any]:
    """The options of a set by their canonical names."""
    if not NAME.fullmatch(key.value):
        what = f"{shown}:{_line(key)}: {key.value!r} is not a valid name of a set"
        raise UsageError(what, fix="use letters, digits, _, - and .")
    options: dict[str, Any] = {}
    for each, value in _pairs(node, shown, f"set {key.value}"):
        name = normalise(each.value)
        flag = set_keys().get(name)
        if flag is None:
            fix = "it is the same for all sets: under train:, or on the command line" if name in vocabulary() else None
            near = did_you_mean(name, set_keys(), "docs/data.md lists the keys of a set")
            raise UsageError(f"{shown}:{_line(each)}: unknown key {each.value} of set {key.value}", fix=fix or near)
        if flag.name in options:
            raise UsageError(f"{shown}:{_line(each)}: set {key.value} has {flag.name} twice", fix="give it once")
        if value.tag != NULL_TAG:
            options[flag.name] = _set_value(loader, flag, value, shown, f"{key.value}.{each.value}")
    return options


def _set_value(loader: _Loader, flag: RecipeFlag, node: yaml.Node, shown: str, name: str) -> Any:
    source = f"{shown}:{_line(node)}"
    given = _given(loader, flag, node, shown, spelling=name, source=source, where=f"{source}: {name}")
    check_value(flag.name, given.value, given.where)
    return given.value


def _scalars(node: yaml.Node) -> list[str] | None:
    """The text of a scalar, or of a list of scalars, as it stands in the file; None for anything else."""
    if isinstance(node, yaml.ScalarNode):
        return [node.value]
    if isinstance(node, yaml.SequenceNode) and all(isinstance(each, yaml.ScalarNode) for each in node.value):
        return [each.value for each in node.value]
    return None


def _data(loader: _Loader, flag: RecipeFlag, node: yaml.Node, shown: str) -> Any:
    """A mapping or a nested list as Python values; the values of KEY=VALUE flags stay as they are written."""
    _check_doubles(node, shown)
    if isinstance(node, yaml.MappingNode) and flag.metavar == "KEY=VALUE":
        return {
            key.value: each.value if isinstance(each, yaml.ScalarNode) else json.dumps(loader.construct_document(each))
            for key, each in node.value
        }
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
