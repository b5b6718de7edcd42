"""Keys and values against the schema: unknown, removed and legacy keys, wrong types, bounds and choices."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from dsrun.messages import Message, joined
from dsrun.zero.lint.codes import Findings
from dsrun.zero.lint.source import dotted
from dsrun.zero.schema import (
    TRUE_WORDS,
    Block,
    Entry,
    Path,
    blocks,
    coerce,
    expected,
    homes,
    json_type,
    legacy,
    nearest,
    outside,
    python_float,
    removed,
    shown,
)
from dsrun.zero.view import AUTO, ConfigView

# get_monitor_config hands these to one model, which drops "auto" (deepspeed.monitor.config).
MONITORS = ("tensorboard", "wandb", "csv_monitor", "comet")
FEATURE_REMOVED, LEAVE_OUT = Message("its feature was removed"), Message("leave it out")
TOP_LEVEL = Message("the top level")
EAGER = Message("DeepSpeed stops when it reads the file")
# Blocks whose other keys mean something to code that only their feature runs.
OPEN = ("data_efficiency.data_sampling", "data_efficiency.data_routing")
# DeepSpeedConfigModel.__init__(self, strict=False, **data) swallows this key (deepspeed.runtime.config_utils).
SWALLOWED = "strict"


def check_structure(view: ConfigView, report: Findings) -> None:
    """Check every key that the file holds."""
    _check_block(blocks()[""], (), view.config, view, report)


def _check_block(block: Block, path: Path, content: dict[str, Any], view: ConfigView, report: Findings) -> None:
    spellings = block.spellings
    for name in content:
        here = (*path, name)
        key = spellings.get(name)
        if name in removed(block.path):
            reason, instead = legacy()["removed"].get(name, (FEATURE_REMOVED, LEAVE_OUT))
            report.error("removed_key", here, Message("{key}: {reason}", key=name, reason=Message(reason)), instead)
        elif key is None or name == "self":
            _unknown(block, here, name, content, report)
        else:
            _check_key(block, here, key, view=view, report=report)
    for key, entry in block.keys.items():
        other = entry.get("name")
        if other and key in content and other in content:
            report.error(
                "given_twice",
                (*path, other),
                Message("{other} and {key} are one setting", other=other, key=key),
                Message("remove {other}", other=other),
            )


def _unknown(block: Block, path: Path, name: str, content: dict[str, Any], report: Findings) -> None:
    if block.style == "read" and block.path.startswith(OPEN):
        return
    # A model drops an "auto" before it looks at the key.
    refused = block.style == "model" and name != SWALLOWED and (content[name] != AUTO or name == "self")
    gone = legacy()["forgotten"].get(name)
    if block.path == "compile" and name in legacy()["old_compile"]:
        gone = legacy()["removed_from_compile"]
    hint: str = gone[1] if gone is not None else _suggestion(block, name, content)
    if gone is not None:
        message = Message("{key}: {reason}", key=name, reason=Message(gone[0]))
    elif len(path) == 1:
        message = Message("DeepSpeed has no key {key} at the top level", key=name)
    else:
        message = Message("DeepSpeed has no key {key} in {block}", key=name, block=dotted(path[:-1]))
    if gone is None and not refused:
        message = Message("{problem}, and silently ignores it", problem=message)
    report.add("error" if refused else "warning", "unknown_key", path, message, hint)


def _suggestion(block: Block, name: str, content: dict[str, Any]) -> Message:
    """The key of this block that was meant, else the block that the key belongs to."""
    match = legacy()["renamed"].get(f"{block.path}.{name}") or nearest(name, block.spellings)
    elsewhere = [each for each in homes().get(name, ()) if each != block.path]
    if elsewhere and len(elsewhere) <= 2:
        return Message("it belongs in {places}", places=joined(" or ", (each or TOP_LEVEL for each in elsewhere)))
    if match in content:
        return Message("remove it: {match} is there already", match=match)
    return Message("did you mean {match}?", match=match) if match else Message("remove it")


def _check_key(block: Block, path: Path, key: str, *, view: ConfigView, report: Findings) -> None:
    entry, value = block.keys[key], view.raw(*path)
    _legacy(block, path, entry, report)
    if path == ("bfloat16",) and view.for_trainer:
        return  # accelerate adds a bf16 block, and DeepSpeed no longer looks at this one
    if value == AUTO and isinstance(value, str) and _auto_is_handled(block, path, view):
        return
    if "block" in entry:
        _check_value_of_block(blocks()[entry["block"]], path, entry, view=view, report=report)
    elif block.style == "model":
        check_model_value(path, entry, value, report)
    else:
        _check_read_value(path, entry, value, report)


def _legacy(block: Block, path: Path, entry: Entry, report: Findings) -> None:
    advice = legacy()["deprecated"].get(dotted((*filter(None, block.path.split(".")), path[-1])))
    if advice is not None:
        report.warning(
            "legacy_key",
            path,
            Message("{key} is the old name of {name}", key=path[-1], name=Message(advice[0])),
            advice[1],
        )
    elif "deprecated" in entry:
        report.warning(
            "legacy_key",
            path,
            Message("{key} is the old name of {name}", key=path[-1], name=entry["deprecated"]),
            Message("use {name}", name=entry["deprecated"]),
        )


def _auto_is_handled(block: Block, path: Path, view: ConfigView) -> bool:
    """Whether dsrun.zero.lint.trainer checks this "auto": the Trainer fills or refuses it, or a model drops it."""
    return view.for_trainer or block.style == "model" or path[-1] in MONITORS


def _check_value_of_block(block: Block, path: Path, entry: Entry, *, view: ConfigView, report: Findings) -> None:
    value = view.raw(*path)
    if isinstance(value, dict):
        _check_block(block, path, value, view, report)
    elif block.path == "zero_optimization" and isinstance(value, bool):
        stage = 1 if value else 0
        report.warning(
            "legacy_key",
            path,
            Message(
                "a bare {value} is an old way to ask for stage {stage}; the HF Trainer fails on it",
                value=shown(value),
                stage=stage,
            ),
            Message('write "zero_optimization": {"stage": {stage}}', stage=stage),
        )
    elif not _tolerated(block, entry, value):
        report.error(
            "not_an_object",
            path,
            Message("{key} is {value}, not an object {…}: {eager}", key=path[-1], value=shown(value), eager=EAGER),
        )
    elif value is not None:
        report.warning(
            "wrong_type",
            path,
            Message("{key} is {value}, not an object {…}, and is ignored", key=path[-1], value=shown(value)),
        )


def _tolerated(block: Block, entry: Entry, value: Any) -> bool:
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


def check_model_value(path: Path, entry: Entry, value: Any, report: Findings) -> None:
    """Check a value as pydantic does: converted where it can be, then held against the bounds."""
    if path[-2:-1] == ("leaf_module",) and isinstance(value, str):
        return  # DeepSpeedZeroLeafModuleConfig makes a list of one of it
    name = path[-1]
    found = coerce(value, entry)
    if path == ("fp16", "loss_scale") and isinstance(value, str) and found.coerce == "refused":
        found = python_float(value)
    if found.coerce == "refused":
        code = "not_a_choice" if "choices" in entry and json_type(value) not in ("list", "dict") else "wrong_type"
        report.error(
            code,
            path,
            Message(
                "{name} is {value}, not {expected}: {eager}",
                name=name,
                value=shown(value),
                expected=expected(entry),
                eager=EAGER,
            ),
            _repair(value, entry),
        )
        return
    limits = outside(found.value, entry)
    if limits:
        report.error(
            "out_of_range",
            path,
            Message(
                "{name} is {value}, not {limits}: {eager}", name=name, value=shown(value), limits=limits, eager=EAGER
            ),
        )
    elif found.coerce == "converted":
        report.warning(
            "wrong_type",
            path,
            Message(
                "{name} is {value}, not {expected}; DeepSpeed converts it, the Trainer does not",
                name=name,
                value=shown(value),
                expected=expected(entry),
            ),
            Message('write "{name}": {value}', name=name, value=shown(found.value)),
        )


def _repair(value: Any, entry: Entry) -> str:
    """The value that was probably meant."""
    if isinstance(value, str):
        match = nearest(value.strip(), [each for each in entry.get("choices", ()) if isinstance(each, str)])
        if match:
            return Message('did you mean "{match}"?', match=match)
        try:
            number = float(value)
        except ValueError:
            return ""
        if {"int", "float"} & set(entry["types"]) and math.isfinite(number):
            return Message("write {value} without quotes", value=int(number) if number.is_integer() else number)
    return ""


def _check_read_value(path: Path, entry: Entry, value: Any, report: Findings) -> None:
    """Check a value that DeepSpeed takes as it is: only some of them make it stop."""
    name, kind = path[-1], json_type(value)
    if (value is None and entry.get("null")) or (entry.get("falsy") and not value):
        return
    if "must" in entry and kind not in entry["must"]:
        report.error(
            "wrong_type",
            path,
            Message(
                "{name} is {value}, not {expected}: {eager}",
                name=name,
                value=shown(value),
                expected=expected(entry),
                eager=EAGER,
            ),
            _repair(value, _typed(entry)),
        )
        return
    if "choices" in entry and not _is_choice(value, entry):
        typed = _typed(entry)
        report.error(
            "not_a_choice",
            path,
            Message(
                "{name} is {value}, not {expected}: {eager}",
                name=name,
                value=shown(value),
                expected=expected(entry),
                eager=EAGER,
            ),
            _repair(value, typed),
        )
        return
    if coerce(value, _typed(entry) | {"choices": []}).coerce != "exact":
        is_word = entry["type"] == "bool" and isinstance(value, str) and value and len(path) == 1
        taken = Message("to DeepSpeed every text is true" if is_word else "DeepSpeed takes it as it is")
        fix = Message('write "{name}": {value}', name=name, value=shown(value.lower() in TRUE_WORDS)) if is_word else ""
        report.warning(
            "wrong_type",
            path,
            Message(
                "{name} is {value}, not {expected}; {taken}",
                name=name,
                value=shown(value),
                expected=expected(entry),
                taken=taken,
            ),
            fix,
        )


def _typed(entry: Entry) -> Entry:
    return {**entry, "types": [entry["type"]]}


def _is_choice(value: Any, entry: Entry) -> bool:
    if entry.get("fold") and isinstance(value, str):
        return value.lower() in [each.lower() for each in entry["choices"]]
    return value in entry["choices"]


def leaves(content: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every value inside nested objects that is not an object itself; lists are values."""
    for key, value in content.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value
