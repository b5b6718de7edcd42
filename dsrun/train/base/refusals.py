"""What `dsrun train` and `dsrun export` refuse, in the words of refusals.toml.

`raise refusal("long_context.ranks", given=3, ranks=4)` fills the texts of one row; `refuse("convert", …)` looks for the
first row of a group that holds, by its `when`: a Python expression of the same names.
"""

from typing import Any

from dsrun import errors
from dsrun.datafiles import evaluate, toml_beside


def refusal(key: str, /, **names: Any) -> errors.DsrunError:
    """The error of a row, `group.name`."""
    group, _, name = key.partition(".")
    return _filled(toml_beside(__file__)[group][name], names)


def refuse(group: str, /, **names: Any) -> None:
    """Raise the error of the first row of a group whose condition holds."""
    for row in toml_beside(__file__)[group].values():
        if evaluate(row["when"], names):
            raise _filled(row, names)


def _filled(row: dict[str, str], names: dict[str, Any]) -> errors.DsrunError:
    kind: type[errors.DsrunError] = getattr(errors, row.get("error", "UsageError"))
    fix = row["fix"].format_map(names) if "fix" in row else None
    return kind(row["message"].format_map(names), fix=fix, cause=row.get("cause"))
