"""Work in a fork of a process that has done the imports: a crash or a hang there is told, and harms nobody."""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsrun.errors import one_line
from dsrun.system.process.process_end import die_with_parent, end


class ForkFailedError(Exception):
    """A fork gave no result: `how` is "crashed" or "hangs", with what the texts of these want to know."""

    def __init__(self, how: str, **values: Any) -> None:
        super().__init__(how, values)
        self.how, self.values = how, values


def in_fork(program: Callable[[], Any], *, limit_s: float, log: Path) -> Any:
    """What `program` returns in a fork; what it prints goes to the end of `log`. Raises ForkFailedError where it
    raises, dies, or does not end within `limit_s`."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(program, theirs, log, os.getpid()), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(limit_s):
            raise ForkFailedError("hangs", seconds=limit_s)
        error, result = ours.recv()
    except EOFError:
        process.join()
        raise ForkFailedError("crashed", kind="signal", error=str(-(process.exitcode or 0))) from None
    finally:
        process.kill()
        process.join()
        ours.close()
    if error:
        raise ForkFailedError("crashed", kind=error[0], error=error[1])
    return result


def _child(program: Callable[[], Any], answers: Any, log: Path, parent: int) -> None:
    die_with_parent(parent, signal.SIGKILL)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    try:
        answers.send((None, program()))
    except BaseException as error:
        traceback.print_exc()
        answers.send(((type(error).__name__, one_line(error)), None))
    finally:
        end(0)
