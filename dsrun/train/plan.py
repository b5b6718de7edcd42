"""What is decided before anything large is loaded: ZeRO stage (--zero auto), batch, precision, and the data request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from dsrun.errors import MissingError
from dsrun.launch.supervisor.policy import MemoryFallback
from dsrun.recipe.batch import BatchPlan, batch_plan
from dsrun.recipe.flags import ZERO_STAGE
from dsrun.recipe.recipe import evaluation_is_asked_for, phases
from dsrun.recipe.resolve import Recipe, with_defaults
from dsrun.recipe.spec import TrainSpec
from dsrun.system.host import cpu_bf16
from dsrun.train import distributed as worlds
from dsrun.train import memory_fallbacks
from dsrun.train.console import Console
from dsrun.train.data.prepare import DataRequest, PreparedData, prepare_data
from dsrun.train.data.rows.limits import DEFAULT_TARGET
from dsrun.train.distributed import World
from dsrun.train.loop import engine
from dsrun.train.loop.engine import Precision, decide_precision
from dsrun.train.model import load as models
from dsrun.train.model.load import Task
from dsrun.train.model.meta_count import report, without_storage
from dsrun.zero.memory import auto
from dsrun.zero.memory.model.architecture import Architecture, Weight
from dsrun.zero.memory.model.configs import find
from dsrun.zero.memory.model.count import describe, generic
from dsrun.zero.memory.request import Cluster, cluster

SOURCE = "--zero auto"
GIB = 2**30

DEFAULT_MICRO_BATCH = 8
NO_FALLBACK = MemoryFallback()


def resolve_zero_auto(
    recipe: Recipe, config: Any, task: Task, precision: Precision, world: World
) -> tuple[Recipe, str]:
    """The recipe with a stage, and with offload, micro batch and recomputation where the user left them open; and the
    choice in words.

    Raises UsageError when nothing fits, with what would.
    """
    # The user's `auto` makes room for the stage, which is put under the rest of what was given.
    sources = {name: source for name, source in recipe.sources.items() if name != "zero"}
    # The plan's micro batch is where --micro-batch-size auto begins.
    left_open = dict.fromkeys(("zero", "auto_micro_batch"), "default")
    spec = replace(recipe.spec, zero=None, auto_micro_batch=False)
    opened = replace(recipe, spec=spec, sources=sources | left_open)
    if world.device == "cpu":
        words = f"{SOURCE}: ZeRO-{ZERO_STAGE}, as there is no GPU whose memory could run out"
        return with_defaults(opened, {"zero": str(ZERO_STAGE)}, SOURCE), words
    try:
        chosen = _choose(opened, config, task, precision, _cluster(world))
    except MissingError:
        words = f"{SOURCE}: ZeRO-{ZERO_STAGE}, as {config.model_type} models cannot be counted without their weights"
        return with_defaults(opened, {"zero": str(ZERO_STAGE)}, SOURCE), words
    return with_defaults(opened, auto.settings(chosen), SOURCE), auto.words(chosen)


def _choose(recipe: Recipe, config: Any, task: Task, precision: Precision, gpus: Cluster) -> auto.Chosen:
    spec = recipe.spec
    target, source = lengths(spec, task)
    stored = _as_stored(spec, config)
    return auto.decide(
        stored,
        _architecture(spec, stored, config),
        gpus,
        precision=precision,
        length=target,
        source_length=source,
        global_batch=spec.global_batch_size,
        micro_batch=spec.micro_batch_size or recipe.hf.get("per_device_train_batch_size"),
        lora=spec.lora,
        checkpointing=recipe.hf.get("gradient_checkpointing"),
        offload=spec.offload if recipe.given("offload") else None,
    )


def _architecture(spec: TrainSpec, stored: dict[str, Any], config: Any) -> Architecture:
    """The model's shapes; those of a family that none are written down of are read off the model, without its storage.

    Raises MissingError where that cannot be built.
    """
    try:
        return describe(stored, from_scratch=spec.from_scratch)
    except MissingError as unknown:
        try:
            made = report(without_storage(config, trust_remote_code=spec.trust_remote_code))
            weights = tuple(Weight(name, tuple(shape), kind) for name, shape, kind in made["tensors"])
            return generic(made["config"], weights)
        except Exception as error:  # a model may fail in any way without storage, and train well with it
            raise unknown from error


def lengths(spec: TrainSpec, task: Task) -> tuple[int | None, int | None]:
    """Tokens per target (or block) and per source that the run's flags allow; None: the model's usual length."""
    if task == "causal-lm":
        return spec.block_size or spec.max_length, None
    return spec.max_target_length or DEFAULT_TARGET, spec.max_source_length or spec.max_length


def _as_stored(spec: TrainSpec, config: Any) -> dict[str, Any]:
    """The model's config.json, under whose content `dsrun plan --calibrate` keeps its corrections."""
    changed = spec.model_config or spec.config_overrides or spec.config_name
    if spec.model and not changed:
        try:
            return find(spec.model).config
        except MissingError:  # downloaded to a cache that only transformers knows
            pass
    return dict(config.to_dict())


def _cluster(world: World) -> Cluster:
    """This run's GPUs, all with the memory of the smallest: every rank has to choose alike."""
    worlds.init_process_group(world, deepspeed=True)
    properties = torch.cuda.get_device_properties(world.local_rank)
    smallest = torch.tensor([properties.total_memory], dtype=torch.int64, device="cuda")
    dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
    memory = int(smallest.item()) / GIB
    return cluster(f"{properties.name}:{world.local_size}", nodes=max(1, world.size // world.local_size), memory=memory)


@dataclass(frozen=True)
class Plan:
    """What was decided before anything large was loaded."""

    recipe: Recipe
    title: str
    world: World
    config: Any
    task: models.Task
    batch: BatchPlan
    precision: Precision
    deepspeed: dict[str, Any] | None
    phases: frozenset[str]


def decide_plan(
    recipe: Recipe,
    title: str,
    world: World,
    *,
    notify: Callable[[str], None],
    remedy: MemoryFallback = NO_FALLBACK,
    saved_batch: int | None = None,
) -> Plan:
    """Everything that follows from flags, hardware and the model's config alone, and from earlier attempts: what memory
    allows, and the global batch `saved_batch` of the checkpoint to go on from."""
    config = models.load_config(recipe.spec)
    task = models.decide_task(config, recipe.spec.task, recipe.spec.model or recipe.spec.model_type)
    recipe = _with_stage(recipe, config, task, world, notify)
    recipe = memory_fallbacks.with_fallback(recipe, remedy)
    deepspeed = engine.configuration(recipe.spec, recipe.hf, engine.hidden_size(config))
    precision = _precision(recipe, config, world, deepspeed)
    asked = _batch(recipe, world, saved_batch, notify)
    batch = memory_fallbacks.with_smaller_batch(asked, remedy)
    words = memory_fallbacks.notice(asked, batch, remedy)
    if words:
        notify(words)
    return Plan(recipe, title, world, config, task, batch, precision, deepspeed, phases(recipe))


def _batch(recipe: Recipe, world: World, saved: int | None, notify: Callable[[str], None]) -> BatchPlan:
    spec = recipe.spec
    micro = spec.micro_batch_size or recipe.hf.get("per_device_train_batch_size")
    accumulation = recipe.hf.get("gradient_accumulation_steps")

    def plan(global_batch: int | None) -> BatchPlan:
        return batch_plan(
            global_batch_size=global_batch,
            micro_batch_size=micro,
            accumulation=accumulation,
            world_size=world.size,
            # --micro-batch-size auto begins with a rank's whole share; the supervisor halves it where memory runs out.
            default_micro=(global_batch or DEFAULT_MICRO_BATCH) if spec.auto_micro_batch else DEFAULT_MICRO_BATCH,
        )

    asked = plan(spec.global_batch_size)
    # Steps and the place in the data are counted in global batches: one that followed from the number of ranks stays.
    if spec.global_batch_size or accumulation or saved is None or saved == asked.global_batch:
        return asked
    if saved % (world.size * (micro or 1)):
        return asked
    notify(f"the global batch stays {saved}, as it was when the checkpoint was saved")
    return plan(saved)


def _with_stage(recipe: Recipe, config: Any, task: models.Task, world: World, notify: Callable[[str], None]) -> Recipe:
    if recipe.spec.zero != "auto":
        return recipe
    recipe, words = resolve_zero_auto(recipe, config, task, _precision(recipe, config, world, None), world)
    notify(words)
    return recipe


def _precision(recipe: Recipe, config: Any, world: World, deepspeed: dict[str, Any] | None) -> Precision:
    return decide_precision(
        recipe.hf,
        model_type=config.model_type,
        bf16_supported=worlds.bf16_supported(world.device, cpu_bf16()),
        device=world.device,
        deepspeed=deepspeed,
        force=recipe.spec.force,
    )


def prepare_and_report(
    request: DataRequest, tokenizer: Any, console: Console, *, beat: Callable[[], None] = lambda: None
) -> PreparedData:
    """Load and tokenise the data, telling the user what is worth knowing about it; `beat` is a sign of life."""
    task = console.task("tokenising")

    def progress(_split: str, done: int, total: int) -> None:
        beat()
        task.update(done, total)

    data = prepare_data(request, tokenizer, notify=console.notice, progress=progress)
    for notice in data.notices:
        console.notice(notice)
    for split, cut in data.truncation.items():
        if cut.cut:
            console.notice(f"{split}: {cut.sentence()}")
    return data


def data_request(recipe: Recipe, config: Any, task: models.Task, tokens: int, wanted: frozenset[str]) -> DataRequest:
    """What the data room needs to know; `dsrun prepare` asks with the same words, so both find the same cache."""
    text = config.get_text_config()
    return DataRequest(
        spec=recipe.spec,
        task=task,
        model_type=config.model_type,
        max_positions=getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None),
        vocab_size=max(text.vocab_size, tokens),
        splits=wanted,
        required=frozenset({"validation"}) if evaluation_is_asked_for(recipe) else frozenset(),
    )
