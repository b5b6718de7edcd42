"""The end of a run: one Hugging Face folder with weights and tokenizer, whatever the ZeRO stage.

A text model that was trained is put back into the checkpoint that it is a part of, as the class that the checkpoint is
of: what was trained replaces the tensors of the same names; all others are copied byte for byte, one at a time."""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dsrun.datafiles import toml_beside
from dsrun.errors import DsrunError, MissingError, ToolError, UsageError, one_line
from dsrun.models.headers import read_header
from dsrun.runs.heartbeat import SignOfLife
from dsrun.runs.manifest import STATE_FILE
from dsrun.runs.records import fsync_folder, sync_file, write_json_atomic
from dsrun.system.files import delete_tree, parse_json, replace_folder
from dsrun.system.terminal.display import NotePrinter, size_text
from dsrun.train.base.plan import ModelTask
from dsrun.train.base.refusals import notice_of, refusal
from dsrun.train.card.write_card import FILE as CARD
from dsrun.train.card.write_card import is_edited
from dsrun.train.checkpoint.weight_files import ExportWeight, stored_weights, tensor_bytes, write_weights
from dsrun.train.model.adapters import saved_embeddings
from dsrun.train.model.initial_weights import leave_undrawn, undrawn
from dsrun.train.model.load import AUTO_CLASS
from dsrun.train.model.text_part import TextKeys, WholeCheckpoint, text_config
from dsrun.train.model.zero3 import outside_zero3

# Bytes a checkpoint holds per trainable parameter beside its weights: fp32 master copy and AdamW's two moments.
OPTIMIZER_BYTES = 12


def check_room(
    free: int, *, parameters: int, trainable: int, weight_bytes: int, checkpoints: bool, where: Path
) -> None:
    """Raise UsageError where the disk cannot take the final model, and one checkpoint if there are to be any."""
    needed = parameters * weight_bytes
    if checkpoints:
        needed += parameters * weight_bytes + trainable * OPTIMIZER_BYTES
    if free < needed:
        raise refusal("export.room_at_end", where=where, free=size_text(free), needed=size_text(needed))


def save_final(
    trainer: Any,
    folder: Path,
    task: ModelTask,
    *,
    lora: bool,
    base: Callable[[], Any] | None = None,
    complete: Callable[[Path], Path] = lambda partial: partial,
) -> None:
    """Write the model and tokenizer to `folder`, atomically; called on all ranks, as ZeRO-3 gathers its
    shards. A LoRA run leaves the adapter in `adapter/` beside it and the merged model in `folder`; where the base model
    was quantised, `base` loads it as it was before. `complete` makes of the model's folder that of a larger one."""
    partial, adapter = folder.with_name(f"{folder.name}.partial"), folder.with_name("adapter.partial")
    if trainer.args.should_save:
        # Of a save that was killed: its shards must not get among these.
        delete_tree(partial)
        delete_tree(adapter)
    if lora:
        state = trainer.accelerator.get_state_dict(trainer.model_wrapped)
        if trainer.args.should_save:
            trainer.model.save_pretrained(adapter, state_dict=state, **saved_embeddings(trainer.model))
            trainer.save_own_config(adapter)
            trainer.processing_class.save_pretrained(adapter)
            # peft's template of a card, with nothing filled in.
            (adapter / CARD).unlink(missing_ok=True)
            _replace(adapter, folder.with_name("adapter"))
            _save_merged(trainer, partial, state, task, base)
    else:
        trainer.save_model(str(partial))
    if trainer.args.should_save:
        # A pickle that may hold the Hub token and that from_pretrained has no use for.
        (partial / "training_args.bin").unlink(missing_ok=True)
        _check_shapes(partial)
        _replace(complete(partial), folder)
        delete_tree(partial)


def completed(whole: WholeCheckpoint, partial: Path, *, notify: NotePrinter, beat: SignOfLife) -> Path:
    """The folder of the model that the text model in `partial` is a part of; `partial` itself where that cannot be
    made, which is said: a training is not lost for a base model that has gone meanwhile."""
    folder = partial.with_name(f"{partial.name}.whole")
    delete_tree(folder)
    try:
        write_whole(partial, whole.folder, whole.keys, folder, beat=beat)
    except (DsrunError, OSError, ValueError, RuntimeError) as error:
        delete_tree(folder)
        why = one_line(error)
        notify(notice_of("model.text_alone", model=partial.with_suffix(""), whole=whole.name, why=why))
        return partial
    return folder


def _save_merged(
    trainer: Any, folder: Path, state: dict[str, Any], task: ModelTask, load_base: Callable[[], Any] | None
) -> None:
    """Merge on a fresh copy in host memory: the trained model's weights may be sharded over all ranks, or quantised."""
    from peft import get_peft_model

    base = trainer.model.get_base_model()
    # While ZeRO-3's configuration is registered, from_config would shard the model over ranks that do not come here.
    with outside_zero3():
        if load_base is None:
            with undrawn():
                fresh = AUTO_CLASS[task].from_config(base.config, dtype=next(iter(state.values())).dtype)
            leave_undrawn(fresh)
            # What the config ties, and the base's files have apart (T5 v1.1).
            for name in fresh.all_tied_weights_keys.keys() - base.all_tied_weights_keys.keys():
                del fresh.all_tied_weights_keys[name]
                place, _, last = name.rpartition(".")
                weight = fresh.get_parameter(name)
                setattr(fresh.get_submodule(place), last, torch.nn.Parameter(weight.detach().clone()))
            # By it a save gives the tensors the names and shapes that they have in the base model's files.
            fresh._weight_conversions = getattr(base, "_weight_conversions", None)
        else:
            fresh = load_base()
        adapted = get_peft_model(fresh, trainer.model.peft_config["default"])
        if load_base is None:
            missing = adapted.load_state_dict(state, strict=False).missing_keys
        else:
            trained = {name: state[name] for name, each in trainer.model.named_parameters() if each.requires_grad}
            missing = adapted.load_state_dict(trained, strict=False).unexpected_keys
        tied = set(getattr(fresh, "all_tied_weights_keys", None) or {})
        lost = [name for name in missing if not any(name.endswith(key) for key in tied)]
        if lost:
            raise ToolError(f"the merged model would lack {len(lost)} weights, {lost[0]} first")
        merged = adapted.merge_and_unload()
    merged.generation_config = base.generation_config
    merged.save_pretrained(folder)
    trainer.processing_class.save_pretrained(folder)


def _check_shapes(folder: Path) -> None:
    """Refuse weights of size 0: ZeRO-3 placeholders saved as if they were whole."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ToolError(f"no weights were saved to {folder}")
    for file in files:
        empty = [name for name, (_, shape) in read_header(file).items() if 0 in shape]
        if empty:
            raise ToolError(f"{file} holds empty weights ({empty[0]}): the shards of ZeRO-3 were not gathered")


def _replace(partial: Path, folder: Path) -> None:
    """Show `partial` as `folder` once it is on the disk: FINISHED, after which a scheduler leaves the run alone, is
    there before the kernel would write these files. A model card that the user has edited stays."""
    if is_edited(folder / CARD):
        shutil.copyfile(folder / CARD, partial / CARD)
    for path in sorted(partial.rglob("*")):
        if path.is_file():
            sync_file(path)
        elif path.is_dir():
            fsync_folder(path)
    fsync_folder(partial)
    replace_folder(partial, folder)
    fsync_folder(folder.parent)


SHARD = 5 * 10**9
WEIGHTS = "model*.safetensors"
_TABLE = toml_beside(__file__)


def put_together(
    tuned: Sequence[ExportWeight], base: Path, keys: TextKeys
) -> tuple[list[ExportWeight], dict[str, ExportWeight]]:
    """The tensors of the model in `base` with those of its text model replaced, in the order of the base's files; and
    by name those of them that are the base's own. Raises ToolError for a tuned one that has no place there: the whole
    would then hold both it and what it was made of."""
    stored = {weight.name: weight for weight in stored_weights(base, WEIGHTS)}
    if not stored:
        raise UsageError(f"{base} has no safetensors files")
    found = {keys.stored(weight.name): weight for weight in tuned}
    strange = sorted(found.keys() - stored.keys())
    if strange:
        raise ToolError(f"{base} has no {strange[0]}, which was trained")
    for name, weight in found.items():
        # Rows of an embedding may have been added.
        if weight.shape[1:] != stored[name].shape[1:] or weight.shape[:1] < stored[name].shape[:1]:
            raise ToolError(f"{name} has shape {list(weight.shape)}, in {base} {list(stored[name].shape)}")
    weights = [replace(found[name], name=name) if name in found else each for name, each in stored.items()]
    return weights, {name: each for name, each in stored.items() if name not in found}


def text_weights(stored: Sequence[ExportWeight], keys: TextKeys) -> list[ExportWeight]:
    """Those of a whole model's tensors that are its text model's, by the names there."""
    return [replace(weight, name=own) for weight in stored if (own := keys.own(weight.name)) is not None]


def whole_config(text: Mapping[str, Any], base: Path, weights: Sequence[ExportWeight]) -> dict[str, Any]:
    """The content of the base's config.json, with what `text`, a text model's, says otherwise than the base's does; and
    with the dtype of the tuned `weights`, in which from_pretrained loads them."""
    from transformers import AutoConfig

    config = parse_json((base / "config.json").read_text())
    own = text_config(AutoConfig.from_pretrained(base))
    before, after = (json.loads(each.to_json_string(use_diff=False)) for each in (own, type(own).from_dict(dict(text))))
    left_out = _TABLE["not_of_model"]
    changed = {name: value for name, value in after.items() if name not in left_out and before.get(name) != value}
    config["text_config"] = {**(config.get("text_config") or {}), **changed}
    config |= {name: value for name, value in changed.items() if name in config}
    set_dtype(config, weights)
    return config


def set_dtype(config: dict[str, Any], weights: Iterable[ExportWeight]) -> None:
    """Put the weights' dtype, in which from_pretrained loads them, into the content of a config.json."""
    dtypes = {weight.dtype for weight in weights if weight.dtype.is_floating_point}
    config.pop("torch_dtype", None)
    config["dtype"] = str(max(dtypes, key=lambda dtype: dtype.itemsize)).removeprefix("torch.")


def write_whole(text: Path, base: Path, keys: TextKeys, folder: Path, *, beat: SignOfLife) -> None:
    """Write to `folder` what the text model in `text` makes of the checkpoint in `base`, and prove it. Raises ToolError
    where it does not hold what it should, and OSError."""
    folder.mkdir(parents=True)
    tuned = stored_weights(text, WEIGHTS)
    weights, copied = put_together(tuned, base, keys)
    write_weights(weights, folder, limit=SHARD, beat=beat)
    copy_companions(base, folder)
    copy_companions(text, folder)
    config = whole_config(parse_json((text / "config.json").read_text()), base, tuned)
    write_json_atomic(folder / "config.json", config)
    check_copies(copied, folder, beat=beat)


def check_copies(copied: Mapping[str, ExportWeight], folder: Path, *, beat: SignOfLife = lambda: None) -> None:
    """Raise ToolError where a tensor that was copied to `folder` has other bytes than the base's."""
    for weight in stored_weights(folder, WEIGHTS):
        if weight.name in copied:
            written, own = (tensor_bytes(each.read(), each.dtype) for each in (weight, copied[weight.name]))
            if written != own:
                raise ToolError(f"{weight.name} in {folder} differs from the base's: the disk is failing")
        beat()


def class_of(folder: Path) -> Any:
    """The class that the model in `folder` was saved as; where transformers has none of its name, the one it loads the
    config by."""
    import transformers

    name = next(iter(parse_json((folder / "config.json").read_text()).get("architectures") or ()), "")
    try:
        return getattr(transformers, name, transformers.AutoModelForImageTextToText)
    except ImportError as error:
        raise MissingError(f"{name} needs a package: {one_line(error)}") from error


def copy_companions(source: Path, folder: Path) -> None:
    """Copy from one model's folder to another's all but weights, over what is there."""
    for pattern in _TABLE["companions"]:
        for path in source.glob(pattern):
            if path.is_file() and path.name not in _TABLE["not_companions"]:
                copy = folder / path.relative_to(source)
                copy.parent.mkdir(exist_ok=True)
                shutil.copyfile(path, copy)


def copy_card(source: Path, folder: Path) -> None:
    """The model card of a final model; what a checkpoint of LoRA has is peft's empty template."""
    card = source / CARD
    if card.is_file() and not (source / STATE_FILE).is_file():
        shutil.copyfile(card, folder / CARD)
