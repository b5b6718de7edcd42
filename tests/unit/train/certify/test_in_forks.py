"""Work in forks: what it returns, raises, prints, and how it may die or hang."""

from __future__ import annotations

import os
import select
import signal
import time

import pytest

from dsrun.train.certify.certify import ForkFailedError, in_fork


def fails():
    raise KeyError("a\nb")


def test_result_comes_back_and_output_goes_to_the_log(tmp_path):
    def program():
        os.write(1, b"said\n")
        return {"pid": os.getpid()}

    found = in_fork(program, limit_s=60, log=tmp_path / "log")
    assert found["pid"] != os.getpid()
    assert (tmp_path / "log").read_text() == "said\n"


@pytest.mark.parametrize(
    ("program", "how", "values"),
    [
        (fails, "crashed", {"kind": "KeyError"}),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "crashed", {"kind": "signal", "error": "9"}),
        (lambda: time.sleep(100), "hangs", {"seconds": 0.2}),
    ],
)
def test_failure_of_a_fork_is_told(program, how, values, tmp_path):
    with pytest.raises(ForkFailedError) as raised:
        in_fork(program, limit_s=0.2 if how == "hangs" else 60, log=tmp_path / "log")
    assert raised.value.how == how
    assert values.items() <= raised.value.values.items()


def test_fork_ends_with_a_process_that_is_killed(tmp_path):
    """It holds the other end of a pipe as long as it lives."""
    read, write = os.pipe()
    parent = os.fork()
    if parent == 0:
        os.close(read)
        in_fork(lambda: (os.write(write, b"begun"), time.sleep(100)), limit_s=100, log=tmp_path / "log")
        os._exit(0)
    os.close(write)
    assert os.read(read, 5) == b"begun"
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert select.select([read], [], [], 30)[0]
    assert os.read(read, 5) == b""
    os.close(read)
