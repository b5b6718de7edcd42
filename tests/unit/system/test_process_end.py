"""A process that ends itself: its output is flushed, its exit code kept, and nothing of it keeps running."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BEGIN = "import atexit, sys, threading; from dsrun.system.process.process_end import end; "


def ended(program: str, **more) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", BEGIN + program],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        **more,
    )


@pytest.mark.parametrize("code", [0, 1, 75])
def test_process_end_flushes_output_only(code):
    """What was printed is written, and nothing else runs: no exit handler, no thread."""
    done = ended(
        "atexit.register(print, 'taken apart'); threading.Thread(target=threading.Event().wait).start(); "
        f"print('done'); print('why', file=sys.stderr, end=''); end({code})",
        stdout=subprocess.PIPE,
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "done\n", "why")


def test_process_end_keeps_exit_code_on_full_stream():
    """A stream that nobody reads does not change the exit code."""
    with Path("/dev/full").open("w") as full:
        assert (
            ended(
                "sys.stdout.write('done'); end(75)", stdout=full, env={**os.environ, "PYTHONUNBUFFERED": ""}
            ).returncode
            == 75
        )
