"""`python -m dsrun.launch.verdict FOLDER CODE`: the exit code of the worker that failed first, on stdout.

For batch scripts: torch.distributed.run ends with 1 whatever its workers ended with, and srun, which then kills the
other nodes, with 143. CODE is what srun said, and stands where no worker left a word in FOLDER.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from dsrun.launch.failures import first_failure


def main(argv: Sequence[str]) -> int:
    """Print the code, and the worker's one line on stderr."""
    folder, code = Path(argv[0]), int(argv[1])
    first = first_failure(folder)
    if first:
        code = int(first["exit_code"])
        print(f"error: rank {first['rank']}: {first['message']}", file=sys.stderr)
        if first["log"]:
            print(f"       the whole story is in {first['log']}", file=sys.stderr)
    print(code)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
