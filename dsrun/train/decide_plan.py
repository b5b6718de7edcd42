"""What is decided before anything large is loaded: model, batch, precision and memory fallbacks."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from dsrun.demo.build_demo import DemoPaths, data_only, materialise
from dsrun.demo.models import DEFAULTS, settings_on
from dsrun.engine_options import offloaded_to
from dsrun.launch.memory_fallback import REMEDY_FILE, MemoryFallback, shrink, stored_fallback
from dsrun.recipe.batch import BATCH_FLAGS, BatchPlan, batch_of_groups
from dsrun.recipe.precision import TrainingPrecision, decide_precision
from dsrun.recipe.preflight.elastic import NodeRange
from dsrun.recipe.recipe import Recipe, has_data, phases
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.recipe.resolve import with_defaults
from dsrun.runs.attempts import earlier_signatures, saved_global_batch
from dsrun.runs.folder import RunFolder
from dsrun.system import variables
from dsrun.system.host import cpu_bf16
from dsrun.system.terminal.display import NotePrinter
from dsrun.train.base.console import Internal
from dsrun.train.base.distributed import DistributedWorld, bf16_supported
from dsrun.train.base.plan import NOTHING, Given, LoadedPlugin, TrainingPlan
from dsrun.train.base.refusals import notice_of, refuse
from dsrun.train.data.data_request import PreparedData
from dsrun.train.loop import engine
from dsrun.train.loop.nan import SKIP_FILE
from dsrun.train.model.adapters import check_adapters
from dsrun.train.model.load import decide_task, load_config
from dsrun.train.model.quantization import check_fp8, check_quantization
from dsrun.train.model.zero_auto import resolve_zero_auto
from dsrun.train.packing.decide import batch_of_tokens
from dsrun.train.sequence import decide_degree
from dsrun.zero.generate.blocks import sums_exactly
from dsrun.zero.generate.presets import error_after, memory_of_sum
from dsrun.zero.ops import stage_of

NO_FALLBACK = MemoryFallback()
T5_PREFIX = "translate English to Romanian: "


def decide_plan(
    recipe: Recipe,
    title: str,
    world: DistributedWorld,
    *,
    notify: NotePrinter,
    fallback: MemoryFallback = NO_FALLBACK,
    saved_batch: int | None = None,
    plugin: LoadedPlugin | None = None,
    given: Given = NOTHING,
) -> TrainingPlan:
    """Everything that follows from flags, hardware and the model's config alone, and from earlier attempts: what memory
    allows, and the global batch `saved_batch` of the checkpoint to go on from."""
    config = load_config(recipe.spec) if given.config is None else given.config
    task = decide_task(config, recipe.spec.task, recipe.spec.model or recipe.spec.model_type)
    if recipe.spec.zero == "auto":
        recipe, chosen = resolve_zero_auto(recipe, config, task, _precision(recipe, config, world, None), world)
        notify(chosen)
    recipe = with_fallback(recipe, fallback)
    deepspeed = engine.configuration(recipe.spec, recipe.hf, engine.hidden_size(config))
    engine.refuse_on_cpu(deepspeed, world.device)
    check_quantization(recipe.spec, config, deepspeed)
    check_adapters(recipe.spec, config, task)
    precision = _precision(recipe, config, world, deepspeed)
    check_fp8(recipe.spec, precision, deepspeed, world.device)
    sharing = decide_degree(recipe.spec, config, task, world)
    groups = replace(world, size=world.size // sharing)
    requested = replace(_batch(recipe, groups, sharing, saved_batch, notify), sharing=sharing)
    if deepspeed is not None and precision == "bf16" and fallback == NO_FALLBACK and not recipe.hf.get("deepspeed"):
        deepspeed = _with_exact_sums(deepspeed, recipe.spec, requested.accumulation, world.device, notify)
    batch = with_smaller_batch(requested, fallback)
    one = batch.global_batch // batch.accumulation
    refuse("on_batch", zero=(deepspeed or {}).get("zero_optimization", {}), steps=batch.accumulation, one=one)
    if changes := fallback_notice(requested, batch, fallback):
        notify(changes)
    return TrainingPlan(recipe, title, world, config, task, batch, precision, deepspeed, phases(recipe), plugin, given)


def _with_exact_sums(
    deepspeed: dict[str, Any], spec: TrainSpec, steps: int, device: str, notify: NotePrinter
) -> dict[str, Any]:
    """DeepSpeed's configuration with gradients summed in fp32 where that is worth its memory. Not once memory ran out,
    as the same samples are then summed in more steps."""
    sums = sums_exactly(spec, stage_of(deepspeed), offloaded_to(spec.offload), steps)
    if not sums or "data_types" in deepspeed or (deepspeed.get("optimizer") or {}).get("type") == "Muon":
        return deepspeed
    memory = memory_of_sum(None, None, "cpu" if device == "cpu" else offloaded_to(spec.offload))
    error = error_after(steps)
    notify(Internal(f"gradients of {steps} steps are summed in fp32, as a bf16 sum is off by {error}: {memory}"))
    return {**deepspeed, "data_types": {"grad_accum_dtype": "fp32"}}


def _batch(recipe: Recipe, world: DistributedWorld, sharing: int, saved: int | None, notify: NotePrinter) -> BatchPlan:
    """Of `world`, whose ranks take different samples, `sharing` of the run's each."""
    auto, text = recipe.spec.auto_micro_batch, recipe.spec.elastic
    of = NodeRange.parse(text).most * world.local_size // sharing if text else None
    batch = batch_of_groups(recipe, world.size, of=of, saved=saved, auto=auto)
    if batch != batch_of_groups(recipe, world.size, of=of, auto=auto):
        notify(f"the global batch stays {saved}, as it was when the checkpoint was saved")
    return batch


def _precision(
    recipe: Recipe, config: Any, world: DistributedWorld, deepspeed: dict[str, Any] | None
) -> TrainingPrecision:
    return decide_precision(
        recipe.hf,
        model_type=config.model_type,
        bf16_supported=bf16_supported(world.device, cpu_bf16()),
        device=world.device,
        deepspeed=deepspeed,
        force=recipe.spec.force,
    )


def with_demo(recipe: Recipe, *, notify: NotePrinter) -> tuple[Recipe, str]:
    """Replace a demo's name by the folder it was made in, and missing data by the demo's; also returns the name for the
    user."""
    spec = recipe.spec
    title = spec.model or spec.model_type or ""
    if spec.model in DEFAULTS:
        paths = materialise(spec.model, variables.cache_root() / "demo" / spec.model)
        ranks, sizes = int(os.environ.get("WORLD_SIZE", "1")), any(map(recipe.given, BATCH_FLAGS))
        values = settings_on(spec.model, ranks, sizes=sizes, auto=spec.auto_micro_batch)
        recipe = with_defaults(recipe, values, spec.model)
        # The demos are untrained by nature: their weights come from the run.
        recipe = replace(recipe, spec=replace(recipe.spec, model=str(paths.model), from_scratch=True))
    elif has_data(spec):
        return recipe, title
    else:
        task = decide_task(load_config(spec), spec.task, spec.model)
        paths = data_only(task, variables.cache_root() / "demo" / f"data-{task}")
        notify(f"no --dataset or --train-file given: using the built-in demo data ({paths.task})")
    return (recipe if has_data(spec) else with_defaults(recipe, _data(paths, spec), "demo data")), title


def _data(paths: DemoPaths, spec: TrainSpec) -> dict[str, object]:
    values: dict[str, object] = {
        "train_file": [str(paths.train_file)],
        "validation_file": [str(paths.validation_file)],
        "test_file": [str(paths.test_file)],
    }
    if paths.task == "seq2seq":
        values |= {"source_lang": paths.source_lang, "target_lang": paths.target_lang}
        if spec.model not in DEFAULTS:
            values["source_prefix"] = T5_PREFIX
    return values


def read_memory_fallback(run: Path, recipe: Recipe) -> MemoryFallback:
    """The fallback in force for a start in `run`; none where the file is damaged, which the supervisor notes."""
    if recipe.spec.resume == "never" or not recipe.spec.remedy:
        return MemoryFallback()
    return stored_fallback(run) or MemoryFallback()


def with_fallback(recipe: Recipe, fallback: MemoryFallback) -> Recipe:
    """The recipe with the recomputation and offloading of `fallback`; ZeRO-0 cannot offload."""
    if fallback.recompute:
        recipe = replace(recipe, hf=recipe.hf | {"gradient_checkpointing": True})
    if fallback.offload != "none" and recipe.spec.zero != "0" and not recipe.hf.get("deepspeed"):
        # Quantised weights stay on the GPU.
        offload = "optimizer" if recipe.spec.quantization else fallback.offload
        recipe = replace(recipe, spec=replace(recipe.spec, offload=offload))
    return recipe


def with_smaller_batch(batch: BatchPlan, fallback: MemoryFallback) -> BatchPlan:
    micro, accumulation = shrink(batch.micro_batch, batch.accumulation, fallback.halvings)
    return replace(batch, micro_batch=micro, accumulation=accumulation)


def fallback_notice(before: BatchPlan, after: BatchPlan, fallback: MemoryFallback) -> str | None:
    """What the fallback changes, in one line; None where nothing is."""
    changes = [notice_of("memory.micro_batch", before=before, after=after)] if after != before else []
    changes += ["activations are recomputed"] if fallback.recompute else []
    changes += ["optimizer states on the host"] if fallback.offload != "none" else []
    return notice_of("memory.ran_out", changes=", ".join(changes), after=after) if changes else None


def clear_fallbacks(run: Path) -> None:
    for name in (REMEDY_FILE, SKIP_FILE):
        (run / name).unlink(missing_ok=True)


def saved_batch(recipe: Recipe, folder: RunFolder) -> int | None:
    """The global batch of the checkpoint to resume from: as node 0's supervisor has read it, else from the manifest."""
    if "train" not in phases(recipe):
        return None
    known = os.environ.get(variables.SAVED_BATCH)
    if known is None:
        return saved_global_batch(folder, recipe.spec.resume, earlier_signatures(os.environ))
    return int(known) if known else None


def in_tokens(plan: TrainingPlan, data: PreparedData, saved: int | None) -> TrainingPlan:
    """The plan with the global batch that --global-batch-tokens asks for, unless it is that of the checkpoint."""
    tokens = plan.recipe.spec.global_batch_tokens
    if not tokens or "train" not in plan.phases or plan.batch.global_batch == saved:
        return plan
    return replace(plan, batch=batch_of_tokens(plan.batch, tokens, data.train, both=plan.task == "seq2seq"))
