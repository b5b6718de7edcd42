"""The GPUs that a rendered job or pod has on each node, and a machine's own, against those that torch sees."""

import errno
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from dsrun.errors import DsrunError, MissingError
from dsrun.launch.refusals import refusal
from dsrun.machine import torch_gpus
from dsrun.machine.gpus import visible_gpus
from dsrun.system import variables
from dsrun.system.host import ROOT, hostname

# Long enough for imports from a slow file system, beside those of all other nodes.
_ANSWER_S = 300


def expected_gpus(environ: Mapping[str, str]) -> int:
    """GPUs that each node of this job must show, of those that CUDA_VISIBLE_DEVICES leaves; 0 for any number."""
    text = environ.get(variables.GPUS, "0")
    if not (text.isascii() and text.isdigit()):
        raise refusal("gpus.number", variable=variables.GPUS, text=text)
    return torch_gpus.wanted(int(text), environ)


def too_few(message: str) -> DsrunError:
    """The error of a node with too few GPUs. A SLURM job script learns of it too: no restart would help."""
    if (folder := os.environ.get(variables.FAILURES)) and "SLURM_JOB_ID" in os.environ:
        with suppress(OSError):
            (Path(folder) / "no-gpus").touch()
    return refusal("gpus.too_few", message=message, variable=variables.GPUS)


def check_driver(shown: int, environ: Mapping[str, str]) -> None:
    """Raise MissingError where the driver shows some GPUs, and fewer than expected. None may be another vendor's."""
    expected = expected_gpus(environ)
    if 0 < shown < expected:
        raise too_few(torch_gpus.too_few(shown, expected, "as NVIDIA's driver says"))


def check_rank(environ: Mapping[str, str], root: Path = ROOT) -> None:
    """Raise MissingError where this rank's torch sees fewer GPUs than the job has, or none on a machine with GPUs."""
    expected = expected_gpus(environ)
    count, words = torch_gpus.torch_gpus()
    if count < expected:
        raise too_few(torch_gpus.too_few(count, expected, words))
    if count or environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in torch_gpus.NO_DEVICES:
        return
    if shown := len(visible_gpus(environ)) or _device_files(root):
        raise refusal("gpus.unseen", host=hostname(), shown=shown, words=words)


def _device_files(root: Path) -> int:
    """The driver's /dev/nvidiaN that this process may open: a batch system fences off those of other jobs."""
    found = 0
    for path in (root / "dev").glob("nvidia*"):
        if re.fullmatch(r"nvidia\d+", path.name):
            try:
                os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
            except OSError as error:
                if error.errno in (errno.EPERM, errno.EACCES):
                    continue
            found += 1
    return found


def check_program(python: str, environ: Mapping[str, str], notify: Callable[[str], None]) -> None:
    """Raise MissingError where the torch of `python`, which runs a user's program, sees too few of the job's GPUs."""
    expected = expected_gpus(environ)
    if not expected:
        return
    program = Path(torch_gpus.__file__).read_text(encoding="utf-8")
    try:
        done = subprocess.run(
            [python, "-c", program, str(expected)], env=dict(environ), stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, errors="replace", timeout=_ANSWER_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        notify(f"whether torch sees the {expected} GPUs is not known: {error}")
        return
    last = done.stderr.strip().rpartition("\n")[2]
    if done.returncode == MissingError.exit_code:
        raise too_few(last)
    if done.returncode:
        notify(f"whether torch sees the {expected} GPUs is not known: {last or f'exit code {done.returncode}'}")
