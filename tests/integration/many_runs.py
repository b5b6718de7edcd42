"""Several training runs one after another in one process group: `many_runs.py FILE` with a list of argument lists.

Starting a worker costs seconds, a tiny run fractions of one; so a test of many combinations starts workers once.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path

from accelerate.state import AcceleratorState, GradientState, PartialState
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from dsrun.recipe.resolve import resolve
from dsrun.runs.folder import RunFolder
from dsrun.train.console import Console
from dsrun.train.run import run
from dsrun.train.world import here, leave


def main(file: str) -> None:
    for argv in json.loads(Path(file).read_text()):
        recipe = resolve(argv, Path.cwd())
        folder = RunFolder(Path(recipe.spec.output))
        if os.environ["RANK"] == "0":
            RunFolder.create(folder.path)
        run(recipe, "tiny", here(use_cpu=True), folder, Console(None))
        # A fresh process would know nothing of the run before it.
        gc.collect()
        unset_hf_deepspeed_config()
        for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
            del os.environ[name]
        for state in (AcceleratorState, GradientState):
            state._reset_state()
        PartialState._shared_state.clear()
    leave()


if __name__ == "__main__":
    main(sys.argv[1])
