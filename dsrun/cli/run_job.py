"""What one machine of a run does: dsrun's own training by its checked recipe, for `dsrun train` and `dsrun launch`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from dsrun.cli.output import print_note
from dsrun.launch.job import Job, Topology, decide
from dsrun.launch.supervisor.policy import Limits
from dsrun.model_families import model_type_of
from dsrun.recipe.batch import BatchPlan, batch_plan
from dsrun.recipe.files import check_files
from dsrun.recipe.recipe import Recipe
from dsrun.recipe.resolve import resolve
from dsrun.recipe.resolved import to_json, with_deepspeed_read
from dsrun.recipe.trackers import check_packages
from dsrun.runs.folder import default_name
from dsrun.slurm.render.program import WORKER
from dsrun.system.gpus import visible_gpus
from dsrun.system.host import cores, require_training_packages


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """The command line up to the program. `dsrun train` runs with the defaults."""

    nodes: int | None = None
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    hostfile: Path | None = None
    include: str | None = None
    exclude: str | None = None
    nproc: int | None = None
    output: str | None = None
    max_restarts: int | None = None
    hang_timeout: float | None = None
    remedy: bool = True
    warm: bool = True
    rendezvous_timeout: float = 600
    force: bool = False
    dry_run: bool = False
    debug: bool = False
    tied: bool = False

    def argv(self, *names: str) -> list[str]:
        """The options `names`, and those that every node's supervisor needs, as command-line arguments."""
        names = (*names, "output", "max_restarts", "hang_timeout", "rendezvous_timeout", "force", "debug")
        found = []
        for name in names:
            value = getattr(self, name)
            flag = f"--{name.replace('_', '-')}"
            if value is True:
                found.append(flag)
            elif value is not None and value is not False:
                found += [flag, f"{value}"]
        return found + [f"--no-{name}" for name in ("remedy", "warm") if not getattr(self, name)]


@dataclass(frozen=True, kw_only=True)
class Work:
    """What runs on this machine.

    `output` is its run folder; `require` raises MissingError for what it needs and this machine lacks; `job` makes the
    Job from the fields that depend on the place. `recipe` is that of dsrun's own training, None for an external
    program; `job` takes it as a field too. `find_port` is passed to `claim_port` for a named port on one machine.
    """

    topology: Topology
    output: str
    debug: bool
    dry_run: bool
    force: bool
    require: Callable[[], None]
    job: Callable[..., Job]
    recipe: Recipe | None = None
    find_port: bool | None = None


def checked_recipe(args: list[str]) -> Recipe:
    """The resolved flags. Raises UsageError for invalid settings and for files that do not exist or cannot be read."""
    recipe = resolve(args, Path.cwd())
    if not recipe.spec.explain:
        for notice in recipe.notices:
            print_note(notice)
        check_files(recipe.spec, generation_config=recipe.hf.get("generation_config"))
        check_packages(recipe)
        recipe = with_deepspeed_read(recipe, Path.cwd())
    return recipe


def local_topology(nproc: int | None, *, use_cpu: bool) -> Topology:
    """The workers of this machine: `nproc`, else one per visible GPU."""
    return decide(nproc=nproc, visible_gpus=len(visible_gpus()), cores=cores(), use_cpu=use_cpu)


def batch_of(recipe: Recipe, world_size: int) -> BatchPlan:
    """The batch sizes on `world_size` ranks. Raises UsageError where they do not divide."""
    return batch_plan(
        global_batch_size=recipe.spec.global_batch_size,
        micro_batch_size=recipe.spec.micro_batch_size or recipe.hf.get("per_device_train_batch_size"),
        accumulation=recipe.hf.get("gradient_accumulation_steps"),
        world_size=world_size,
        default_micro=8,
    )


def training_work(recipe: Recipe, options: LaunchOptions) -> Work:
    """dsrun's own training. `options` take precedence over the recipe; their `output` is the run folder, if named."""
    spec = recipe.spec
    topology = local_topology(options.nproc or spec.nproc, use_cpu=bool(recipe.hf.get("use_cpu")))
    return Work(
        topology=topology,
        output=options.output or default_name(spec.model or spec.model_type or "model", datetime.now()),
        debug=options.debug or spec.debug,
        dry_run=options.dry_run or spec.dry_run,
        force=options.force or spec.force,
        require=require_training_packages,
        job=partial(training_job, options, topology),
        recipe=recipe,
    )


def training_job(
    options: LaunchOptions,
    topology: Topology,
    *,
    recipe: Recipe,
    run: Path,
    env: Mapping[str, str],
    nnodes: int = 1,
    **place: Any,
) -> Job:
    """The job of dsrun's own workers; `place` are further fields of Job.

    Raises UsageError where the batch does not divide among the workers of all nodes.
    """
    spec = recipe.spec
    batch = batch_of(recipe, nnodes * topology.workers)
    restarts = spec.max_restarts if options.max_restarts is None else options.max_restarts
    return Job(
        topology=topology,
        run=run,
        env=env,
        nnodes=nnodes,
        program=["--module", WORKER],
        recipe=json.dumps(to_json(recipe)),
        limits=Limits(max_restarts=restarts, remedy=spec.remedy and options.remedy),
        hang_timeout=spec.hang_timeout if options.hang_timeout is None else options.hang_timeout,
        warm=spec.warm and options.warm,
        echo=spec.debug or options.debug,
        micro_batch=batch.micro_batch,
        accumulation=batch.accumulation,
        imports=_late_imports(recipe),
        again="the same command" + ("" if options.output else f" with --output {shlex.quote(str(run))}"),
        resume=spec.resume,
        **place,
    )


def _late_imports(recipe: Recipe) -> list[str]:
    """Modules that a worker of this recipe imports only when it needs them."""
    # original_muon loads torch's compiler, whatever the optimizer: a second and a half.
    zero = ["deepspeed.runtime.engine", "deepspeed.runtime.zero.muon.original_muon"] if recipe.spec.zero != "0" else []
    kind = (recipe.spec.model_type or model_type_of(recipe.spec.model) or "").replace("-", "_")
    return [*zero, f"transformers.models.{kind}.modeling_{kind}"] if kind else zero
