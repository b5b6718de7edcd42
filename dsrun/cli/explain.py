"""`dsrun train --explain`: what was set and by whom, and what follows from it on this machine."""

import os
from dataclasses import replace
from pathlib import Path

from dsrun.cli.output import print_line, print_table
from dsrun.datafiles import SubjectNames, evaluate, toml_beside
from dsrun.demo.models import DEFAULTS, settings_on
from dsrun.launch.context import LocalWorkers
from dsrun.launch.memory_fallback import shrink, stored_fallback
from dsrun.launch.node.checked_recipe import with_deepspeed_checked
from dsrun.launch.node.work import local_topology
from dsrun.machine.gpus import visible_gpus
from dsrun.models.families import model_type_of
from dsrun.recipe.batch import BATCH_FLAGS, batch_of
from dsrun.recipe.flags import ZERO_STAGE, all_flags, shown_value
from dsrun.recipe.precision import BF16_FROM, decide_precision
from dsrun.recipe.recipe import DEFAULT, Recipe
from dsrun.recipe.resolve import explain, with_defaults
from dsrun.runs.attempts import RESUME_NEVER, saved_global_batch
from dsrun.runs.folder import RunFolder
from dsrun.system import variables
from dsrun.system.host import cpu_bf16
from dsrun.system.terminal.secrets import without_tokens
from dsrun.system.terminal.stderr import print_note
from dsrun.zero.ops import stage_of

# What a run reads of the environment beside its flags.
_READ = (variables.OUTPUT, variables.CACHE, "CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_OFFLINE", "HF_ENDPOINT")


def show_values(recipe: Recipe) -> None:
    """Print what was set, with its source, and what follows; with --all every value, defaults included."""
    here = local_topology(recipe.spec.nproc, use_cpu=bool(recipe.hf.get("use_cpu")))
    found = with_deepspeed_checked(recipe, here.workers)
    if recipe.spec.model in DEFAULTS:
        demo, auto = recipe.spec.model, recipe.spec.auto_micro_batch
        sizes = any(map(recipe.given, BATCH_FLAGS))
        found = with_defaults(found, settings_on(demo, here.workers, sizes=sizes, auto=auto), demo)
    named = {name: recipe.hf[name] for name in ("deepspeed",) if name in recipe.hf}  # the file by its name
    rows = explain(replace(found, hf=found.hf | named))
    if recipe.spec.all:
        print_table(((name, repr(value), source) for name, value, source in rows), head=False)
        return
    print_line("set:")
    given = [row for row in rows if row[2] != DEFAULT and row[0] != "explain"]
    outside = [(f"  {name}", without_tokens(os.environ[name]), "environment") for name in _READ if name in os.environ]
    flags = [(f"  {all_flags()[name].shown}", shown_value(name, value), source) for name, value, source in given]
    print_table([*flags, *outside], head=False)
    print_line("from this follows:")
    for name, text in _consequences(found, here).items():
        print_line(f"  {name:<15}{text}", hang=17)
    print_note(f"all {len(rows)} settings with their defaults: --explain --all")


def _consequences(recipe: Recipe, here: LocalWorkers) -> dict[str, str]:
    """What the run will do, as far as that is known before model and data are read."""
    rank = "GPU" if here.device == "cuda" else "CPU rank"
    found = {"zero": _zero(recipe), "batch": _batch(recipe, here.workers, rank), "precision": _precision(recipe, here)}
    table, folder = toml_beside(__file__), os.environ.get(variables.OUTPUT)
    names = SubjectNames(recipe.spec, table["terms"], value=recipe.value, here=here, rank=rank, folder=folder, **found)
    return {name: evaluate(text, names) for name, text in table["follows"].items()}


def _zero(recipe: Recipe) -> str:
    spec, file = recipe.spec, recipe.hf.get("deepspeed")
    if recipe.hf.get("fsdp"):
        return "FSDP"
    stage = stage_of(file) if isinstance(file, dict) else ZERO_STAGE if spec.zero is None else spec.zero
    named = {"0": "plain DDP (ZeRO 0)", "auto": "ZeRO at the stage that fits best"}.get(str(stage), f"ZeRO-{stage}")
    return named + ("" if spec.offload == "none" else f" (offload {spec.offload})")


def _batch(recipe: Recipe, workers: int, rank: str) -> str:
    """The global batch as this start would divide it, after a checkpoint, and where memory ran out before."""
    spec = recipe.spec
    if spec.global_batch_tokens:
        return f"about {spec.global_batch_tokens:,} tokens a step; how many samples is known once the data is read"
    if spec.long_context and not spec.sequence_parallel:
        return "known once the model is read: how many ranks share a row depends on it"
    output = spec.output or os.environ.get(variables.OUTPUT)
    saved = saved_global_batch(RunFolder(Path(output)), spec.resume) if output else None
    plan = batch_of(recipe, workers, saved=saved, auto=spec.auto_micro_batch)
    if output and spec.remedy and spec.resume != RESUME_NEVER and (fallback := stored_fallback(Path(output))):
        micro, steps = shrink(plan.micro_batch, plan.accumulation, fallback.halvings)
        plan = replace(plan, micro_batch=micro, accumulation=steps)
    return plan.sentence(rank)


def _precision(recipe: Recipe, here: LocalWorkers) -> str:
    file = recipe.hf.get("deepspeed")
    return decide_precision(
        recipe.hf,
        model_type=recipe.spec.model_type or model_type_of(recipe.spec.model) or "",
        bf16_supported=cpu_bf16() if here.device == "cpu" else all(x.capability >= BF16_FROM for x in visible_gpus()),
        device=here.device,
        deepspeed=file if isinstance(file, dict) else None,
        force=recipe.spec.force,
    )
