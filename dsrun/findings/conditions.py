"""Findings whose conditions are data: the rows of conditions.toml beside the modules of a package.

A row has the `key` of its finding and, where it is not always one, `when` it is: a Python expression of the names that
the caller gives, and of the file's `terms`, which are expressions themselves. So are `level`, `fix`, and the `values`
of those words of its texts that are not such names.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from dsrun.datafiles import SubjectNames, evaluate, toml_beside
from dsrun.findings.finding import Finding
from dsrun.findings.texts import finding_of, text_of, text_table
from dsrun.messages import PLACEHOLDER

_FUNCTIONS = {"int": int, "len": len, "text_of": text_of}


def findings_where(module: str, group: str, /, **names: Any) -> Iterator[Finding]:
    """Those of all rows of a group that hold, beside a module given by its `__file__`."""
    table = toml_beside(module, "conditions.toml")
    known = SubjectNames(None, table.get("terms", {}), **_FUNCTIONS, **names)
    for row in table[group]:
        if evaluate(row.get("when", "True"), known):
            texts = text_table(row["key"])
            words = {found[1] for name in ("message", "fix") for found in PLACEHOLDER.finditer(texts.get(name, ""))}
            given = row.get("values", {})
            values = {word: evaluate(given.get(word, word), known) for word in words}
            level, fix = (evaluate(row.get(name, "None"), known) for name in ("level", "fix"))
            yield finding_of(row["key"], level=level, fix=fix, **values)


def first_where(module: str, group: str, /, **names: Any) -> Iterator[Finding]:
    """That of the first row of a group that holds, if any does."""
    return islice(findings_where(module, group, **names), 1)
