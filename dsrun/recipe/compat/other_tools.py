"""Flags and keys of other tools, answered with ours: see other_tools.toml."""

from functools import cache

from dsrun.datafiles import toml_beside
from dsrun.errors import UsageError


@cache
def other_tools() -> dict[str, tuple[str, str]]:
    """The tool and what to write instead, by the name of its flag with underscores."""
    rows = toml_beside(__file__)
    return {name: (tool, advice) for tool, flags in rows.items() for name, advice in flags.items()}


def answer(where: str, name: str) -> UsageError | None:
    """The error for a flag that dsrun does not have and another tool has; None for any other name. `where` is how the
    user wrote it."""
    found = other_tools().get(name)
    return UsageError(f"{where} is not a flag of dsrun, but of {found[0]}", fix=found[1]) if found else None
