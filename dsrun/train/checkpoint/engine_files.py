"""The files that a DeepSpeed engine writes of itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from dsrun.train.base.distributed import my_rank
from dsrun.train.checkpoint.save import Save
from dsrun.train.checkpoint.serialize import write_torch


def has_whole_weights(engine: Any) -> bool:
    """Whether every rank holds all weights."""
    return not engine.zero_optimization_partition_weights() and engine.autotp_size() <= 1


def write_through(engine: Any, under_way: Callable[[], Save | None]) -> None:
    """Have a DeepSpeed engine write through the save under way, unless its JSON chose another checkpoint engine.

    Between two files DeepSpeed's save_checkpoint meets in barriers: an exception on one rank would leave the others
    in the next one until the process group times out.
    """
    files = engine.checkpoint_engine
    if type(files).__name__ != "TorchCheckpointEngine" or "save" in vars(files):
        return
    stock, checkpoint, scripts = files.save, engine.save_checkpoint, engine._copy_recovery_script

    def ours(path: str) -> Save | None:
        save = under_way()
        return save if save and save.folder in (Path(path), *Path(path).parents) else None

    def write(state_dict: Any, path: str) -> None:
        save = ours(path)
        if save is None:
            stock(state_dict, path)
        elif files.zipfile_serialization:
            save.store(write_torch, state_dict, Path(path))
        else:
            save.write(lambda: stock(state_dict, path), Path(path))

    def write_scripts(folder: str) -> None:
        if save := ours(folder):
            save.write(lambda: scripts(folder))
        else:
            scripts(folder)

    @wraps(checkpoint)  # its caller looks at the parameters
    def write_checkpoint(save_dir: str, **options: Any) -> None:
        save = ours(save_dir)
        checkpoint(save_dir, **options, save_latest=save is None)
        if save and my_rank() == 0:
            latest = Path(save_dir, "latest")
            save.write(lambda: latest.write_text(f"global_step{engine.global_steps}"), latest)

    files.save, engine.save_checkpoint, engine._copy_recovery_script = write, write_checkpoint, write_scripts
