"""DeepSpeed for this run: its configuration, its compiled ops, the precision, and proof that it is really in charge."""

import logging
import os
from pathlib import Path
from typing import Any

from dsrun.recipe.deepspeed_file import as_object, read_text
from dsrun.recipe.flags import ZERO_STAGE
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.system.build_locks import build_locks
from dsrun.system.host import own_programs_first
from dsrun.system.terminal.display import NotePrinter
from dsrun.train.base.distributed import DistributedWorld, acquire_lock
from dsrun.train.base.refusals import refusal, refuse
from dsrun.zero.generate.config import config_of_flags
from dsrun.zero.ops import extension_cache, required_ops, stage_of

logger = logging.getLogger(__name__)

# Loading operations that are compiled already takes less, also when all ranks of a machine take turns.
PATIENCE_SECONDS = 20


def configuration(spec: TrainSpec, given: dict[str, Any], hidden_size: int | None) -> dict[str, Any] | None:
    """DeepSpeed's JSON for this run, or None for plain DDP (--zero 0).

    `given` are the user's Trainer flags: `deepspeed` replaces the generated JSON, and an `optim` that is not AdamW
    keeps DeepSpeed's CPU Adam out of an offloaded run."""
    own = given.get("deepspeed")
    if own is not None:
        return own if isinstance(own, dict) else as_object(read_text(Path(own), str(own)), str(own))
    stage = ZERO_STAGE if spec.zero is None else int(spec.zero)
    return config_of_flags(stage, offload=spec.offload, optim=given.get("optim"), options=spec, hidden_size=hidden_size)


def refuse_on_cpu(config: dict[str, Any] | None, device: str) -> None:
    """Raise UsageError for what DeepSpeed has for GPUs alone: on CPUs SuperOffload waits for its own process for
    minutes, and the kernels of ZeRO++ fail in the first step."""
    zero = (config or {}).get("zero_optimization", {})
    refuse("on_device", device=device, zero=zero, offload=zero.get("offload_optimizer") or {})


def hidden_size(model_config: Any) -> int | None:
    """The model's width, under whichever name its config keeps it."""
    text = model_config.get_text_config()
    return getattr(text, "hidden_size", None) or getattr(text, "d_model", None)


def prepare_ops(config: dict[str, Any], world: DistributedWorld, *, notify: NotePrinter, training: bool = True) -> None:
    """Load the compiled ops this run needs, one process at a time, before any rank waits in a collective.

    Built by two processes at once, torch's extension loader can leave a stale lock that later runs wait on forever; our
    file lock goes around it, in a folder that only dsrun builds into."""
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
        for stale in build_locks(cache):
            stale.unlink()
        for name in names:
            builder = get_accelerator().create_op_builder(name)
            if builder and not _installed(builder.name) and not any(cache.glob(f"**/{builder.name}.so")):
                notify(f"compiling DeepSpeed's {builder.name} for this machine; that takes minutes, once")
            if builder and cache == extension_cache({**os.environ, "TORCH_EXTENSIONS_DIR": ""}):
                _omit_debug_info(builder)
            _load_op(builder, name)


def assert_engine_matches(trained: Any, config: dict[str, Any] | None) -> None:
    """Fail unless `trained` is the engine and stage that were asked for: setting ACCELERATE_USE_CPU, for one, makes the
    stock stack train without DeepSpeed and without a word."""
    name = type(trained).__name__
    runs = trained.zero_optimization_stage() if name == "DeepSpeedEngine" else None
    refuse("engine_of", config=config, name=name, runs=runs, stage=stage_of(config))


def copy_defaults(optimizer: Any) -> None:
    """Give DeepSpeed's optimizers the `defaults` of those that they wrap: schedules of transformers that end at a rate
    of their own, as polynomial does, read the first one there."""
    wrapped = getattr(optimizer, "optimizer", None)
    if wrapped is not None:
        copy_defaults(wrapped)
        if not hasattr(optimizer, "defaults"):
            optimizer.defaults = wrapped.defaults


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
    op = name.removesuffix("Builder")
    if builder is None or not builder.is_compatible(verbose=False):
        raise refusal("engine.no_libaio" if op == "AsyncIO" else "engine.cannot_build", op=op)
    try:
        builder.load(verbose=False)
    except (RuntimeError, OSError, ImportError) as error:
        logger.exception("loading %s failed", name)
        raise refusal("engine.does_not_compile", op=op, why=str(error).splitlines()[0]) from error
