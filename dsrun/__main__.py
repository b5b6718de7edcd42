"""The program dsrun, as a console script and as `python -m dsrun`."""

import sys

from dsrun.system.process.interrupt import end_at_ctrl_c, raise_at_ctrl_c


def main() -> None:
    """Run the command that sys.argv names."""
    from dsrun.cli.main import main as run

    raise_at_ctrl_c()
    run()


# Not where somebody only imports this.
if __name__ == "__main__" or sys.argv[0].rpartition("/")[2] == "dsrun":
    end_at_ctrl_c()

if __name__ == "__main__":
    main()
