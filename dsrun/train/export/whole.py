"""A trained text model put back into the checkpoint that it is a part of, as the class that the checkpoint is of.

What was trained replaces the tensors of the same names; all others are copied byte for byte, one at a time.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dsrun.datafiles import toml_beside
from dsrun.errors import MissingError, ToolError, UsageError, one_line
from dsrun.runs.manifest import STATE_FILE
from dsrun.runs.records import write_json_atomic
from dsrun.system.files import parse_json
from dsrun.train.card.write_card import FILE as CARD
from dsrun.train.checkpoint.weight_files import ExportWeight, stored_weights, tensor_bytes, write_weights
from dsrun.train.model.text_part import TextKeys, text_config

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
    changed = {
        name: value for name, value in after.items() if name not in _TABLE["not_of_model"] and before.get(name) != value
    }
    config["text_config"] = {**(config.get("text_config") or {}), **changed}
    config |= {name: value for name, value in changed.items() if name in config}
    set_dtype(config, weights)
    return config


def set_dtype(config: dict[str, Any], weights: Iterable[ExportWeight]) -> None:
    """Put the weights' dtype, in which from_pretrained loads them, into the content of a config.json."""
    dtypes = {weight.dtype for weight in weights if weight.dtype.is_floating_point}
    config.pop("torch_dtype", None)
    config["dtype"] = str(max(dtypes, key=lambda dtype: dtype.itemsize)).removeprefix("torch.")


def write_whole(text: Path, base: Path, keys: TextKeys, folder: Path, *, beat: Callable[[], None]) -> None:
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


def check_copies(copied: Mapping[str, ExportWeight], folder: Path, *, beat: Callable[[], None] = lambda: None) -> None:
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
