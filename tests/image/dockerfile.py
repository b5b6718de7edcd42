"""A Dockerfile's stages and steps, and the variables in them."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

from dockerfile_parse import DockerfileParser
from dockerfile_parse.util import WordSplitter


@dataclass
class Stage:
    """`FROM base AS name`, and its instructions with what follows each word."""

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)


def read_stages(text: str, build_args: Mapping[str, str]) -> list[Stage]:
    """Its stages in order; `build_args` are those of the command line."""
    stages: list[Stage] = []
    args: dict[str, str] = {}
    for step in DockerfileParser(fileobj=BytesIO(text.encode())).structure:
        word, value = step["instruction"], step["value"]
        if word == "COMMENT":
            continue
        if word == "FROM":
            base, _, name = expand(value, args).partition(" AS ")
            stages.append(Stage(name or str(len(stages)), base))
        elif stages:
            stages[-1].steps.append((word, value))
        elif word == "ARG":
            args |= declared(value, build_args, args)
    return stages


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`$NAME` and `${NAME}` replaced, quotes removed; an unknown name is empty."""
    return "".join(WordSplitter(text, args={}, envs=dict(variables)).split(maxsplit=0))


def pairs(text: str, variables: Mapping[str, str]) -> dict[str, str]:
    """`NAME=value NAME="value"` of ENV and LABEL."""
    words = WordSplitter(text, args={}, envs=dict(variables)).split()
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def declared(text: str, build_args: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """What `ARG text` defines: the value of the command line, else the default; nothing where there is neither."""
    name, has_default, default = text.partition("=")
    if name in build_args:
        return {name: build_args[name]}
    return {name: expand(default, variables)} if has_default else {}


def words_of(text: str) -> list[str]:
    """The exec form of ENTRYPOINT and CMD. Raises ValueError for the shell form, under which signals go astray."""
    return [str(word) for word in json.loads(text)]


def context_files(context: Path, patterns: Iterable[str]) -> list[Path]:
    """The files of a folder that .dockerignore leaves, relative to it: the last pattern that fits decides."""
    rules = [line.strip() for line in patterns if line.strip() and not line.startswith("#")]
    kept = []
    for path in _below(context, context, rules):
        kept.append(path)
    return sorted(kept)


def _below(folder: Path, context: Path, rules: list[str]) -> Iterable[Path]:
    for entry in folder.iterdir():
        path = entry.relative_to(context)
        ignored = _ignored(path, rules)
        # Nothing below an ignored folder comes back by these patterns, as each names a path's first part.
        if ignored:
            continue
        if entry.is_dir() and not entry.is_symlink():
            yield from _below(entry, context, rules)
        else:
            yield path


def _ignored(path: Path, rules: list[str]) -> bool:
    ignored = False
    for rule in rules:
        pattern = re.compile(fnmatch.translate(rule.removeprefix("!").replace("**/", "*")))
        # A pattern that fits a folder fits all that is in it.
        if any(pattern.match(str(each)) for each in (path, *path.parents)):
            ignored = not rule.startswith("!")
    return ignored
