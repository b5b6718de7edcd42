"""What one checkpoint holds, from its manifest, its config and the headers of its weights."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsrun.checkpoints.listing import Entry, entry
from dsrun.errors import UsageError
from dsrun.runs.manifest import read_manifest

# Safetensors, read without torch (https://github.com/huggingface/safetensors, "Format"): eight bytes, the header's
# length as a little-endian number; the header, JSON with dtype, shape and data_offsets by tensor name, and
# "__metadata__"; the data.
# The format's own limit.
_LONGEST_HEADER = 100_000_000


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What the weights of a folder are: how many tensors and parameters, parameters by dtype, empty tensors."""

    tensors: int
    parameters: int
    by_dtype: dict[str, int]
    empty: list[str]


def weights(folder: Path) -> Weights | None:
    """The safetensors files of `folder` together; None where there are none. Raises UsageError for a damaged one."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return None
    by_dtype: dict[str, int] = {}
    empty: list[str] = []
    tensors = 0
    for file in files:
        for name, facts in header(file).items():
            count = math.prod(facts["shape"])
            tensors += 1
            by_dtype[facts["dtype"]] = by_dtype.get(facts["dtype"], 0) + count
            if not count:
                empty.append(name)
    return Weights(tensors=tensors, parameters=sum(by_dtype.values()), by_dtype=by_dtype, empty=empty)


def header(file: Path) -> dict[str, Any]:
    """The tensors of a safetensors file by name, each with `dtype` and `shape`. UsageError when it is damaged."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > _LONGEST_HEADER:
                raise ValueError
            content = json.loads(stream.read(length))
        content.pop("__metadata__", None)
        return {
            str(name): {"dtype": str(facts["dtype"]), "shape": [int(size) for size in facts["shape"]]}
            for name, facts in content.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{file} is not a complete safetensors file") from error
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error


_TOKENIZER_FILES = "tokenizer|vocab|merges|special_tokens|added_tokens|chat_template|spiece|sentencepiece|source|target"
# First match wins; paths are relative to the checkpoint, with /.
_KINDS = (
    ("weights", re.compile(r"(model|pytorch_model).*\.(safetensors|bin)|.*\.safetensors\.index\.json")),
    ("adapter", re.compile(r"adapter_.*")),
    ("optimizer", re.compile(r".*_optim_states\.pt|optimizer\.(pt|bin)|.*offloaded_tensors/.*")),
    ("model states", re.compile(r".*(_model_states|mp_rank_\d+.*)\.pt")),
    ("scheduler", re.compile(r"scheduler\.pt|scaler\.pt")),
    ("random states", re.compile(r"rng_state.*\.pth")),
    ("trainer state", re.compile(r"trainer_state\.json|latest(_universal)?")),
    ("config", re.compile(r"(config|generation_config)\.json")),
    ("tokenizer", re.compile(rf"({_TOKENIZER_FILES}).*")),
    ("scripts", re.compile(r".*\.py|README\.md")),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Files of one kind together; `size` in bytes."""

    name: str
    files: int
    size: int


@dataclass(frozen=True, kw_only=True)
class Contents:
    """All that can be said of a checkpoint without loading it; `facts` are the manifest's, empty without one."""

    entry: Entry
    kinds: list[Kind]
    architecture: str | None
    model_type: str | None
    weights: Weights | None
    facts: dict[str, Any]


def contents(checkpoint: Path) -> Contents:
    """What `checkpoint` holds. Raises UsageError where the header of its weights is damaged."""
    manifest = read_manifest(checkpoint)
    config = _config(checkpoint)
    architectures = config.get("architectures")
    return Contents(
        entry=entry(checkpoint),
        kinds=_kinds(checkpoint),
        architecture=str(architectures[0]) if isinstance(architectures, list) and architectures else None,
        model_type=config.get("model_type"),
        weights=weights(checkpoint),
        facts=dict(manifest["extra"]) if manifest else {},
    )


def kind_of(name: str) -> str:
    """What kind of file a checkpoint's file is, by its relative path."""
    return next((kind for kind, pattern in _KINDS if pattern.fullmatch(name)), "other")


def _kinds(checkpoint: Path) -> list[Kind]:
    found: dict[str, list[int]] = {}
    for path in checkpoint.rglob("*"):
        if path.is_file() and path.name != "manifest.json":
            found.setdefault(kind_of(path.relative_to(checkpoint).as_posix()), []).append(path.stat().st_size)
    kinds = [Kind(name=name, files=len(sizes), size=sum(sizes)) for name, sizes in found.items()]
    return sorted(kinds, key=lambda kind: -kind.size)


def _config(checkpoint: Path) -> dict[str, Any]:
    try:
        config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}
