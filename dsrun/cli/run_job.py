"""The checked recipe of a training run, and the supervisor's job of it: for `dsrun train` and `dsrun launch`."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsrun.cli.output import print_note

if TYPE_CHECKING:
    from dsrun.launch.job import Job, Topology
    from dsrun.recipe.batch import BatchPlan
    from dsrun.recipe.recipe import Recipe

WORKER = "dsrun.train"


def checked_recipe(args: list[str]) -> Recipe:
    """The resolved flags. Raises UsageError for invalid settings and for files that do not exist or cannot be read."""
    from dsrun.recipe.files import check_files
    from dsrun.recipe.resolve import resolve
    from dsrun.recipe.resolved import with_deepspeed_read
    from dsrun.recipe.trackers import check_packages

    recipe = resolve(args, Path.cwd())
    if not recipe.spec.explain:
        for notice in recipe.notices:
            print_note(notice)
        check_files(recipe.spec, generation_config=recipe.hf.get("generation_config"))
        check_packages(recipe)
        recipe = with_deepspeed_read(recipe, Path.cwd())
    return recipe


def topology_of(recipe: Recipe, *, nproc: int | None = None) -> Topology:
    """The workers of this machine; `nproc` takes precedence over the recipe's."""
    from dsrun.launch.job import decide
    from dsrun.system.gpus import gpu_count
    from dsrun.system.host import cores

    return decide(
        nproc=nproc or recipe.spec.nproc,
        visible_gpus=gpu_count(),
        cores=cores(),
        use_cpu=bool(recipe.hf.get("use_cpu")),
    )


def batch_of(recipe: Recipe, world_size: int) -> BatchPlan:
    """The batch sizes on `world_size` ranks. Raises UsageError where they do not divide."""
    from dsrun.recipe.batch import batch_plan

    return batch_plan(
        global_batch_size=recipe.spec.global_batch_size,
        micro_batch_size=recipe.spec.micro_batch_size or recipe.hf.get("per_device_train_batch_size"),
        accumulation=recipe.hf.get("gradient_accumulation_steps"),
        world_size=world_size,
        default_micro=8,
    )


def training_job(
    recipe: Recipe, *, topology: Topology, run: Path, env: Mapping[str, str], nnodes: int = 1, named: bool, **more: Any
) -> Job:
    """The job of dsrun's own workers; `more` are fields of Job that take precedence over the recipe's. `named`: the
    same command would have the same run folder.

    Raises UsageError where the batch does not divide among the workers of all nodes.
    """
    from dsrun.launch.job import Job
    from dsrun.launch.supervisor.policy import Limits
    from dsrun.recipe.resolved import to_json

    spec = recipe.spec
    batch = batch_of(recipe, nnodes * topology.workers)
    fields: dict[str, Any] = {
        "program": ["--module", WORKER],
        "recipe": json.dumps(to_json(recipe)),
        "limits": Limits(max_restarts=spec.max_restarts, remedy=spec.remedy),
        "hang_timeout": spec.hang_timeout,
        "warm": spec.warm,
        "terminal_width": shutil.get_terminal_size().columns if sys.stderr.isatty() else None,
        "echo": spec.debug,
        "micro_batch": batch.micro_batch,
        "accumulation": batch.accumulation,
        "imports": late_imports(recipe),
        "again": "the same command" + ("" if named else f" with --output {shlex.quote(str(run))}"),
        "resume": spec.resume,
    }
    return Job(topology=topology, run=run, env=env, nnodes=nnodes, **{**fields, **more})


def late_imports(recipe: Recipe) -> list[str]:
    """Modules that a worker of this recipe imports only when it needs them."""
    spec = recipe.spec
    # original_muon loads torch's compiler, whatever the optimizer: a second and a half.
    names = ["deepspeed.runtime.engine", "deepspeed.runtime.zero.muon.original_muon"] if spec.zero != "0" else []
    kind = spec.model_type or _model_type(spec.model)
    return [*names, f"transformers.models.{kind}.modeling_{kind}"] if kind else names


def _model_type(model: str | None) -> str | None:
    """As the config.json of a local model says."""
    with suppress(OSError, ValueError, AttributeError):
        found = json.loads(Path(model or "", "config.json").read_text()).get("model_type")
        return str(found).replace("-", "_") if found else None
    return None


def with_flags(job: Job, recipe: Recipe) -> Job:
    """The job with the flags as arguments of the worker, for --dry-run: a command that runs without a supervisor."""
    flags = [word for word in recipe.argv if word.replace("_", "-") != "--dry-run"]
    return replace(job, program=[*job.program, *flags])
