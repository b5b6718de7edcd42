"""`python -m tests.kubernetes [PYTEST ARGUMENTS]`: install what the tests in pods need, where root may, and run them.

Exit code 4 when something is missing that cannot be installed.
"""

from __future__ import annotations

import sys

from tests.slurm.__main__ import main
from tests.slurm.packages import FOR_PODS

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], suite="tests/kubernetes", needed=FOR_PODS))
