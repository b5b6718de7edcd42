"""Keys and values against the schema: unknown, removed and legacy keys, wrong types, bounds and choices."""

from collections.abc import Iterator
from typing import Any

from dsrun.errors import nearest
from dsrun.findings.finding import Level, text_of
from dsrun.messages import Message, joined
from dsrun.zero import schema
from dsrun.zero.lint.codes import ConfigFindings
from dsrun.zero.lint.source import dotted, finite
from dsrun.zero.schema import Path, SchemaBlock, SchemaEntry, coerce, expected, shown
from dsrun.zero.view import AUTO, CONSTANTS, MISSING, ZERO, ConfigView

# get_monitor_config hands these to one model, which drops "auto" (deepspeed.monitor.config).
MONITORS = ("tensorboard", "wandb", "csv_monitor", "comet")
# Blocks whose other keys mean something to code that only their feature runs.
OPEN = ("data_efficiency.data_sampling", "data_efficiency.data_routing")
# DeepSpeedConfigModel.__init__(self, strict=False, **data) swallows this key (deepspeed.runtime.config_utils).
SWALLOWED = "strict"


def check_structure(view: ConfigView, report: ConfigFindings) -> None:
    _check_block(schema.blocks()[""], (), view.config, view, report)


def _check_block(
    block: SchemaBlock, path: Path, content: dict[str, Any], view: ConfigView, report: ConfigFindings
) -> None:
    spellings = block.spellings
    for name in content:
        here = (*path, name)
        key = spellings.get(name)
        if name in schema.removed(block.path):
            reason, instead = schema.legacy()["removed"][name]
            report.add("removed_key", here, fix=instead, reason=Message(reason))
        elif key is None or name == "self":
            _unknown(block, here, name, content, report)
        else:
            _check_key(block, here, key, view=view, report=report)
    for key, entry in block.keys.items():
        other = entry.get("name")
        if other and key in content and other in content:
            report.add("given_twice.one", (*path, other), other=other, key=key)


def _unknown(block: SchemaBlock, path: Path, name: str, content: dict[str, Any], report: ConfigFindings) -> None:
    if block.style == "read" and block.path.startswith(OPEN):
        return
    # A model drops an "auto" before it looks at the key.
    refused = block.style == "model" and name != SWALLOWED and (content[name] != AUTO or name == "self")
    gone = schema.legacy()["forgotten"].get(name)
    if block.path == "compile" and name in schema.legacy()["old_compile"]:
        gone = schema.legacy()["removed_from_compile"]
    if gone is not None:
        level: Level = "error" if refused else "warning"
        report.add("unknown_key.gone", path, level=level, fix=gone[1], reason=Message(gone[0]))
        return
    key, place = "unknown_key.block" if path[1:] else "unknown_key.top", dotted(path[:-1])
    fix = _suggestion(block, name, content)
    if refused:
        report.add(key, path, fix=fix, block=place)
    else:
        problem = text_of(f"{key}.message", key=name, block=place)
        report.add("unknown_key.ignored", path, fix=fix, problem=problem)


def _suggestion(block: SchemaBlock, name: str, content: dict[str, Any]) -> Message:
    """The key of this block that was meant, else the block that the key belongs to."""
    match = schema.legacy()["renamed"].get(f"{block.path}.{name}") or nearest(name, block.spellings)
    elsewhere = [each for each in schema.homes().get(name, ()) if each != block.path]
    if elsewhere and len(elsewhere) <= 2:
        return text_of("repair.belongs", places=joined(" or ", (each or text_of("repair.top") for each in elsewhere)))
    if match in content:
        return text_of("repair.there", match=match)
    return text_of("repair.meant", match=match) if match else text_of("repair.remove")


def _check_key(block: SchemaBlock, path: Path, key: str, *, view: ConfigView, report: ConfigFindings) -> None:
    entry, value = block.keys[key], view.raw(*path)
    _legacy(block, path, entry, report)
    if path == ("bfloat16",) and view.for_trainer:
        return  # accelerate adds a bf16 block, and DeepSpeed no longer looks at this one
    # dsrun.zero.lint.trainer checks this "auto": the Trainer fills or refuses it, or a model drops it.
    is_handled = view.for_trainer or block.style == "model" or path[-1] in MONITORS
    if value == AUTO and isinstance(value, str) and is_handled:
        return
    if "block" in entry:
        _check_value_of_block(schema.blocks()[entry["block"]], path, entry, view=view, report=report)
    elif block.style == "model":
        check_model_value(path, entry, value, report)
    else:
        _check_read_value(path, entry, value, report)


def _legacy(block: SchemaBlock, path: Path, entry: SchemaEntry, report: ConfigFindings) -> None:
    advice = schema.legacy()["deprecated"].get(dotted((*filter(None, block.path.split(".")), path[-1])))
    if advice is not None:
        report.add("legacy_key", path, fix=advice[1], name=Message(advice[0]))
    elif "deprecated" in entry:
        report.add("legacy_key", path, name=entry["deprecated"])


def _check_value_of_block(
    block: SchemaBlock, path: Path, entry: SchemaEntry, *, view: ConfigView, report: ConfigFindings
) -> None:
    value = view.raw(*path)
    if isinstance(value, dict):
        _check_block(block, path, value, view, report)
    elif block.path == "zero_optimization" and isinstance(value, bool):
        report.add("legacy_key.bare", path, value=shown(value), stage=int(value))
    elif not _tolerated(block, entry, value):
        report.add("not_an_object", path, value=shown(value))
    elif value is not None:
        report.add("wrong_type.block", path, value=shown(value))


def _tolerated(block: SchemaBlock, entry: SchemaEntry, value: Any) -> bool:
    """Values other than an object that DeepSpeed passes over."""
    if value is None:
        return (
            block.null or bool(entry.get("null")) or block.path in ("expert_parallel", "zero_optimization.leaf_module")
        )
    if block.path == "expert_parallel":  # parse_autoep_config: `if not param_dict`
        return not value
    if block.path == "timers":  # get_timers_config: `"throughput" in timers`
        return isinstance(value, str | list) and "throughput" not in value
    return False


def check_model_value(path: Path, entry: SchemaEntry, value: Any, report: ConfigFindings) -> None:
    """Check a value as pydantic does: converted where it can be, then held against the bounds."""
    if path[-2:-1] == ("leaf_module",) and isinstance(value, str):
        return  # DeepSpeedZeroLeafModuleConfig makes a list of one of it
    name = path[-1]
    found = coerce(value, entry)
    if path == ("fp16", "loss_scale") and isinstance(value, str) and found.coerce == "refused":
        found = schema.python_float(value)
    if found.coerce == "refused":
        is_single = schema.json_type(value) not in ("list", "dict")
        code = "not_a_choice" if "choices" in entry and is_single else "wrong_type"
        report.add(code, path, fix=_repair(value, entry), name=name, value=shown(value), expected=expected(entry))
        return
    limits = schema.outside(found.value, entry)
    if limits:
        report.add("out_of_range", path, name=name, value=shown(value), limits=limits)
    elif found.coerce == "converted":
        fix = text_of("repair.write", name=name, value=shown(found.value))
        report.add("wrong_type.converted", path, fix=fix, name=name, value=shown(value), expected=expected(entry))


def _repair(value: Any, entry: SchemaEntry) -> str:
    """The value that was probably meant."""
    if isinstance(value, str):
        match = nearest(value.strip(), [each for each in entry.get("choices", ()) if isinstance(each, str)])
        if match:
            return text_of("repair.quoted", match=match)
        number = finite(value)
        if {"int", "float"} & set(entry["types"]) and number is not None:
            return text_of("repair.unquoted", value=int(number) if number.is_integer() else number)
    return ""


def _check_read_value(path: Path, entry: SchemaEntry, value: Any, report: ConfigFindings) -> None:
    """Check a value that DeepSpeed takes as it is: only some of them make it stop."""
    name, kind = path[-1], schema.json_type(value)
    if (value is None and entry.get("null")) or (entry.get("falsy") and not value):
        return
    typed = {**entry, "types": [entry["type"]]}
    said: dict[str, Any] = {"name": name, "value": shown(value), "expected": expected(entry)}
    if "must" in entry and kind not in entry["must"]:
        report.add("wrong_type", path, fix=_repair(value, typed), **said)
    elif "choices" in entry and not _is_choice(value, entry):
        report.add("not_a_choice", path, fix=_repair(value, typed), **said)
    elif coerce(value, typed | {"choices": []}).coerce != "exact":
        is_word = entry["type"] == "bool" and isinstance(value, str) and value and len(path) == 1
        taken = text_of("wrong_type.taken.as_true" if is_word else "wrong_type.taken.as_it_is")
        is_true = is_word and value.lower() in schema.TRUE_WORDS
        fix = text_of("repair.write", name=name, value=shown(is_true)) if is_word else ""
        report.add("wrong_type.taken", path, fix=fix, taken=taken, **said)


def _is_choice(value: Any, entry: SchemaEntry) -> bool:
    if entry.get("fold") and isinstance(value, str):
        return value.lower() in [each.lower() for each in entry["choices"]]
    return value in entry["choices"]


def check_reading(view: ConfigView, report: ConfigFindings) -> None:
    """read_zero_config_deprecated for a bare true, and the old and the new name of one setting of the ZeRO block."""
    bucket = view.raw("allgather_size")
    if view.raw(ZERO) is True and bucket not in (MISSING, AUTO):
        check_model_value(("allgather_size",), schema.blocks()[ZERO].keys["allgather_bucket_size"], bucket, report)
    _both_names(view, report)


def _both_names(view: ConfigView, report: ConfigFindings) -> None:
    """DeepSpeedConfigModel._process_deprecated_field: the old and the new name of one setting."""
    keys = schema.blocks()[ZERO].keys
    for old, entry in keys.items():
        if not entry.get("replaces") or view.raw(ZERO, old) in (MISSING, AUTO):
            continue
        new = next(key for key, each in keys.items() if entry["deprecated"] in (key, each.get("name")))
        path = view.spelled(ZERO, new)
        filled = view.for_trainer and path in CONSTANTS
        if view.raw(*path) is not MISSING and (view.raw(*path) != AUTO or filled):
            report.add("given_twice", (ZERO, old), old=old, new=path[-1])


def leaves(content: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every value inside nested objects that is not an object itself; lists are values."""
    for key, value in content.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value
