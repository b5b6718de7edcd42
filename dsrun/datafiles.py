"""Facts as data: the folders shipped beside the package (`ds_configs`, `slurm`, `build`), and dsrun's own TOML files.

Some of these hold conditions and sizes as Python expressions.

The options of every command come through here. It does without pathlib, whose import takes a tenth of `--help`."""

import marshal
import os
import re
import sys
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from dsrun.errors import MissingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


def data_folder(name: str) -> "Path":
    """The shipped folder `name`: inside an installed wheel, else in the checkout of an editable install."""
    from pathlib import Path

    package = Path(__file__).resolve().parent
    for candidate in (package / "_data" / name, package.parent / name):
        if candidate.is_dir():
            return candidate
    raise MissingError(
        f"dsrun was installed without its folder {name!r}", fix="reinstall: pip install --force-reinstall dsrun"
    )


def toml_beside(module: str, name: str | None = None) -> dict[str, Any]:
    """The content of the TOML file `name` beside a module, given by its `__file__`; by default that of its name."""
    return read_toml(os.path.join(os.path.dirname(module), name) if name else os.path.splitext(module)[0] + ".toml")


def json_beside(module: str, name: str) -> Any:
    """The content of a JSON file beside a module."""
    import json  # not for help

    return kept(os.path.join(os.path.dirname(module), name), json.loads)


def toml_folder(module: str, name: str) -> dict[str, Any]:
    """The tables of all TOML files in a folder beside a module."""
    folder = os.path.join(os.path.dirname(module), name)
    files = sorted(file for file in os.listdir(folder) if file.endswith(".toml"))
    return {key: value for file in files for key, value in read_toml(os.path.join(folder, file)).items()}


def read_toml(file: "str | Path") -> dict[str, Any]:
    """The content of a TOML file of dsrun. Its parser is written in Python, and takes as long as click's import."""
    return dict(kept(file, _parsed))


def _parsed(text: bytes) -> dict[str, Any]:
    import tomllib  # only where nothing is kept

    return tomllib.loads(text.decode("utf-8"))


def kept(file: "str | Path", make: "Callable[[bytes], Any]", version: str = "") -> Any:
    """What `make` makes of the content of a file of dsrun, a value that marshal knows.

    As Python does with modules, the result is kept in `__pycache__` until the file has another size or time, or
    `version`, what else it follows from, is another. Where that folder cannot be written, or PYTHONDONTWRITEBYTECODE is
    set, it is made each time."""
    state = (*_state(file), version)
    place = _place(os.path.abspath(file))
    # Whatever is wrong with what is kept, the file itself is there.
    with suppress(OSError, ValueError, EOFError, TypeError), open(place, "rb") as opened:
        of, made = marshal.load(opened)
        if of == state:
            return made
    with open(file, "rb") as opened:
        made = make(opened.read())
    if not sys.dont_write_bytecode:
        with suppress(OSError, ValueError):  # the latter for a date, which marshal does not know
            _keep(place, marshal.dumps((state, made)))
    return made


def _state(file: "str | Path") -> tuple[int, int]:
    """What tells two contents of a file apart."""
    found = os.stat(file)
    return found.st_mtime_ns, found.st_size


def _place(file: str) -> str:
    """Where the result for a file is kept: where Python would keep that of a module."""
    folder, name = os.path.split(file)
    folder = sys.pycache_prefix + folder if sys.pycache_prefix else os.path.join(folder, "__pycache__")
    return os.path.join(folder, f"{name}.{sys.implementation.cache_tag}")


def _keep(place: str, content: bytes) -> None:
    """Write it by a rename, as several processes may do this at once."""
    os.makedirs(os.path.dirname(place), exist_ok=True)
    partial = f"{place}.{os.getpid()}"
    with open(partial, "wb") as opened:
        opened.write(content)
    os.replace(partial, place)


@cache
def _compiled(expression: str) -> Any:
    return compile(expression, "<toml>", "eval")


def evaluate(expression: str, names: "Mapping[str, Any]") -> Any:
    """The value of an expression of one of dsrun's own files; of Python's functions it knows min and max alone."""
    return eval(_compiled(expression), {"__builtins__": {"min": min, "max": max}}, names)


class SubjectNames(dict[str, Any]):
    """Names for expressions about a subject: `terms`, which are expressions themselves, and its attributes."""

    def __init__(self, subject: Any, terms: "Mapping[str, str]", **names: Any) -> None:
        super().__init__(names)
        self._subject = subject
        self._terms = terms

    def __missing__(self, name: str) -> Any:
        if name in self._terms:
            return self.setdefault(name, evaluate(self._terms[name], self))
        try:
            return getattr(self._subject, name)
        except AttributeError:
            raise KeyError(name) from None


_PART = re.compile(r"<<(\w+)>>")


def patterns_beside(
    module: str, name: str | None = None, *, table: str = "patterns", flags: int = 0
) -> dict[str, re.Pattern[str]]:
    """The regular expressions of a table of a TOML file beside a module.

    <<name>> in one stands for the text of that name in the table `parts`, which may have more."""
    found = toml_beside(module, name)
    return {key: re.compile(with_parts(text, found.get("parts", {})), flags) for key, text in found[table].items()}


def with_parts(text: str, parts: "Mapping[str, str]") -> str:
    """`text` with what its <<name>>s stand for."""
    return _PART.sub(lambda found: with_parts(parts[found[1]], parts), text)
