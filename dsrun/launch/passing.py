"""Which variables go along to the other machines of a hostfile. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dsrun.errors import UsageError

ENVIRONMENT_FILE = ".deepspeed_env"
"""NAME=VALUE lines in the working folder or in the home folder, as DeepSpeed's own launcher reads them."""

# What a login shell on the other machine cannot know. On ssh's command line everybody there could read them, so that
# only those without which Python does not start stand on it.
ON_THE_COMMAND_LINE = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME")
_NAMES = frozenset(
    {
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "LANG",
        "LC_ALL",
        "COLUMNS",
        "NO_COLOR",
        "PYTHONUNBUFFERED",
        "PYTHONWARNINGS",
    }
    | {"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "DS_ACCELERATOR"}
    | {
        "CUDA_HOME",
        "CUDA_DEVICE_ORDER",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "MAX_JOBS",
        "CC",
        "CXX",
    }
)
_PREFIXES = (
    "NCCL_", "GLOO_", "TORCH", "PYTORCH_", "TRITON_", "UCX_", "FI_", "OMP_", "MKL_", "KMP_", "CUBLAS_", "DEEPSPEED_",
    "DS_", "DSRUN_", "HF_", "HUGGING", "TRANSFORMERS_", "TOKENIZERS_", "ACCELERATE_", "WANDB_", "MLFLOW_", "COMET_",
    "DATASETS_",
)  # fmt: skip
# Of this machine, or of the supervisor above: another one makes its own.
_OWN = frozenset(
    {
        "DSRUN_FAMILY",
        "DSRUN_HEARTBEAT",
        "DSRUN_FAILURES",
        "DSRUN_STOP_FILE",
        "DSRUN_CONSOLE",
        "DSRUN_TERMINAL",
    }
    | {"DSRUN_ATTEMPT", "DSRUN_SAVE_ON"}
)
_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)")


def passed_on(environ: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """The variables of `environ` that matter to training, and `more` from environment files, which win.

    CUDA_VISIBLE_DEVICES is not among them: it numbers the GPUs of this machine.
    """
    found = {name: value for name, value in environ.items() if _matters(name)}
    return found | dict(more)


def _matters(name: str) -> bool:
    if name in _OWN:
        return False
    return name in _NAMES or name in ON_THE_COMMAND_LINE or name.startswith(_PREFIXES)


def parse_environment_file(text: str, where: str) -> dict[str, str]:
    """NAME=VALUE lines; `#` begins a remark, quotes around a value are taken off. Raises UsageError with the line."""
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        if not words or words.startswith("#"):
            continue
        match = _LINE.fullmatch(words)
        if not match:
            raise UsageError(f"{where}:{number}: {words!r} is not NAME=VALUE", fix="one variable a line")
        name, value = match[1], match[2].strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        found[name] = value
    return found
