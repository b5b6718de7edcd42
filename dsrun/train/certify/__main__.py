"""`python -m dsrun.train.certify REQUEST SCRATCH`: the program of `dsrun certify`. Its stdout is the result as JSON.

Imports are done once; the small model, each group of runs and each check are in forks of this process."""

import json
import os
import sys
import time
from functools import partial
from pathlib import Path

from dsrun.errors import DsrunError
from dsrun.system.imports import deferred, without_collections
from dsrun.system.process.interrupt import end_at_ctrl_c
from dsrun.system.process.process_end import end
from dsrun.system.terminal.stderr import print_error

_say = partial(print, file=sys.stderr, flush=True)
_LIBRARIES = "loading torch, transformers and DeepSpeed"


def main(text: str, folder: str) -> int:
    """Its exit code. `folder` is empty, and whoever started this program removes it."""
    end_at_ctrl_c(os.dup(2))
    began = time.monotonic()
    product = os.dup(1)
    os.dup2(2, 1)  # libraries print, also when they are imported; the result alone is for stdout
    _say(_LIBRARIES)
    with without_collections(), deferred("torchao", "bitsandbytes"):
        from dsrun.certify.request import CertifyRequest
        from dsrun.train.certify.certify import certify
    request = CertifyRequest.from_json(text)
    try:
        found = certify(request, Path(folder), notify=_say)
    except DsrunError as error:
        print_error(str(error))
        return error.exit_code
    found["seconds"] = round(time.monotonic() - began, 1)
    found["cpu_seconds"] = round(sum(os.times()[:4]), 1)
    os.write(product, json.dumps(found).encode() + b"\n")
    return 0


if __name__ == "__main__":
    end(main(*sys.argv[1:]))
