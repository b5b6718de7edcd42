"""The text model inside a checkpoint that also reads images or sound: its config, and how its tensors are named there.

Such a checkpoint is trained as its text model alone. What else its files hold is neither loaded nor changed, and put
back at the end (dsrun/train/export/final.py)."""

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM
from transformers.core_model_loading import WeightRenaming
from transformers.utils import cached_file

from dsrun.models.headers import read_header
from dsrun.system.files import parse_json
from dsrun.train.model.zero3 import outside_zero3

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
# What from_pretrained of a text model does not fetch from the Hub: a processor's files.
SMALL_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "*.py")


def text_config(config: Any) -> Any:
    """The config of the text model that is trained of `config`'s, which is its own where it has no other parts, or none
    that transformers knows as a causal LM."""
    text = config.get_text_config()
    if text is config or config.is_encoder_decoder or type(text) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return config
    # The whole model decides about what its parts may say otherwise (transformers' tie_weights).
    text.tie_word_embeddings = config.tie_word_embeddings
    text.name_or_path = config.name_or_path
    text.dtype = text.dtype or config.dtype
    if getattr(config, "quantization_config", None) is not None:
        text.quantization_config = config.quantization_config
    return text


class TextKeys(NamedTuple):
    """How a text model's tensors are named in the files of the whole: pairs of their prefix in the text model and of
    that in the files."""

    prefixes: list[tuple[str, str]]

    @classmethod
    def between(cls, own: Collection[str], stored: Collection[str], anchors: Mapping[str, str]) -> "TextKeys":
        """From the names of both, and by prefix in the text model a tensor that marks the place. Where several parts
        have one, it is that beside which most tensors are called as in the text model."""
        names, pairs = set(stored), []
        for before, anchor in anchors.items():
            tail = ".".join(anchor.split(".")[-2:])
            places = [each for each in stored if each == tail or each.endswith(f".{tail}")]
            starts = [each.removesuffix(anchor.removeprefix(before)) for each in places]
            ending = [name.removeprefix(before) for name in own if name.startswith(before)]
            found = max(starts, key=lambda start: sum(start + end in names for end in ending), default=None)
            if found is not None:
                pairs.append((before, found))
        return cls(pairs)

    def stored(self, name: str) -> str:
        """The name in the whole's files of what the text model calls `name`."""
        return next((there + name.removeprefix(here) for here, there in self.prefixes if name.startswith(here)), name)

    def own(self, stored: str) -> str | None:
        """The text model's name of a tensor of the whole; None for one of another part."""
        pairs = self.prefixes
        return next((here + stored.removeprefix(there) for here, there in pairs if stored.startswith(there)), None)

    @property
    def renaming(self) -> dict[str, str]:
        """As from_pretrained takes it (`key_mapping`), for names that differ."""
        return {rf"^{re.escape(there)}(.+)": rf"{here}\1" for here, there in self.prefixes if here != there}


@dataclass(frozen=True)
class WholeCheckpoint:
    """The checkpoint that a text model is a part of: its name as given, its folder, the names of its tensors, and how
    those of the text model are named."""

    name: str
    folder: Path
    architecture: str
    stored: frozenset[str]
    keys: TextKeys

    @property
    def others(self) -> list[str]:
        """The names of the tensors that are not the text model's."""
        return sorted(name for name in self.stored if self.keys.own(name) is None)

    def sentence(self, text: str, *, text_only: bool) -> str:
        """What is trained of it, and what the final model will be; `text` is the class of the text model."""
        tops = ", ".join(sorted({name.removeprefix("model.").partition(".")[0] for name in self.others}))
        what = f"{self.name} is a multimodal model ({self.architecture}), trained as text"
        kept, final = ("left out", text) if text_only else ("kept as they are", self.architecture)
        return f"{what}; its other {len(self.others):,} tensors ({tops}) are {kept}: the final model is {final}"


def find_whole(name: str, text: Any, **hub: Any) -> WholeCheckpoint | None:
    """The checkpoint called `name`, or in a folder of this name, whose text model has the config `text`; None where it
    is a text model itself, or has no safetensors. `hub`: cache_dir, revision and token."""
    described = _file(name, "config.json", hub)
    config = parse_json(described.read_text()) if described else {}
    if config.get("model_type") in (None, text.model_type):
        return None
    file = next(filter(None, (_file(name, each, hub) for each in (SINGLE, INDEX))), None)
    if file is None:
        return None
    if not Path(name).is_dir():
        with suppress(OSError, ValueError, HfHubHTTPError):
            snapshot_download(name, allow_patterns=[*SMALL_FILES], **hub)
    stored = parse_json(file.read_text())["weight_map"] if file.name == INDEX else read_header(file)
    architecture = str(next(iter(config.get("architectures") or ()), config["model_type"]))
    return WholeCheckpoint(name, file.parent, architecture, frozenset(stored), text_keys(text, stored))


def text_keys(text: Any, stored: Collection[str]) -> TextKeys:
    """How the tensors of a text model with the config `text` are named among those called `stored`."""
    with outside_zero3(), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(text)
    names = {id(each): name for name, each in model.named_modules(remove_duplicate=False)}
    head = names[id(model.get_output_embeddings())]
    embedding = names[id(model.get_input_embeddings())]
    anchors = {
        f"{head}.": f"{head}.weight",
        embedding.removesuffix(embedding.rpartition(".")[2]): f"{embedding}.weight",
    }
    return TextKeys.between(model.state_dict(), stored, anchors)


def _file(name: str, file: str, hub: dict[str, Any]) -> Path | None:
    with suppress(OSError, ValueError):
        found = cached_file(name, file, _raise_exceptions_for_missing_entries=False, **hub)
        return Path(found) if found else None
    return None


def keep_used(model: Any, renaming: Mapping[str, str]) -> None:
    """Leave of what `from_pretrained` did to names and tensors, which a save undoes, that which it did to this
    checkpoint, without the `renaming` of a text model's part. Under ZeRO-3 transformers keeps all that it might do, and
    would save names that the files did not have."""
    ours = [WeightRenaming(*each).source_patterns for each in renaming.items()]
    done = getattr(model, "_weight_conversions", None)
    if done is not None:
        model._weight_conversions = [each for each in done if each.was_used() and each.source_patterns not in ours]
