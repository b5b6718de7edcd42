"""How long `dsrun --help` and `dsrun train --help` take, against bare click and `accelerate --help`."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.timing import interleaved, ratio_line

CLICK = "python -c 'import click'"
ACCELERATE = "accelerate --help"
LIMIT = 3.0
"""`dsrun --help` has to stay below this many times the interpreter plus click."""


def main() -> bool:
    """Print the ratios; whether the limit holds."""
    # As installed console scripts do it, whether or not this environment has the script.
    run_main = "import sys; from dsrun.cli.main import main; sys.argv = ['dsrun', *sys.argv[1:]]; main()"
    commands = {
        CLICK: [sys.executable, "-c", "import click"],
        "dsrun --help": [sys.executable, "-c", run_main, "--help"],
        "dsrun train --help": [sys.executable, "-c", run_main, "train", "--help"],
        ACCELERATE: [str(Path(sys.executable).with_name("accelerate")), "--help"],
    }
    times = interleaved(commands)
    for name in ("dsrun --help", "dsrun train --help"):
        print(ratio_line(times, name, CLICK))
        print(ratio_line(times, name, ACCELERATE))
    holds = times["dsrun --help"] < LIMIT * times[CLICK]
    print(f"dsrun --help stays below {LIMIT:g} × bare click: {'yes' if holds else 'NO'}")
    return holds
