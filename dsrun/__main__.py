"""The program dsrun, as a console script and as `python -m dsrun`. Ctrl-C is one line also while it still loads."""

import os
import signal
import sys


def _interrupted(*_: object) -> None:
    # An exception might be swallowed by whatever is being imported, or leave it half loaded. A terminal shows ^C.
    os.write(2, b"\nerror: interrupted\n" if os.isatty(2) else b"error: interrupted\n")
    os._exit(130)


def main() -> None:
    """Run the command that sys.argv names."""
    from dsrun.cli.main import main as run

    if signal.getsignal(signal.SIGINT) is _interrupted:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


# Not where somebody only imports this, or in a shell's background job, which ignores it.
_is_program = __name__ == "__main__" or sys.argv[0].rpartition("/")[2] == "dsrun"
if _is_program and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _interrupted)

if __name__ == "__main__":
    main()
