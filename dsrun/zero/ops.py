"""Which of DeepSpeed's compiled operations a configuration loads, and the folder that they are compiled into."""

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsrun.system.host import cpu_flags, versions

ADAM = ("adam", "adamw")


def stage_of(config: dict[str, Any] | None) -> int:
    """The ZeRO stage of DeepSpeed's JSON; 0 for none."""
    return int((config or {}).get("zero_optimization", {}).get("stage", 0))


def required_ops(config: dict[str, Any], *, training: bool = True) -> list[str]:
    """The op builders that this configuration makes DeepSpeed load, by class name. A run that only evaluates has no
    optimizer, and an engine under ZeRO-3 alone."""
    zero = config.get("zero_optimization", {})
    if not training:
        on_drives = zero.get("offload_param", {}).get("device") == "nvme"
        return ["AsyncIOBuilder"] if on_drives and stage_of(config) == 3 else []
    places = [zero.get(block, {}).get("device") for block in ("offload_optimizer", "offload_param")]
    optimizer = str(config.get("optimizer", {}).get("type", "")).lower()
    ops = []
    if places[0] in ("cpu", "nvme") and optimizer in ADAM:
        ops.append("CPUAdamBuilder")
    elif optimizer in ADAM and not config["optimizer"].get("params", {}).get("torch_adam"):
        ops.append("FusedAdamBuilder")
    if "nvme" in places:
        ops.append("AsyncIOBuilder")
    return ops


def extension_cache(environ: Mapping[str, str], prefix: str = sys.prefix) -> Path:
    """The folder of compiled ops: TORCH_EXTENSIONS_DIR, else one in the user's cache for this environment alone, whose
    headers ninja's build files name: shared, each run of the other environment would compile everything again. It is
    also that of the processor, for which DeepSpeed compiles (-march=native): several kinds may share a home folder."""
    given = environ.get("TORCH_EXTENSIONS_DIR")
    if given:
        return Path(given)
    facts = [prefix, sys.implementation.cache_tag, versions(("torch", "deepspeed")), sorted(cpu_flags())]
    key = hashlib.sha256(repr(facts).encode()).hexdigest()[:12]
    root = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute()
    return root / "dsrun" / "torch_extensions" / key
