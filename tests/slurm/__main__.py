"""`python -m tests.slurm [PYTEST ARGUMENTS]`: install what the tests on SLURM need, where root may, and run them.

Exit code 4 when something is missing that cannot be installed.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.slurm.packages import install, missing, missing_packages


def main(arguments: list[str]) -> int:
    """Run the tests; pytest's exit code, or 4."""
    lacking = missing_packages()
    if lacking and os.geteuid() == 0:
        try:
            install(lacking)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"error: apt-get: {error}", file=sys.stderr)
    if reason := missing():
        print(f"error: the tests on SLURM cannot run: {reason}", file=sys.stderr)
        return 4
    return int(pytest.main(["tests/slurm", *arguments]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
