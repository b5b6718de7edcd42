"""The generated part of docs/diagnose.md: every cause, from rules.toml.

`python -m dsrun.diagnosis.reference` prints it; with the argument docs/diagnose.md it replaces the text between the
markers of that file.
"""

from __future__ import annotations

import sys

from dsrun.diagnosis.rules import causes
from dsrun.docpage import GeneratedPart, table

_THEN = {
    "restart": "starts again",
    "shrink": "starts again with less memory",
    "resume": "ends with 75",
    "stop": "stops",
}


def markdown() -> str:
    """One row a cause: code, what it means, what helps, and what the supervisor does."""
    rows = (
        (f"`{cause.code}`", f"{cause.title}: {cause.means}", cause.fix, _THEN[cause.then])
        for cause in causes().values()
        if cause.level != "info"
    )
    return table(("cause", "what it means", "what helps", "the supervisor"), rows) + "\n"


PART = GeneratedPart("dsrun.diagnosis.reference", markdown)


if __name__ == "__main__":
    PART.main(sys.argv[1:])
