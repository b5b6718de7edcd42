"""DeepSpeed's checkpoint files, written so that a failing disk on one rank does not leave the others waiting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

from dsrun.train.checkpoint.save import Save


class ShardWriter(TorchCheckpointEngine):
    """The stock engine, whose writes go through the save under way.

    Between two files DeepSpeed's save_checkpoint meets in barriers: an exception on one rank would leave the others in
    the next one until the process group times out. So the first failure is kept by the save, and told in its end.
    """

    def __init__(self, stock: TorchCheckpointEngine, save_under_way: Callable[[], Save | None]) -> None:
        # Not super().__init__, which would want the configuration again, and logs.
        self.name = stock.name
        self.zipfile_serialization = stock.zipfile_serialization
        self._save_under_way = save_under_way

    def save(self, state_dict: Any, path: str) -> None:
        save = self._save_under_way()
        if save is None or save.folder not in Path(path).parents:
            super().save(state_dict, path)
        else:
            save.write(lambda: TorchCheckpointEngine.save(self, state_dict, path), Path(path))


def use_shard_writer(engine: Any, save_under_way: Callable[[], Save | None]) -> None:
    """Give a DeepSpeed engine the writer, unless its JSON chose one of DeepSpeed's own."""
    if type(engine.checkpoint_engine) is TorchCheckpointEngine:
        engine.checkpoint_engine = ShardWriter(engine.checkpoint_engine, save_under_way)
