"""How the tests' own rank programs run: to the end of a rank of dsrun, which Python does not take apart."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import NoReturn

from dsrun.system.process.process_end import end


def run_to_the_end(program: Callable[..., None], *args: str) -> NoReturn:
    """Run it; the process ends with 0, or with 1 and the traceback on stderr."""
    code = 1
    try:
        program(*args)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        end(code)
