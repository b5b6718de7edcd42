"""`python -m dsrun.train.export REQUEST`: the program that `dsrun export` becomes."""

import sys

from dsrun.system.process.interrupt import end_at_ctrl_c, raise_at_ctrl_c


def main() -> int:
    """Its exit code."""
    end_at_ctrl_c()
    from dsrun.train.export.export_model import main as export  # loads torch, transformers and more

    raise_at_ctrl_c()
    return export(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
