"""Errors in the words of a TOML file: a table of rows for each group.

`message` and `fix` are filled with the names of the caller; `error` is the class of dsrun/errors.py where it is not
UsageError; `cause` a code of docs/diagnose.md; `when`, where the condition stands there too, a Python expression."""

from typing import Any

from dsrun import errors
from dsrun.datafiles import evaluate, toml_beside
from dsrun.messages import with_singular


class Refusals:
    """Those of the TOML file `name` beside a module, given by its `__file__`; by default that of its name."""

    def __init__(self, module: str, name: str | None = None) -> None:
        self._file = (module, name)

    def error(self, key: str, /, **names: Any) -> errors.DsrunError:
        """The error of a row, `group.name`."""
        group, _, name = key.partition(".")
        return self._filled(toml_beside(*self._file)[group][name], names)

    def check(self, group: str, /, **names: Any) -> None:
        """Raise the error of the first row of a group whose condition holds."""
        for row in toml_beside(*self._file)[group].values():
            if evaluate(row["when"], names):
                raise self._filled(row, names)

    @staticmethod
    def _filled(row: dict[str, str], names: dict[str, Any]) -> errors.DsrunError:
        kind: type[errors.DsrunError] = getattr(errors, row.get("error", "UsageError"))

        def filled(text: str) -> str:
            return text.format_map(names)

        fix = filled(with_singular(row["fix"], filled)) if "fix" in row else None
        return kind(filled(with_singular(row["message"], filled)), fix=fix, cause=row.get("cause"))
