"""DeepSpeed for this run: its configuration, its compiled ops, the precision, and proof that it is really in charge."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from dsrun.errors import MissingError, ToolError, UsageError
from dsrun.model_families import family_of, overflow_in_fp16
from dsrun.recipe.deepspeed_file import as_object, read_text
from dsrun.recipe.flags import ZERO_STAGE
from dsrun.recipe.spec import TrainSpec
from dsrun.system.display import masked_values
from dsrun.system.host import own_programs_first
from dsrun.train.distributed import World, acquire_lock
from dsrun.zero.generate.config import generate
from dsrun.zero.generate.spec import from_offload

logger = logging.getLogger(__name__)

ADAM = ("adam", "adamw")
ADAMW_OF_TORCH = ("adamw_torch", "adamw_torch_fused")
"""What DeepSpeed's CPU Adam computes too; those of the other "adamw_" names keep other states."""

# Loading operations that are compiled already takes less, also when all ranks of a machine take turns.
PATIENCE_SECONDS = 20


def configuration(spec: TrainSpec, given: dict[str, Any], hidden_size: int | None) -> dict[str, Any] | None:
    """DeepSpeed's JSON for this run, or None for plain DDP (--zero 0).

    `given` are the user's Trainer flags: `deepspeed` replaces the generated JSON, and an `optim` that is not AdamW
    keeps DeepSpeed's CPU Adam out of an offloaded run.
    """
    own = given.get("deepspeed")
    if own is not None:
        return own if isinstance(own, dict) else as_object(read_text(Path(own), str(own)), str(own))
    stage = ZERO_STAGE if spec.zero is None else int(spec.zero)
    if stage == 0 and spec.offload == "none":
        return None
    own_optimizer = given.get("optim", ADAMW_OF_TORCH[0]) not in ADAMW_OF_TORCH
    zero = from_offload(stage, spec.offload, spec.nvme_path, own_optimizer=own_optimizer)
    zero = replace(zero, bf16_master_weights=spec.bf16_master_weights)
    return generate(zero, hidden_size=hidden_size)


def stage_of(config: dict[str, Any] | None) -> int:
    return int((config or {}).get("zero_optimization", {}).get("stage", 0))


def hidden_size(model_config: Any) -> int | None:
    """The model's width, under whichever name its config keeps it."""
    text = model_config.get_text_config()
    return getattr(text, "hidden_size", None) or getattr(text, "d_model", None)


def prepare_ops(config: dict[str, Any], world: World, *, notify: Callable[[str], None], training: bool = True) -> None:
    """Load the compiled ops this run needs, one process at a time, before any rank waits in a collective.

    Built by two processes at once, torch's extension loader can leave a stale lock that later runs wait on forever; our
    file lock goes around it, in a folder that only dsrun builds into.
    """
    # `dsrun train` hands its workers this PATH; those that torchrun or srun start have the shell's.
    os.environ.update(own_programs_first(os.environ))
    import deepspeed.ops
    from deepspeed.accelerator import get_accelerator

    if world.device == "cpu" and not _installed("deepspeed_shm_comm"):
        # Compiling this op takes a minute, and only DeepSpeed's inference uses it: training reduces through gloo. The
        # table, which has no other reader, is not asked for: making it runs a compiler.
        deepspeed.ops.__compatible_ops__ = {"deepspeed_shm_comm": False}
    names = required_ops(config, training=training)
    if not names:
        return
    cache = extension_cache(os.environ)
    os.environ["TORCH_EXTENSIONS_DIR"] = str(cache)
    cache.mkdir(parents=True, exist_ok=True)

    def wait() -> None:
        # Not for the other ranks of this run: only rank 0's console prints, and it is one that waits, or compiles.
        notify("another run is compiling DeepSpeed's operations; waiting for it")

    with acquire_lock(cache / ".dsrun.lock", wait, seconds=PATIENCE_SECONDS):
        for stale in cache.glob("**/lock"):
            stale.unlink()
        for name in names:
            builder = get_accelerator().create_op_builder(name)
            if builder and not _installed(builder.name) and not any(cache.glob(f"**/{builder.name}.so")):
                notify(f"compiling DeepSpeed's {builder.name} for this machine; that takes minutes, once")
            if builder and cache == extension_cache({**os.environ, "TORCH_EXTENSIONS_DIR": ""}):
                _omit_debug_info(builder)
            _load_op(builder, name)


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


def assert_engine_matches(trained: Any, config: dict[str, Any] | None) -> None:
    """Fail unless `trained` is the engine and stage that were asked for: setting ACCELERATE_USE_CPU, for one, makes the
    stock stack train without DeepSpeed and without a word."""
    is_engine = type(trained).__name__ == "DeepSpeedEngine"
    if config is None:
        if is_engine:
            raise ToolError("--zero 0 asked for plain DDP, but a DeepSpeed engine was set up")
        return
    if not is_engine:
        raise ToolError(
            f"ZeRO-{stage_of(config)} was asked for, but the model is a {type(trained).__name__} without DeepSpeed",
            fix="unset the ACCELERATE_* variables",
        )
    if trained.zero_optimization_stage() != stage_of(config):
        raise ToolError(
            f"ZeRO-{stage_of(config)} was asked for, DeepSpeed runs stage {trained.zero_optimization_stage()}"
        )


def mask_stored_config(trained: Any) -> None:
    """Keep the keys of trackers, which are set up by now, out of checkpoints: their shards hold DeepSpeed's JSON."""
    if type(trained).__name__ == "DeepSpeedEngine":
        trained.config = masked_values(trained.config)


def copy_defaults(optimizer: Any) -> None:
    """Give DeepSpeed's optimizers the `defaults` of those that they wrap: schedules of transformers that end at a rate
    of their own, as polynomial does, read the first one there."""
    wrapped = getattr(optimizer, "optimizer", None)
    if wrapped is not None:
        copy_defaults(wrapped)
        if not hasattr(optimizer, "defaults"):
            optimizer.defaults = wrapped.defaults


def extension_cache(environ: Mapping[str, str], prefix: str = sys.prefix) -> Path:
    """The folder of compiled ops: TORCH_EXTENSIONS_DIR, else one in the user's cache for this environment alone, whose
    headers ninja's build files name: shared, each run of the other environment would compile everything again."""
    given = environ.get("TORCH_EXTENSIONS_DIR")
    if given:
        return Path(given)
    facts = f"{prefix} {sys.implementation.cache_tag} torch {version('torch')}"
    key = hashlib.sha256(facts.encode()).hexdigest()[:12]
    root = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "dsrun" / "torch_extensions" / key


def _installed(op: str) -> bool:
    from deepspeed.git_version_info import installed_ops

    return bool(installed_ops.get(op))


def _omit_debug_info(builder: Any) -> None:
    """Let `builder` compile without the -g that DeepSpeed asks for: 48 instead of 82 CPU seconds for a file of CPU Adam
    (gcc 12). Not in a folder that is shared with DeepSpeed by itself: what the one has
    compiled, the other would compile again for its flags."""
    flags = builder.cxx_args
    builder.cxx_args = lambda: [*flags(), "-g0"]  # the last one counts


def _load_op(builder: Any, name: str) -> None:
    if builder is None or not builder.is_compatible(verbose=False):
        aio = name == "AsyncIOBuilder"
        raise MissingError(
            f"this machine cannot build DeepSpeed's op {name.removesuffix('Builder')}",
            fix="install libaio-dev" if aio else "install a C++ compiler and ninja",
            cause="libaio_missing" if aio else "jit_build_failed",
        )
    try:
        builder.load(verbose=False)
    except (RuntimeError, OSError, ImportError) as error:
        logger.exception("loading %s failed", name)
        raise MissingError(
            f"DeepSpeed's op {name.removesuffix('Builder')} does not compile here: {str(error).splitlines()[0]}",
            fix="install a C++ compiler and ninja, or a DeepSpeed wheel with the op built in; the log has the error",
            cause="jit_build_failed",
        ) from error


Precision = Literal["bf16", "fp16", "fp32"]


def decide_precision(
    given: dict[str, Any],
    *,
    model_type: str,
    bf16_supported: bool,
    device: str,
    deepspeed: dict[str, Any] | None = None,
    force: bool = False,
) -> Precision:
    """The precision asked for, else bf16 where the hardware computes in it, else fp32.

    `given` holds the user's own `bf16` and `fp16` flags; a DeepSpeed configuration that switches one of them on or off
    decides like a flag. Raises UsageError for fp16 on models that overflow in it, unless `force`.
    """
    requested = dict(_switches(deepspeed or {})) | {k: v for k, v in given.items() if k in ("bf16", "fp16")}
    if requested.get("fp16"):
        if family_of(model_type).overflows_in_fp16 and not force:
            raise UsageError(
                f"--fp16: {overflow_in_fp16(model_type)}",
                fix="use --bf16, or fp32 with --bf16 false; --force trains in fp16 all the same",
            )
        if device == "cpu" and not force:
            raise UsageError(
                "--fp16: training in fp16 needs a GPU",
                fix="use --bf16, or fp32 with --bf16 false; --force tries it where the processor computes in fp16",
            )
        return "fp16"
    if requested.get("bf16"):
        if not bf16_supported and device == "cuda" and not force:
            raise UsageError(
                "--bf16: this GPU does not compute in bf16 (compute capability 8.0 and above do)",
                fix="use --fp16, or fp32 with --bf16 false",
            )
        return "bf16"
    if "bf16" in requested or "fp16" in requested:
        return "fp32"
    return "bf16" if bf16_supported else "fp32"


def _switches(deepspeed: dict[str, Any]) -> list[tuple[str, bool]]:
    """The precision blocks of a DeepSpeed configuration that are true or false themselves."""
    blocks = ((name, deepspeed.get(name)) for name in ("bf16", "fp16"))
    values = ((name, block.get("enabled", False)) for name, block in blocks if isinstance(block, dict))
    return [(name, value) for name, value in values if isinstance(value, bool)]
