"""`python -m dsrun.train.export REQUEST`: the program that `dsrun export` becomes."""

import os
import sys

from dsrun.system.process.interrupt import end_at_ctrl_c, raise_at_ctrl_c
from dsrun.system.process.process_end import end


def main() -> int:
    """Its exit code."""
    end_at_ctrl_c(os.dup(2))
    from dsrun.train.base.console import quiet_console

    product = os.dup(1)
    with quiet_console("export", "loading torch and transformers") as console:
        from dsrun.train.export.export_model import main as export  # loads them

        raise_at_ctrl_c()
        return export(sys.argv[1:], console, product)


if __name__ == "__main__":
    end(main())  # taking torch apart takes seconds
