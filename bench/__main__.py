"""`python -m bench [NAME …]`: run those benchmarks, or all but the long ones. Exit code 1 if a limit is exceeded.

`python -m bench diagnose --accuracy [FOLDER]`: how often a diagnosis is right; see diagnose_accuracy.py.
`python -m bench lint [--configs N] [--seed N]`: whether the linter and DeepSpeed's engines agree; see lint.py.
"""

from __future__ import annotations

import sys
from importlib import import_module

# In less than twenty minutes on two cores.
BENCHMARKS = ("startup", "diagnose", "slurm", "loss", "ladder", "plan")
# Only when named: each takes minutes to more than an hour.
LONG = (
    "first_step", "tokenise", "prepared", "packed_rows", "memory", "saving", "wheel", "recovery", "scale", "watching",
    "straggler", "translation", "lint",
)  # fmt: skip


def main(names: list[str]) -> int:
    """Run them one after another; 2 for a name that is none of them."""
    if names[:2] == ["diagnose", "--accuracy"] and len(names) <= 3:
        return int(import_module("bench.diagnose_accuracy").main(names[2:]))
    if names[:1] == ["lint"]:
        return 0 if import_module("bench.lint").main(names[1:]) else 1
    unknown = [name for name in names if name not in BENCHMARKS + LONG]
    if unknown:
        print(f"error: no benchmark {unknown[0]!r} (there are: {', '.join(BENCHMARKS + LONG)})", file=sys.stderr)
        return 2
    held = True
    for name in names or BENCHMARKS:
        print(f"== {name}")
        held &= import_module(f"bench.{name}").main()
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
