"""`--zero auto`: the ZeRO stage that fits, found by counting the model on the meta device, without memory.

`python -m dsrun.train.model.zero_auto FOLDER` prints such a count as one JSON object: `tensors`, a list of [name,
shape, kind] in the order of the model, tied tensors once, with the kinds of `dsrun.zero.memory.model.architecture`;
`config`, the settings of the model, defaults included; and `transformers`, the version that built it."""

import json
import os
import sys
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForImageTextToText, AutoModelForMultimodalLM, AutoModelForSpeechSeq2Seq
from transformers.pytorch_utils import Conv1D

from dsrun.errors import MissingError
from dsrun.hub.modelscope_cache import local_name
from dsrun.models.folder import FoundModel, find
from dsrun.recipe.flags import ZERO_STAGE
from dsrun.recipe.parsed_value import config_flags
from dsrun.recipe.precision import TrainingPrecision
from dsrun.recipe.preflight.files import of_teacher
from dsrun.recipe.recipe import Recipe
from dsrun.recipe.recipe_spec import DEFAULT_TARGET, TrainSpec
from dsrun.recipe.resolve import with_defaults
from dsrun.train.base import distributed as worlds
from dsrun.train.base.distributed import DistributedWorld
from dsrun.train.base.plan import ModelTask
from dsrun.train.model.load import auto_class, load_config, one_at_a_time
from dsrun.zero.generate.presets import GIB
from dsrun.zero.memory import plan as memory_plan
from dsrun.zero.memory.model.architecture import LayerWeight, ModelShapes
from dsrun.zero.memory.model.count import count, describe
from dsrun.zero.memory.model.widths import architecture_of
from dsrun.zero.memory.plan_request import GpuCluster, attention_of, cluster

SOURCE = "--zero auto"


def resolve_zero_auto(
    recipe: Recipe, config: Any, task: ModelTask, precision: TrainingPrecision, world: DistributedWorld
) -> tuple[Recipe, str]:
    """The recipe with a stage, and with offload, micro batch and recomputation where the user left them open; and the
    choice in words. Raises UsageError when nothing fits, with what would."""
    # The user's `auto` makes room for the stage, which is put under the rest of what was given.
    sources = {name: source for name, source in recipe.sources.items() if name != "zero"}
    # The plan's micro batch is where --micro-batch-size auto begins.
    left_open = dict.fromkeys(("zero", "auto_micro_batch"), "default")
    spec = replace(recipe.spec, zero=None, auto_micro_batch=False)
    opened = replace(recipe, spec=spec, sources=sources | left_open)
    why = "there is no GPU whose memory could run out"
    if world.device != "cpu":
        try:
            settings, message = _choose(opened, config, task, precision, _cluster(world))
            return with_defaults(opened, settings, SOURCE), message
        except MissingError:
            why = f"{config.model_type} models cannot be counted without their weights"
    return with_defaults(opened, {"zero": str(ZERO_STAGE)}, SOURCE), f"{SOURCE}: ZeRO-{ZERO_STAGE}, as {why}"


def _choose(
    recipe: Recipe, config: Any, task: ModelTask, precision: TrainingPrecision, gpus: GpuCluster
) -> tuple[dict[str, object], str]:
    spec = recipe.spec
    target, source = lengths(spec, task)
    found = _found(spec)
    # Under the content of config.json `dsrun plan --calibrate` keeps its corrections.
    stored = found.config if found else dict(config.to_dict())
    model = _architecture(spec, found, stored, config)
    chosen = memory_plan.decide(
        stored,
        model,
        gpus,
        precision=precision,
        length=target,
        source_length=source,
        global_batch=spec.global_batch_size,
        micro_batch=spec.micro_batch_size or recipe.hf.get("per_device_train_batch_size"),
        lora=spec.lora,
        checkpointing=recipe.hf.get("gradient_checkpointing"),
        offload=spec.offload if recipe.given("offload") else None,
        attention=attention_of(spec.attn_implementation),
        beside=_beside(spec, model),
        rows=2 if spec.task == "dpo" else 1,
    )
    return memory_plan.settings(chosen), memory_plan.message(chosen)


def _beside(spec: TrainSpec, model: ModelShapes) -> ModelShapes | None:
    """The teacher, or the copy that DPO compares with."""
    if spec.task != "distill":
        return model if spec.task == "dpo" and not spec.lora else None
    teacher = of_teacher(spec)
    config = load_config(teacher)
    return _architecture(teacher, _found(teacher), dict(config.to_dict()), config)


def _architecture(spec: TrainSpec, found: FoundModel | None, stored: dict[str, Any], config: Any) -> ModelShapes:
    """The model's shapes; those that neither the headers of its weights nor its family tells are read off the model,
    without its storage."""
    try:
        if found:
            return count(found, meta=False, from_scratch=spec.from_scratch).architecture
        return describe(stored, from_scratch=spec.from_scratch)
    except MissingError as unknown:
        try:
            made = report(without_storage(config, trust_remote_code=spec.trust_remote_code))
            weights = tuple(LayerWeight(name, tuple(shape), kind) for name, shape, kind in made["tensors"])
            return architecture_of(made["config"], weights)
        except Exception as error:  # a model may fail in any way without storage, and train well with it
            raise unknown from error


def lengths(spec: TrainSpec, task: ModelTask) -> tuple[int | None, int | None]:
    """Tokens per target (or block) and per source that the run's flags allow; None: the model's usual length."""
    if task == "causal-lm":
        return spec.block_size or spec.max_length, None
    return spec.max_target_length or DEFAULT_TARGET, spec.max_source_length or spec.max_length


def _found(spec: TrainSpec) -> FoundModel | None:
    """The model's folder, where the run takes its config as it is."""
    changed = config_flags(spec) or spec.config_name
    if spec.model and not changed:
        with suppress(MissingError):  # downloaded to a cache that only transformers knows
            return find(local_name(spec.model, "model", spec, os.environ))
    return None


def _cluster(world: DistributedWorld) -> GpuCluster:
    """This run's GPUs, all with the memory of the smallest: every rank has to choose alike."""
    # Earlier than other runs, which prepare their data first: ranks must agree on the stage before all else.
    worlds.init_process_group(world, deepspeed=True)
    properties = torch.cuda.get_device_properties(world.gpu)
    memory = min(worlds.all_gather_object(properties.total_memory)) / GIB
    return cluster(f"{properties.name}:{world.local_size}", nodes=max(1, world.size // world.local_size), memory=memory)


# Models that hear or see, too, which this program counts and does not train.
_COUNTED = (AutoModelForSpeechSeq2Seq, AutoModelForImageTextToText, AutoModelForMultimodalLM)


def counted(folder: str) -> dict[str, Any]:
    """What the model in a folder consists of."""
    config = AutoConfig.from_pretrained(folder)
    own = auto_class(config)
    # A family that no class is registered for is built as a text model, so that the error names it.
    auto = next((each for each in (own, *_COUNTED) if type(config) in each._model_mapping), own)
    return report(without_storage(config, auto))


def without_storage(config: Any, auto: Any = None, *, trust_remote_code: bool = False) -> Any:
    """The model of a config, with tensors that have a shape and nothing behind it."""
    auto = auto or auto_class(config)
    with one_at_a_time(trust_remote_code), torch.device("meta"):
        return auto.from_config(config, trust_remote_code=trust_remote_code)


def tensors(model: Any) -> list[tuple[str, list[int], str]]:
    owners: dict[int, Any] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), module)
    output = model.get_output_embeddings()
    return [(name, list(p.shape), _kind(p, owners[id(p)], output)) for name, p in model.named_parameters()]


def _kind(parameter: Any, owner: Any, output: Any) -> str:
    if not parameter.requires_grad:
        return "frozen"
    if parameter.ndim == 1:
        return "vector"
    if isinstance(owner, torch.nn.Embedding):
        return "embedding"
    if owner is output:
        return "head"
    return "linear" if isinstance(owner, torch.nn.Linear | Conv1D) else "experts"


def report(model: Any) -> dict[str, Any]:
    settings = json.loads(model.config.to_json_string(use_diff=False))
    return {"tensors": tensors(model), "config": settings, "transformers": transformers.__version__}


if __name__ == "__main__":
    json.dump(counted(sys.argv[1]), sys.stdout)
