"""A rank of `dsrun certify`: `python -m dsrun.train.certify.rank FILE` trains the runs of a file one after another.

FILE holds [[name, flags], …]. Starting a worker costs seconds, a tiny run a fraction of one. Rank 0 adds a JSON line to
FILE.done for each run that has ended; a rank that fails adds one with the error, and ends: what it left of the process
group is no place for another run."""

import gc
import json
import os
import sys
import traceback
from pathlib import Path

from accelerate.state import AcceleratorState, GradientState, PartialState
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from dsrun.errors import one_line
from dsrun.recipe.resolved import worker_recipe
from dsrun.runs.folder import RunFolder
from dsrun.system.process.process_end import end
from dsrun.train.base.console import Console
from dsrun.train.base.distributed import destroy_process_group, world_from_env
from dsrun.train.run import prepare_run, run


def main(file: str) -> int:
    rank = int(os.environ["RANK"])
    for name, flags in json.loads(Path(file).read_text(encoding="utf-8")):
        error = ""
        try:
            _train(flags, rank)
        except Exception as raised:  # whatever a model's own code raises
            traceback.print_exc()
            error = one_line(raised)
        if rank == 0 or error:
            with Path(f"{file}.done").open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"run": name, "rank": rank, "error": error}) + "\n")
        if error:
            return 1
        forget()
    destroy_process_group()
    return 0


def _train(flags: list[str], rank: int) -> None:
    recipe = worker_recipe(flags, {})
    folder = RunFolder(Path(str(recipe.spec.output)))
    if rank == 0:
        RunFolder.create(folder.path)
    world = world_from_env(use_cpu=bool(recipe.hf.get("use_cpu")))
    run(prepare_run(recipe, "small model", world, folder, Console(None)))


def forget() -> None:
    """Reset what a fresh process would not know of the engine and the Trainer before it."""
    gc.collect()
    unset_hf_deepspeed_config()
    for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
        del os.environ[name]
    for state in (AcceleratorState, GradientState):
        state._reset_state()
    PartialState._shared_state.clear()


if __name__ == "__main__":
    end(main(sys.argv[1]))
