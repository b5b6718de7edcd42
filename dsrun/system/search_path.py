"""PATH: where the programs lie that this Python's packages start."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def own_programs_first(environ: Mapping[str, str]) -> dict[str, str]:
    """The change to `environ` that puts this Python's own folder on PATH; none where it is on it already.

    torch compiles with the `ninja` it finds on PATH, and a virtual environment that is called by its path is not on
    it: there may be none, or one of another version, with which torch compiles everything again.
    """
    own = str(Path(sys.executable).parent)
    search = environ.get("PATH", os.defpath)
    return {} if own in search.split(os.pathsep) else {"PATH": own + os.pathsep + search}
