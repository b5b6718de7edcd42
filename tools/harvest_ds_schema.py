"""Write dsrun/zero/ds_schema.json: what the installed DeepSpeed reads in its JSON, as data for `dsrun config check`.

Three sources: DeepSpeed's pydantic models (keys, types, bounds, deprecations), the look-ups that DeepSpeedConfig makes
in dicts without a model (seen by a dict that takes notes; tools/ds_read_keys.toml says what each should hold), and
the signatures of the optimizers and schedulers that a config may name. Only names, types, defaults and bounds are
taken. `--check` compares instead of writing and exits 3 when the file differs. Run it again for every new release.
"""

from __future__ import annotations

import argparse
import enum
import inspect
import json
import logging
import pathlib
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from ds_look_ups import read_blocks

HERE = Path(__file__).resolve().parent
TARGET = HERE.parent / "dsrun" / "zero" / "ds_schema.json"
READ_KEYS = HERE / "ds_read_keys.toml"
EXIT_DIFFERS = 3

# Where DeepSpeedConfig hands a block to a model: path in the JSON -> (module, class).
MODELS = {
    "zero_optimization": ("deepspeed.runtime.zero.config", "DeepSpeedZeroConfig"),
    "fp16": ("deepspeed.runtime.precision_config", "DeepSpeedFP16Config"),
    "bf16": ("deepspeed.runtime.precision_config", "DeepSpeedBF16Config"),
    "bfloat16": ("deepspeed.runtime.precision_config", "DeepSpeedBF16Config"),
    "tensorboard": ("deepspeed.monitor.config", "TensorBoardConfig"),
    "wandb": ("deepspeed.monitor.config", "WandbConfig"),
    "csv_monitor": ("deepspeed.monitor.config", "CSVConfig"),
    "comet": ("deepspeed.monitor.config", "CometConfig"),
    "comms_logger": ("deepspeed.comm.config", "CommsLoggerConfig"),
    "hybrid_engine": ("deepspeed.runtime.config", "HybridEngineConfig"),
    "weight_quantization": ("deepspeed.inference.config", "WeightQuantConfig"),
    "compile": ("deepspeed.compile.config", "CompileConfig"),
    "timers.throughput": ("deepspeed.utils.config", "DeepSpeedThroughputTimerConfig"),
    "tensor_parallel": ("deepspeed.runtime.tensor_parallel.config", "TPTrainingConfig"),
}
# Blocks that may hold null, or that may be named without a dict (see deepspeed.runtime.config).
NULLABLE = ("bf16", "aio", "checkpoint.writer", "autotuning.model_info")
BOUNDS = ("gt", "ge", "lt", "le")
SCALARS = {bool: "bool", int: "int", float: "float", str: "str", pathlib.Path: "path", object: "any"}
CONTAINERS = {list: "list", dict: "dict", tuple: "list"}

# Optimizer (lower case: DeepSpeed's own) -> the classes that DeepSpeed may build for it, and the keys it takes out
# of `params` itself before (deepspeed.runtime.engine, _configure_basic_optimizer).
ADAM = (("deepspeed.ops.adam", "FusedAdam"), ("deepspeed.ops.adam", "DeepSpeedCPUAdam"))
POPPED = ("torch_adam", "adam_w_mode", "fp32_optimizer_states")
OPTIMIZERS: dict[str, tuple[tuple[tuple[str, str], ...], tuple[str, ...]]] = {
    "adam": (ADAM, (*POPPED, "foreach")),
    "adamw": (ADAM, (*POPPED, "foreach")),
    "adagrad": ((("torch.optim", "Adagrad"), ("deepspeed.ops.adagrad", "DeepSpeedCPUAdagrad")), ()),
    "lamb": ((("deepspeed.ops.lamb", "FusedLamb"),), ()),
    "lion": ((("deepspeed.ops.lion", "FusedLion"), ("deepspeed.ops.lion", "DeepSpeedCPULion")), ()),
}
FILLED_BY_THE_ENGINE = {"self", "params", "model_params", "args", "kwargs", "optimizer", "adamw_mode"}


def model_blocks() -> dict[str, Any]:
    """The blocks that have a pydantic model, nested ones included."""
    blocks: dict[str, Any] = {}
    for path, (module, name) in MODELS.items():
        blocks |= _model(path, _load(module, name))
    return blocks


def _load(module: str, name: str) -> Any:
    return getattr(__import__(module, fromlist=[name]), name)


def _model(path: str, model: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(model)
    keys: dict[str, Any] = {}
    nested: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        key = field.alias or name
        entry = annotation_entry(hints[name])
        inner = entry.pop("model", None)
        if inner is not None:
            entry["block"] = f"{path}.{key}"
            nested |= _model(entry["block"], inner)
        else:
            entry["default"] = _plain(field.get_default(call_default_factory=True))
        entry |= {bound: getattr(each, bound) for each in field.metadata for bound in BOUNDS if hasattr(each, bound)}
        extra = field.json_schema_extra or {}
        if extra.get("deprecated"):
            entry["deprecated"] = extra.get("new_param", "")
            entry["replaces"] = extra.get("set_new_param", True)
        if field.alias:
            entry["name"] = name
        keys[key] = entry
    return {path: {"style": "model", "null": path in NULLABLE, "keys": keys}, **nested}


def annotation_entry(annotation: Any) -> dict[str, Any]:
    """`types` (what pydantic's lax mode converts to), `null`, and `choices`, `items` or `model` where it has them."""
    members = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
    entry: dict[str, Any] = {"types": []}
    for each in members:
        if each is type(None):
            entry["null"] = True
            continue
        origin = typing.get_origin(each) or each
        if origin is Literal:
            entry["types"].append("literal")
            entry["choices"] = list(typing.get_args(each))
        elif isinstance(origin, type) and issubclass(origin, enum.Enum):
            entry["types"].append("enum")
            entry["choices"] = list(dict.fromkeys(member.value for member in origin))
        elif hasattr(origin, "model_fields"):
            entry["model"] = origin
        else:
            entry["types"].append(_word(origin))
            items = typing.get_args(each)
            if origin is list and items:
                entry["items"] = annotation_entry(items[0])
    if "any" in entry["types"]:
        entry["null"] = True
    return entry


def _word(origin: Any) -> str:
    """The schema's word for a type; `never` for what no JSON value can be (torch.dtype)."""
    return SCALARS.get(origin) or CONTAINERS.get(origin) or "never"


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value) if isinstance(value, int) else float(value)
    return value if isinstance(value, bool | str | list | dict | None) else str(value)


def removed_keys() -> dict[str, list[str]]:
    """Block -> the keys that DeepSpeed refuses because their feature is gone."""
    from deepspeed.runtime import config

    return {
        "": sorted(config._REMOVED_TOP_LEVEL_CONFIG_KEYS),
        "zero_optimization": sorted(config._REMOVED_ZERO_CONFIG_KEYS),
    }


def optimizers() -> dict[str, Any]:
    """DeepSpeed's optimizers by name in lower case with the keys of `params`, and torch's own by name."""
    import torch
    from deepspeed.runtime.config import DEEPSPEED_OPTIMIZERS
    from deepspeed.runtime.engine import DeepSpeedEngine

    params: dict[str, list[str] | None] = dict.fromkeys(DEEPSPEED_OPTIMIZERS)
    for name, (classes, popped) in OPTIMIZERS.items():
        found = {key for module, each in classes for key in _parameters(_load(module, each))}
        params[name] = sorted(found | set(popped))
    muon = (
        *DeepSpeedEngine._MUON_HALF_KEYS,
        *DeepSpeedEngine._ADAM_HALF_KEYS,
        "muon_lr",
        "adam_lr",
        *POPPED,
        "foreach",
    )
    # per_head_muon is read before there is an engine (deepspeed.set_optimizer_flags).
    params["muon"] = sorted({*muon, "per_head_muon"})
    return {"deepspeed": params, "torch": _own_classes(torch.optim, torch.optim.Optimizer)}


def schedulers() -> dict[str, Any]:
    """The schedulers a config may name, with the keys of `params` and which of them have no default."""
    import torch
    from deepspeed.runtime import lr_schedules

    own = {name: _parameters(getattr(lr_schedules, name)) for name in lr_schedules.VALID_LR_SCHEDULES}
    base = torch.optim.lr_scheduler.LRScheduler
    return {"deepspeed": own, "torch": _own_classes(torch.optim.lr_scheduler, base)}


def _own_classes(module: Any, base: type) -> dict[str, dict[str, bool]]:
    members: Iterator[tuple[str, Any]] = iter(inspect.getmembers(module, inspect.isclass))
    return {
        name: _parameters(each)
        for name, each in members
        if issubclass(each, base) and each is not base and not name.startswith("_")
    }


def _parameters(build: Callable[..., Any]) -> dict[str, bool]:
    """Name of each keyword -> whether it must be given."""
    signature = inspect.signature(build)
    return {
        name: each.default is inspect.Parameter.empty
        for name, each in sorted(signature.parameters.items())
        if name not in FILLED_BY_THE_ENGINE
    }


def harvest() -> dict[str, Any]:
    """The content of ds_schema.json."""
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    read_keys = tomllib.loads(READ_KEYS.read_text(encoding="utf-8"))
    gone = removed_keys()
    read = read_blocks(read_keys, models=MODELS, removed=gone[""], nullable=NULLABLE)
    return {
        "deepspeed": deepspeed.__version__.partition("+")[0],
        "removed": gone,
        "optimizers": optimizers(),
        "schedulers": schedulers(),
        "blocks": dict(sorted((read | model_blocks()).items())),
    }


def render(content: Mapping[str, Any]) -> str:
    """Deterministic JSON: one key of a block a line, so that a new release gives a readable diff."""
    head = [f" {json.dumps(name)}: {json.dumps(content[name])}" for name in ("deepspeed", "removed")]
    head += [f" {json.dumps(name)}: {_lines(content[name], 2)}" for name in ("optimizers", "schedulers")]
    blocks = ",\n".join(f"  {json.dumps(path)}: {_lines(block, 3)}" for path, block in content["blocks"].items())
    return "{\n" + ",\n".join(head) + ',\n "blocks": {\n' + blocks + "\n }\n}\n"


def _lines(value: Mapping[str, Any], depth: int) -> str:
    """An object whose members, and the members of those that are objects themselves, stand one a line."""
    pad = " " * depth
    rows = []
    for name, each in value.items():
        if isinstance(each, dict) and all(isinstance(inner, dict | list | None) for inner in each.values()) and each:
            inside = ",\n".join(f"{pad} {json.dumps(key)}: {json.dumps(inner)}" for key, inner in each.items())
            rows.append(f"{pad}{json.dumps(name)}: {{\n{inside}\n{pad}}}")
        else:
            rows.append(f"{pad}{json.dumps(name)}: {json.dumps(each)}")
    return "{\n" + ",\n".join(rows) + f"\n{pad[1:]}}}"


def main(argv: list[str] | None = None) -> int:
    """Write or check the file; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 3 when the file differs")
    options = parser.parse_args(argv)
    text = render(harvest())
    if options.check:
        same = TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text
        sys.stderr.write(f"{TARGET.name}: {'up to date' if same else 'differs; run tools/harvest_ds_schema.py'}\n")
        return 0 if same else EXIT_DIFFERS
    scratch = TARGET.with_suffix(".tmp")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(TARGET)
    return 0


if __name__ == "__main__":
    sys.exit(main())
