"""`python -m tests.slurm [PYTEST ARGUMENTS]`: install what the tests on SLURM need, where root may, and run them, or
those of tests/slurm/FILE where that is an argument.

Exit code 4 when something is missing that cannot be installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from tests.slurm.packages import PACKAGES, install, missing, missing_packages


def main(arguments: list[str], *, suite: str = "tests/slurm", needed: Mapping[str, str] = PACKAGES) -> int:
    """Run the tests of a folder, or those of it that are named; pytest's exit code, or 4."""
    lacking = missing_packages(needed)
    if lacking and os.geteuid() == 0:
        try:
            install(lacking)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"error: apt-get: {error}", file=sys.stderr)
    if reason := missing(needed):
        print(f"error: the tests in {suite} cannot run: {reason}", file=sys.stderr)
        return 4
    named = any(each.startswith(f"{suite}/") for each in arguments)
    return int(pytest.main(arguments if named else [suite, *arguments]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
