"""Regular expressions that are data: those of a TOML file beside the module that uses them, which explains them."""

import re
from collections.abc import Mapping

from dsrun.datafiles import toml_beside

_PART = re.compile(r"<<(\w+)>>")


def patterns_beside(
    module: str, name: str | None = None, *, table: str = "patterns", flags: int = 0
) -> dict[str, re.Pattern[str]]:
    """Those of a table; <<name>> in one stands for the text of that name in the table `parts`, which may have more."""
    found = toml_beside(module, name)
    return {key: re.compile(with_parts(text, found.get("parts", {})), flags) for key, text in found[table].items()}


def with_parts(text: str, parts: Mapping[str, str]) -> str:
    return _PART.sub(lambda found: with_parts(parts[found[1]], parts), text)
