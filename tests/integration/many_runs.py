"""Several training runs one after another in one process group: `many_runs FILE` with a list of argument lists.

Starting a worker costs seconds, a tiny run fractions of one; so a test of many combinations starts workers once.
A run may fail where its arguments begin with MAY_FAIL: each rank then leaves `error-R.json` in the run folder.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from dsrun.errors import DsrunError
from dsrun.recipe.resolve import resolve
from dsrun.recipe.resolved import worker_recipe
from dsrun.runs.folder import RunFolder
from dsrun.train.base.console import Console
from dsrun.train.base.distributed import destroy_process_group, world_from_env
from dsrun.train.certify.rank import forget
from dsrun.train.run import prepare_run, run
from tests.integration.as_rank import run_to_the_end

MAY_FAIL = "may-fail"


def main(file: str) -> None:
    for argv in json.loads(Path(file).read_text()):
        if argv[0] == MAY_FAIL:
            _failing(argv[1:])
        else:
            _one(argv)
        forget()
    destroy_process_group()


def _one(argv: list[str]) -> None:
    recipe = worker_recipe(argv, {})
    folder = RunFolder(Path(recipe.spec.output))
    if os.environ["RANK"] == "0":
        RunFolder.create(folder.path)
    run(prepare_run(recipe, "tiny", world_from_env(use_cpu=True), folder, Console(None)))


def _failing(argv: list[str]) -> None:
    try:
        _one(argv)
    except DsrunError as error:
        facts = {"message": error.message, "cause": error.cause, "rollback": getattr(error, "rollback", None)}
        output = Path(resolve(argv, Path.cwd()).spec.output)
        (output / f"error-{os.environ['RANK']}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    run_to_the_end(main, sys.argv[1])
