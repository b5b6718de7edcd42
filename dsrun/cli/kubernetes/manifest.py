"""What `dsrun render-k8s` does: the objects of a job as YAML on stdout, advice on stderr."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsrun.cli.output import write_output
from dsrun.cli.render.rendered_job import (
    JobRendering,
    RenderedProgram,
    find_job,
    given_options,
    refuse_empty,
    refuse_secrets,
)
from dsrun.kubernetes.objects import manifest, render_objects
from dsrun.kubernetes.options import KubernetesSpec
from dsrun.kubernetes.patch import apply_patches
from dsrun.kubernetes.spec import make_spec, run_file_value
from dsrun.kubernetes.workload import TrainingWorkload, completed, notices
from dsrun.system.terminal.stderr import print_note

if TYPE_CHECKING:
    from dsrun.recipe.recipe import Recipe

KUBERNETES = JobRendering(
    noun="manifest",
    section="k8s",
    token_fix="put it into a secret, and write --secret NAME=SECRET:KEY",
    training_token_fix="put it into a secret, and write --secret HF_TOKEN=SECRET:KEY",
    run_file_value=run_file_value,
)


def run(**values: Any) -> int:
    """Write the objects; the callback of `dsrun render-k8s`."""
    refuse_empty(values)
    cwd = Path.cwd()
    job = find_job(click.get_current_context().obj, values["config"], cwd, KUBERNETES)
    given = make_spec(*given_options(job, KubernetesSpec, values, cwd, KUBERNETES))
    workload = _workload(job, cwd)
    spec = completed(given, workload)
    if job.recipe is not None:
        _check_training(job.recipe, spec)
    objects = render_objects(spec, workload)
    notes = apply_patches(objects, spec, cwd)
    text = manifest(objects, ("dsrun", *sys.argv[1:]))
    has_token = any(entry.startswith("HF_TOKEN=") for entry in spec.secret)
    if job.recipe is not None and any(map(job.recipe.given, ("token", "hub_token"))) and not has_token:
        print_note("the token of run.yaml is not written into the manifest (--secret HF_TOKEN=SECRET:KEY)")
    for line in (*notices(given, spec), *notes):
        print_note(line)
    write_output(text, values["output"], force=values["force"])
    return 0


def _workload(job: RenderedProgram, cwd: Path) -> TrainingWorkload:
    """What the pods run: the program as it was given, or the training by what all files here say now."""
    program = job.program
    if job.recipe is None:
        return TrainingWorkload(words=job.words, name=program.name)
    from dsrun.recipe.deepspeed_file import with_deepspeed_read
    from dsrun.recipe.resolved import frozen_argv

    recipe = with_deepspeed_read(job.recipe, cwd)
    sources = {name: source for name, source in recipe.sources.items() if name != "output"}
    recipe = replace(recipe, sources=sources)  # the run folder is an option of `dsrun launch`
    words = ("dsrun", "train", *frozen_argv(recipe))
    refuse_secrets(words, KUBERNETES)
    return TrainingWorkload(
        words=words, name=program.name, output=program.output, on_cpu=program.on_cpu, notify=tuple(recipe.spec.notify)
    )


def _check_training(recipe: "Recipe", spec: KubernetesSpec) -> None:
    """Raise now what `dsrun train` would raise in the pods; files and packages are those of the pods."""
    from dsrun.cli.render.training import check_training
    from dsrun.launch.node.checked_recipe import with_deepspeed_checked

    workers = spec.nproc or 1
    recipe = with_deepspeed_checked(recipe, spec.nodes * workers)
    check_training(recipe, spec.nodes, workers, elastic=spec.elastic, files=False, packages=False)
