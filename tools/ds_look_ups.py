"""What DeepSpeedConfig looks up in dicts without a pydantic model, seen by a dict that takes notes.

Part of tools/harvest_ds_schema.py. The table in ds_read_keys.toml says what each key is meant to hold.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

ReadKeys = Mapping[str, Mapping[str, Any]]


class Notes(dict[str, Any]):
    """A dict that notes under its path which keys are asked for, and with which default."""

    def __init__(self, path: str, log: dict[str, dict[str, Any]], content: Mapping[str, Any]) -> None:
        super().__init__(content)
        self.path, self.log = path, log

    def _note(self, key: str, default: Any = None) -> None:
        known = self.log.setdefault(self.path, {})
        if known.get(key) is None:
            known[key] = default if isinstance(default, bool | int | float | str) else None

    def get(self, key: str, default: Any = None) -> Any:
        self._note(key, default)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._note(str(key))
        return super().__contains__(key)

    def keys(self) -> Any:
        return self  # `"type" in config["optimizer"].keys()` is a look-up too

    def __getitem__(self, key: str) -> Any:
        self._note(key)
        return super().__getitem__(key)

    def __copy__(self) -> Notes:
        return Notes(self.path, self.log, dict(self.items()))


def look_ups(read_keys: ReadKeys) -> dict[str, dict[str, Any]]:
    """Path of a block without a model -> the keys that DeepSpeedConfig looks up in it, with their defaults."""
    from deepspeed.runtime.config import DeepSpeedConfig

    log: dict[str, dict[str, Any]] = {}
    blocks: dict[str, Any] = {}
    for path in sorted(read_keys, key=lambda each: -each.count(".")):
        children = {name.rpartition(".")[2]: block for name, block in blocks.items() if _parent(name) == path}
        blocks[path] = Notes("" if path == "top" else path, log, children)
    top = blocks.pop("top")
    for path, block in blocks.items():
        if "." not in path:
            dict.__setitem__(top, path, block)
    # Some look-ups happen behind another: what to put there so that DeepSpeed goes on.
    dict.update(top, train_batch_size=1, zero_optimization=True)
    dict.update(blocks["optimizer"], type="Adam", params={})
    dict.update(blocks["scheduler"], type="WarmupLR", params={})
    dict.update(blocks["torch_autocast"], dtype="bf16", lower_precision_safe_modules=[])
    dict.update(blocks["data_efficiency.data_sampling.dynamic_batching"], enabled=True, max_tokens=1)
    dict.update(blocks["data_efficiency.data_sampling.curriculum_learning"], enabled=True, curriculum_metrics={})
    dict.update(blocks["expert_parallel"], enabled=False)
    DeepSpeedConfig(top)
    return log


def _parent(path: str) -> str:
    return path.rpartition(".")[0] or "top"


def read_blocks(
    read_keys: ReadKeys, *, models: Collection[str], removed: Collection[str], nullable: Collection[str]
) -> dict[str, Any]:
    """The blocks without a model, as the schema holds them.

    `models` are the paths of the blocks that have one, `removed` the keys of the top level that DeepSpeed refuses,
    `nullable` the paths of blocks that may be null.

    Raises ValueError when DeepSpeed looks up a key that the table lacks, or no longer looks up one that it has.
    """
    seen, found = look_ups(read_keys), {}
    for path, annotated in read_keys.items():
        at = "" if path == "top" else path
        children = {name.rpartition(".")[2] for name in (*read_keys, *models) if _parent(name) == path}
        asked = {key for key in seen.get(at, {}) if key not in removed} - children
        expected = {key for key, entry in annotated.items() if not entry.get("unread")}
        if asked != expected:
            raise ValueError(
                f"ds_read_keys.toml: {at or 'the top level'}: not in the table {sorted(asked - expected)},"
                f" no longer read {sorted(expected - asked)}"
            )
        keys = {
            key: {
                **{name: value for name, value in entry.items() if name != "unread"},
                "default": seen[at].get(key),
            }
            for key, entry in annotated.items()
        }
        keys |= {name: {"block": name if path == "top" else f"{path}.{name}"} for name in sorted(children - {"top"})}
        found[at] = {"style": "read", "null": at in nullable, "keys": keys}
    return found
