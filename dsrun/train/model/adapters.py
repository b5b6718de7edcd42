"""What of a model is trained: LoRA adapters and new tokens, or all but the parameters that --freeze names."""

import logging
import os
from copy import deepcopy
from pathlib import Path
from typing import Any

from torch.nn import Linear
from transformers import AutoTokenizer

from dsrun.datafiles import evaluate, toml_beside
from dsrun.errors import UsageError, one_line
from dsrun.hub.modelscope_cache import local_name
from dsrun.recipe.preflight.files import is_path
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.base.plan import ModelTask
from dsrun.train.base.refusals import refusal, refuse
from dsrun.train.model.load import AUTO_CLASS
from dsrun.train.model.parameter_groups import matching

logger = logging.getLogger(__name__)

ALL_LINEAR = "all-linear"
_MAMBAS, _LEFT_OUT = ("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h"), ("out_proj", "conv1d")
"""Families, and layers of theirs that their kernels read without a call: PEFT refuses these by name, and would refuse
all-linear for them (tuners_utils.py, _check_lora_target_modules_mamba)."""


def lora_targets(spec: TrainSpec) -> list[str] | str:
    """The modules that get adapters."""
    return ALL_LINEAR if spec.lora_targets in ([], [ALL_LINEAR]) else spec.lora_targets


def select_trained(model: Any, spec: TrainSpec, task: ModelTask, tokens: range, *, sharded: bool = False) -> Any:
    """The model with only those parameters trained that the settings name; `tokens` are its new ones."""
    if spec.lora:
        return add_lora(model, spec, task, new_tokens=tokens, sharded=sharded)
    freeze(model, spec.freeze)
    return model


def add_lora(
    model: Any, spec: TrainSpec, task: ModelTask, *, new_tokens: range = range(0), sharded: bool = False
) -> Any:
    """The model with adapters, and with the rows of `new_tokens` trained in its embeddings.

    Raises UsageError for modules that the model does not have, and for what peft cannot do with a `sharded` (ZeRO-3)
    model."""
    from peft import LoraConfig, TaskType, get_peft_model

    tokens = _embeddings(model) if new_tokens else []
    if set(tokens) <= set(spec.lora_modules_to_save):
        tokens = []  # saved, and trained, whole
    if tokens:
        bias = getattr(model.get_output_embeddings(), "bias", None)
        refuse("lora_rows", count=len(new_tokens), whole=" ".join(tokens), sharded=sharded, bias=bias)
    outputs = model.get_output_embeddings()
    linear = {name: each for name, each in model.named_modules() if isinstance(each, Linear) and each is not outputs}
    known: dict[str, Any] = {"spec": spec, "task": task, "types": TaskType, "left_out": _left_out(model, linear)}
    known |= {"targets": lora_targets(spec), "rows": {name: list(new_tokens) for name in tokens}}
    config = LoraConfig(**{name: evaluate(each, known) for name, each in toml_beside(__file__)["lora"].items()})
    _check_modules(model, spec)
    try:
        adapted = get_peft_model(model, config, revision=spec.model_revision)
    except ValueError as error:
        # Of families with fused experts peft takes these for linear layers too.
        fused = "ParamWrapper" in str(error)
        flag = "--dora" if spec.dora else "--lora-dropout" if spec.lora_dropout else "--lora-targets"
        names = " ".join(sorted({name.rpartition(".")[2] for name in linear}))
        fix = f"leave it out, or name other layers: --lora-targets {names}"
        what = "peft cannot do that for fused experts" if fused else one_line(error)
        raise UsageError(f"{flag}: {what}", fix=fix if fused else None) from error
    base = local_name(spec.model, "model", spec, os.environ) if spec.model else ""
    if base and is_path(base):
        # Whoever loads the adapter from another folder finds it by this.
        adapted.peft_config["default"].base_model_name_or_path = str(Path(base).expanduser().absolute())
    # With frozen embeddings, checkpointed blocks would otherwise see inputs that need no gradient and give none.
    adapted.enable_input_require_grads()
    return adapted


def _left_out(model: Any, linear: dict[str, Any]) -> list[str] | None:
    """Linear layers that all-linear does not mean, by the last part of their names: those that PEFT refuses, and kinds
    of the model's own, such as routers that return a tuple. FalconLinear computes what Linear does."""
    own = {
        name.rpartition(".")[2]
        for name, each in linear.items()
        if ".modeling_" in type(each).__module__ and type(each).__name__ != "FalconLinear"
    }
    return [*_LEFT_OUT] if getattr(model.config, "model_type", None) in _MAMBAS else sorted(own) or None


def check_adapters(spec: TrainSpec, config: Any, task: ModelTask) -> None:
    """Raise UsageError for adapters that this model cannot have, before its weights are loaded. A model that cannot be
    made without them is looked at later."""
    if not spec.lora or not (spec.dora or spec.lora_dropout or spec.lora_target_parameters):
        return
    from accelerate import init_empty_weights

    try:
        with init_empty_weights():
            model = AUTO_CLASS[task].from_config(deepcopy(config), trust_remote_code=spec.trust_remote_code)
        add_lora(model, spec, task)
    except UsageError:
        raise
    except Exception:  # code of the model's own may fail in any way
        logger.debug("no empty model to try adapters on", exc_info=True)


def _check_modules(model: Any, spec: TrainSpec) -> None:
    """Raise UsageError for the first module named that the model does not have."""
    found = [name for name, _ in model.named_modules()]
    for flag, names in (("--lora-targets", spec.lora_targets), ("--lora-modules-to-save", spec.lora_modules_to_save)):
        for name in names:
            if name == ALL_LINEAR or any(each == name or each.endswith(f".{name}") for each in found):
                continue
            only_linear = flag == "--lora-targets"
            what, known = "linear layers" if only_linear else "modules", _last_names(model, only_linear)
            given = " ".join(names)
            raise refusal("lora.no_module", flag=flag, given=given, name=name, what=what, known=known)
    fused = [name for name, each in model.named_parameters() if len(getattr(each, "ds_shape", each.shape)) == 3]
    for name in spec.lora_target_parameters:
        if not any(f".{each}".endswith(f".{name}") for each, _ in model.named_parameters()):
            ends = ", ".join(sorted({".".join(each.split(".")[-3:]) for each in fused}))
            raise refusal("lora.no_parameter" if ends else "lora.no_experts", name=name, ends=ends)


def _last_names(model: Any, only_linear: bool) -> str:
    """The last parts of the names of its modules with weights, which are the same in every layer."""
    weighty = {name.rpartition(".")[0] for name, _ in model.named_parameters()}
    linear = {name for name, module in model.named_modules() if isinstance(module, Linear)}
    return ", ".join(sorted({name.rpartition(".")[2] for name in (linear if only_linear else weighty)}))


def new_tokens(model_rows: int, tokenizer: Any, spec: TrainSpec) -> range:
    """The ids that the model was not trained with: those beyond the `model_rows` rows of its embedding, or beyond its
    own tokenizer where --tokenizer names an extended one."""
    known = model_rows
    if spec.lora and spec.tokenizer and spec.model and spec.tokenizer != spec.model:
        try:
            folder = local_name(spec.model, "model", spec, os.environ)
            own = AutoTokenizer.from_pretrained(folder, revision=spec.model_revision, token=spec.token)
        except Exception:  # whatever a class of tokenizers makes of a folder without its files
            return range(known, len(tokenizer))
        vocabulary = tokenizer.get_vocab()
        if all(vocabulary.get(token) == index for token, index in own.get_vocab().items()):
            known = min(known, len(own))
    return range(known, len(tokenizer))


def _embeddings(model: Any) -> list[str]:
    """The names of the modules with a row for each token: the input embedding, and the output layer where that has
    weights of its own."""
    inputs, outputs = model.get_input_embeddings(), model.get_output_embeddings()
    names = {id(module): name for name, module in model.named_modules(remove_duplicate=False)}
    found = [names[id(inputs)]]
    if outputs is not None and not model.config.tie_word_embeddings:
        found.append(names[id(outputs)])
    return [name.rpartition(".")[2] for name in found]


def saved_embeddings(model: Any) -> dict[str, bool]:
    """What `save_pretrained` is to be told: of embeddings with trained rows to save these alone, and not the whole."""
    config = getattr(model, "peft_config", {}).get("default")
    return {"save_embedding_layers": False} if getattr(config, "trainable_token_indices", None) else {}


def freeze(model: Any, patterns: list[str]) -> int:
    """Take the parameters that match one of these patterns out of training; returns how many numbers they hold.

    `model.embed_tokens` and `model.layers.[0-3].*` are such patterns. Raises UsageError for one that matches nothing,
    and where nothing is left to train."""
    named = dict(model.named_parameters())
    frozen = 0
    for pattern in patterns:
        for name in matching(named, "--freeze", pattern, "parameter", "its modules are"):
            if named[name].requires_grad:
                frozen += getattr(named[name], "ds_numel", None) or named[name].numel()
                named[name].requires_grad_(False)
    if patterns and not any(each.requires_grad for each in named.values()):
        raise UsageError(f"--freeze {' '.join(patterns)}: nothing is left to train", fix="freeze less")
    return frozen
