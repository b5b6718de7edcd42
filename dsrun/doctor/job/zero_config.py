"""DeepSpeed's JSON of a job, and what follows from it, as the training process will have it."""

from typing import Any

from dsrun.doctor.machine_facts import DoctorTarget
from dsrun.errors import DsrunError
from dsrun.recipe.deepspeed_file import as_object, read_text
from dsrun.recipe.flags import ZERO_STAGE
from dsrun.recipe.recipe import phases
from dsrun.zero.generate.config import config_of_flags
from dsrun.zero.ops import required_ops


def config_of(target: DoctorTarget) -> dict[str, Any] | None:
    """The user's own JSON, or the one that the flags ask for; None for plain DDP, for --zero auto, and where the file
    cannot be read, which another check reports."""
    recipe = target.recipe
    if recipe is None:
        return None
    own = recipe.hf.get("deepspeed")
    if own is not None:
        try:
            return own if isinstance(own, dict) else as_object(read_text(target.cwd / own, str(own)), str(own))
        except DsrunError:
            return None
    spec = recipe.spec
    if spec.zero == "auto":
        return None
    stage = ZERO_STAGE if spec.zero is None else int(spec.zero)
    try:
        return config_of_flags(
            stage, offload=spec.offload, optim=recipe.hf.get("optim"), options=spec, hidden_size=None
        )
    except DsrunError:
        return None


def ops_of(target: DoctorTarget) -> list[str]:
    """DeepSpeed's compiled operations that the job loads, by the names of build/ops.toml."""
    config = config_of(target)
    if config is None or target.recipe is None:
        return []
    names = {"CPUAdamBuilder": "cpu_adam", "FusedAdamBuilder": "fused_adam", "AsyncIOBuilder": "async_io"}
    return [names[name] for name in required_ops(config, training="train" in phases(target.recipe))]
