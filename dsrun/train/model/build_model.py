"""The model with its weights: drawn, or loaded from files that give all of them."""

import os
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

from dsrun.errors import one_line
from dsrun.hub.modelscope_cache import local_name
from dsrun.models.families import family_of
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.system.terminal.display import NotePrinter
from dsrun.train.base.plan import ModelTask
from dsrun.train.model.initial_weights import draw, initialise, undrawn
from dsrun.train.model.load import AUTO_CLASS, OwnCode, from_hub, one_at_a_time, refused_attention, refused_values
from dsrun.train.model.loaded_weights import WeightDifferences, incomplete_refused, judge, refuse_or_note
from dsrun.train.model.quantization import keep_codes
from dsrun.train.model.text_part import WholeCheckpoint, find_whole, keep_used
from dsrun.train.model.zero3 import loading, outside_zero3


def build(
    spec: TrainSpec,
    config: Any,
    task: ModelTask,
    quantization: Any = None,
    *,
    seed: int = 0,
    device: str = "cpu",
    notify: NotePrinter = lambda _: None,
    alone: bool = False,
) -> Any:
    """The model with its weights: loaded, or drawn by `seed` on a `device` of this kind under --from-scratch; under
    ZeRO-3 shard by shard, provided the DeepSpeed configuration is registered before. Weights are fp32 unless asked
    otherwise: in bf16 small updates are rounded away. With `quantization`, transformers' settings of it, each rank
    loads the whole model.

    All ranks call this together, unless one does so `alone`. Raises UsageError where files do not give all weights."""
    # Before the model, which under ZeRO-3 all ranks load together, so that none may wait for another then.
    reference = (getattr(config, "auto_map", None) or {}).get(AUTO_CLASS[task].__name__)
    if spec.trust_remote_code and reference:
        name = (None if spec.from_scratch else spec.model) or config.name_or_path
        with one_at_a_time(True):
            from_hub(OwnCode, name, "model", spec, reference=reference)
    dtype = "auto" if spec.weights_dtype == "auto" else getattr(torch, spec.weights_dtype)
    options: dict[str, Any] = {"trust_remote_code": spec.trust_remote_code, "dtype": dtype}
    if spec.attn_implementation:
        options["attn_implementation"] = spec.attn_implementation
    if spec.from_scratch or spec.model is None:
        model = _built(spec, config, task, options)
        initialise(model, seed, device)
    else:
        if quantization is not None:
            options["quantization_config"] = quantization
        model, drawn = _load(spec, task, options | {"config": config}, notify=notify, alone=alone)
        if drawn:
            draw(model, seed, only=drawn, device=device)
        if quantization is not None:
            keep_codes(model)
        _freeze(model, task, {"trust_remote_code": spec.trust_remote_code})
    # Keys and values are of use in generation alone; in training they take memory, and checkpointed layers warn of them
    # (transformers' modeling_layers.py).
    model.config.use_cache = False
    for each in model.modules():
        if isinstance(each, PreTrainedModel) and family_of(config.model_type).casts_no_tables:
            each.register_forward_pre_hook(_cast_tables)
        if type(each).__name__ == "FalconAttention":
            each.register_forward_pre_hook(_add_alibi_once, with_kwargs=True)
    return model


def _cast_tables(part: Any, args: Any) -> None:
    """Engines cast parameters alone: with a table of fp32, activations would be fp32, which layers in bf16 refuse."""
    for each in part.buffers():
        if each.is_floating_point():
            each.data = each.data.to(part.dtype)


def _add_alibi_once(layer: Any, args: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Eager attention of transformers' Falcon adds ALiBi to scores and mask, though it is in the mask of each head."""
    alibi, mask = named["alibi"], named["attention_mask"]
    return args, named if alibi is None or mask is None or mask.shape[1] == 1 else named | {"alibi": alibi * 0}


def _freeze(model: Any, task: ModelTask, options: dict[str, Any]) -> None:
    """Freeze what the model's class makes frozen: tables of sines, the biases by which experts are chosen.

    Loading them, transformers has all weights trained, but for those that ZeRO-3 shards: weight decay would shrink
    them, and a checkpoint would fit no other stage."""
    try:
        with torch.device("meta"), outside_zero3(), undrawn():
            fresh = AUTO_CLASS[task].from_config(deepcopy(model.config), **options)
    except Exception:  # code of the model's own may fail in any way
        return
    frozen = {name for name, each in fresh.named_parameters() if not each.requires_grad}
    for name, each in model.named_parameters():
        if name in frozen:
            each.requires_grad_(False)


def _built(spec: TrainSpec, config: Any, task: ModelTask, options: dict[str, Any]) -> Any:
    dtype = torch.float32 if options["dtype"] == "auto" else options["dtype"]
    try:
        with undrawn():
            return AUTO_CLASS[task].from_config(config, **options | {"dtype": dtype})
    except Exception as error:  # a class of the model's own may fail in any way
        refused = refused_attention(spec.attn_implementation, spec.model or config.model_type, one_line(error))
        if refused := refused or refused_values(spec, error):
            raise refused from error
        raise


def compared(spec: TrainSpec, config: Any, task: ModelTask) -> tuple[Any, WeightDifferences]:
    """The model of --model without storage, and how its files differ from it. Of them, names and shapes are read."""
    whole, load = _loading(spec, task, {"config": config, "trust_remote_code": spec.trust_remote_code})
    with outside_zero3():
        model, found = load(device_map="meta")
    return model, replace(found, unexpected=found.unexpected - {*whole.others}) if whole else found


def _loading(spec: TrainSpec, task: ModelTask, options: dict[str, Any]) -> tuple[WholeCheckpoint | None, Any]:
    """The checkpoint that the model is a part of, and what loads it: a function of more options that returns the model
    and how its files differ from it."""
    hub = {"cache_dir": spec.cache_dir, "revision": spec.model_revision, "token": spec.token}
    whole = find_whole(local_name(spec.model or "", "model", spec, os.environ), options["config"], **hub)
    renaming = whole.keys.renaming if whole else {}
    if renaming:
        options = {**options, "key_mapping": renaming}

    def load(**more: Any) -> tuple[Any, WeightDifferences]:
        asked = {"output_loading_info": True, "ignore_mismatched_sizes": True}
        with incomplete_refused(spec):
            model, info = from_hub(AUTO_CLASS[task], spec.model or "", "model", spec, **options, **asked, **more)
        keep_used(model, renaming)
        return model, WeightDifferences.of(info)

    return whole, load


def _load(
    spec: TrainSpec, task: ModelTask, options: dict[str, Any], *, notify: NotePrinter, alone: bool
) -> tuple[Any, Any]:
    """The model with the weights of --model, and the names of those that its files do not give. Raises UsageError where
    they should have given them, or hold others."""
    sharded = is_deepspeed_zero3_enabled() and "quantization_config" not in options
    whole, load = _loading(spec, task, options)

    def check(model: Any, found: WeightDifferences) -> None:
        if whole:
            found = replace(found, unexpected=found.unexpected - {*whole.others})
        judgement = judge(model, found)
        for note in refuse_or_note(judgement, spec, sharded=sharded, alone=alone):
            notify(note)

    if not sharded:
        model, found = load()
        check(model, found)
    else:
        # Under ZeRO-3 transformers does not look for all differences, and stops at others on rank 0 alone, while the
        # other ranks wait. Without a device it reads names and shapes only.
        with outside_zero3():
            empty, known = load(device_map="meta")
        check(empty, known)
        with loading():
            model, found = load()
        # On all ranks, whatever this one has found.
        check(model, replace(found, missing=found.missing - known.missing))
    if whole:
        notify(whole.sentence(type(model).__name__, text_only=spec.text_only))
        model.whole = whole
    return model, found.drawn
