"""A model's folder, by path or from the Hub's cache, and its config.json. Nothing is downloaded."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsrun.errors import MissingError, UsageError
from dsrun.system.files import as_in_wsl, parse_json

LARGEST_CONFIG = 32 * 2**20
"""Bytes; the longest config.json on the Hub, with a label for each of 20,000 classes, has one or two MiB."""
_WEIGHTS = ("*.safetensors", "*.bin", "*.index.json")
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class FoundModel:
    """A model's folder, its config.json and, where its weights lie beside it, the tensors they hold.

    `stored` maps tensor names to shapes, None where no safetensors files are there; `packed` is the dtype of matrices
    that are no floats, such as F8_E4M3."""

    name: str
    folder: Path
    config: dict[str, Any]
    stored: Mapping[str, tuple[int, ...]] | None
    packed: str = ""

    @property
    def quantised(self) -> str:
        """How the weights are quantised, by the config's `quantization_config` or their dtype; "" if they are not."""
        text = self.config.get("text_config")
        for config in (self.config, text if isinstance(text, dict) else {}):
            block = config.get("quantization_config")
            if isinstance(block, dict) and block:
                return str(block.get("quant_method", "bitsandbytes"))
        return self.packed


def find(name: str, environ: Mapping[str, str] = os.environ, *, weights: bool = True) -> FoundModel:
    """The model called `name`: a folder, a config.json, or a Hub name whose files are in the Hub's cache. Without
    `weights`, the headers of its weights are not read.

    Raises MissingError for a Hub name that is not on this machine and UsageError for a file that is not a config."""
    try:
        path = Path(name).expanduser()
        if path.is_file():
            return _found(name, path.parent, path, weights)
        if path.is_dir():
            return _found(name, path, path / "config.json", weights)
    except RuntimeError as error:  # ~name of somebody who is not known here
        raise MissingError(f"model {name!r}: {error}", fix="give a folder that contains a config.json") from None
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise _no_config(f"model {name!r} cannot be read: {error.strerror}") from None
    snapshot = cached_snapshot(name, hub_cache(environ))
    if snapshot is None:
        if not HUB_NAME.fullmatch(name):
            what = f"model {name!r}: there is no such folder or file"
            raise MissingError(what, fix=as_in_wsl(name) or "give a folder that contains a config.json")
        raise MissingError(
            f"model {name!r} is not on this machine: only a local folder or a Hub model already in the cache can be"
            " read without downloading",
            fix=f"run `hf download {name} config.json`, or give the folder",
        )
    return _found(name, snapshot, snapshot / "config.json", weights)


def hub_cache(environ: Mapping[str, str]) -> Path:
    """The folder huggingface_hub keeps downloads in, by its own environment variables."""
    return Path(environ.get("HF_HUB_CACHE") or hub_home(environ) / "hub")


def hub_home(environ: Mapping[str, str]) -> Path:
    """The folder of Hugging Face's libraries: the Hub's cache, the token, Accelerate's defaults."""
    root = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "~")).expanduser() / ".cache"
    return Path(environ.get("HF_HOME") or Path(root) / "huggingface")


def cached_snapshot(name: str, cache: Path) -> Path | None:
    """The newest snapshot of Hub model `name` with a config.json: the one `refs/main` names, else any.

    Layout (huggingface_hub's own): models--ORG--NAME/refs/main holds a commit, snapshots/COMMIT/ the files."""
    repository = cache / f"models--{name.replace('/', '--')}"
    try:
        commit = (repository / "refs" / "main").read_text().strip()
    except OSError:
        commit = ""
    try:
        others = sorted((repository / "snapshots").iterdir(), key=lambda each: each.stat().st_mtime, reverse=True)
    except OSError:
        return None
    snapshots = [repository / "snapshots" / commit, *others] if commit else others
    return next((each for each in snapshots if (each / "config.json").is_file()), None)


def _no_config(message: str) -> UsageError:
    return UsageError(message, fix="give a model's folder")


def _found(name: str, folder: Path, file: Path, weights: bool) -> FoundModel:
    try:
        if file.is_file() and file.stat().st_size > LARGEST_CONFIG:
            raise _no_config(f"{file} is not a model config: it has more than {LARGEST_CONFIG // 2**20} MiB")
        config = parse_json(file.read_text(encoding="utf-8"))
    except RecursionError:
        raise _no_config(f"{file} cannot be read: nested too deeply") from None
    except FileNotFoundError as error:
        adapter = " but an adapter" if (folder / "adapter_config.json").is_file() else ""
        raise _no_config(f"{folder} contains no config.json{adapter}") from error
    except OSError as error:
        raise _no_config(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:  # no UTF-8, no JSON, or a number of more digits than Python reads
        raise _no_config(f"{file} cannot be read: {str(error).partition(';')[0]}") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise _no_config(f"{file} is not a model config: it has no model_type")
    stored = None
    if weights and any(folder.glob("*.safetensors")):
        from dsrun.models.headers import stored_weights  # which a bare config does without

        stored = stored_weights(folder)
    shapes, packed = stored or (None, "")
    return FoundModel(name=name, folder=folder, config=config, stored=shapes, packed=packed)


def has_weights(folder: Path) -> bool:
    """Whether a model's folder holds weight files, of whatever format."""
    return any(next(folder.glob(pattern), None) for pattern in _WEIGHTS)
