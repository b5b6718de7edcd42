"""From a ZeroSpec to DeepSpeed's JSON.

Values that the Hugging Face Trainer fills from its own arguments are "auto"; every default that moved between
DeepSpeed releases is written out, so that the same file means the same next year. `--set KEY=VALUE` sets any
other key, checked against the keys that the installed release reads."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from math import isfinite, prod
from typing import Any

from dsrun.datafiles import SubjectNames, evaluate, toml_beside
from dsrun.engine_options import EngineOptions, engine_options
from dsrun.errors import UsageError, nearest
from dsrun.findings.finding import Finding
from dsrun.refusals import Refusals
from dsrun.zero import schema
from dsrun.zero.generate import blocks
from dsrun.zero.generate.blocks import ConfigContext, FlatConfig, HardwareFacts, ReasonedValue
from dsrun.zero.generate.spec import ZeroSpec, as_typed, flag_of, from_offload, given
from dsrun.zero.lint.config_check import check as lint
from dsrun.zero.rules import read_rules, rules
from dsrun.zero.view import AUTO

REFUSED = frozenset({"bf16_needs_ampere", "conflict", "needs_stage", "offload_needs_stage"})
"""Findings that refuse what was asked also where DeepSpeed would go on without it."""
# Their keys are the arguments of the class that is named beside them.
FREE = ("optimizer.params", "scheduler.params")

_TEXTS = Refusals(__file__, "refusals.toml")
_SHIPPED = toml_beside(__file__, "shipped.toml")
SHIPPED = {name: ZeroSpec(**file["options"]) for name, file in _SHIPPED.items()}
"""What each file of ds_configs/ is generated from."""
PURPOSES: dict[str, str] = {name: file["does"] for name, file in _SHIPPED.items()}
"""What each file of ds_configs/ is for, in one line of Markdown."""


ADAMW_OF_TORCH = ("adamw_torch", "adamw_torch_fused")
"""What DeepSpeed's CPU Adam computes too; those of the other "adamw_" names keep other states."""


def overrides(arguments: Iterable[str]) -> dict[str, Any]:
    """Typed values by key, of `KEY=VALUE` words; a later one replaces an earlier one.

    Raises UsageError for a key that DeepSpeed does not read, with the nearest that it does, and for a value that the
    key does not take."""
    found: dict[str, Any] = {}
    for word in arguments:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {word} is not KEY=VALUE", fix="--set zero_optimization.sub_group_size=1e8")
        name, entry = _known(key)
        found[name] = _typed(key, text, entry)
        try:
            json.dumps(found[name], allow_nan=False)
        except ValueError:
            raise UsageError(f"--set {word}: not a number that JSON can hold") from None
    return found


def switches(given: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, bool]:
    """`enabled` of the blocks that only --set names a key of: a key of a block that is off is not set."""
    found = {}
    for key in given:
        block = key.rpartition(".")[0]
        known = schema.blocks()[block].keys if block in schema.blocks() else {}
        if "enabled" in known and f"{block}.enabled" not in {**given, **config}:
            found[f"{block}.enabled"] = True
    return found


def _known(key: str) -> tuple[str, schema.SchemaEntry | None]:
    """A key by its own name, and what is known of it: None for an argument of an optimizer or scheduler."""
    block, _, name = key.rpartition(".")
    if block in FREE:
        return key, None
    if name in schema.removed(block):
        raise UsageError(f"--set {key}: DeepSpeed has removed it", fix="remove it")
    if block in schema.blocks() and name in schema.blocks()[block].spellings:
        own = schema.blocks()[block].spellings[name]
        return f"{block}.{own}" if block else own, schema.blocks()[block].keys[own]
    near = nearest_key(name)
    hint = f"did you mean {near}?" if near else "docs/config.md lists the keys"
    raise UsageError(f"--set {key}: DeepSpeed has no such key", fix=hint)


def nearest_key(name: str) -> str | None:
    """The key of this name in any block, else of the nearest name; also without the prefixes of ZeRO's keys."""
    known = schema.homes()
    same = (each for each in (name, f"stage3_{name}", f"zero_{name}") if each in known)
    match = next(same, None) or nearest(name, known)
    if match is None:
        return None
    block = known[match][0]
    return f"{block}.{match}" if block else match


def _typed(key: str, text: str, entry: schema.SchemaEntry | None) -> Any:
    """The value of a word: JSON where it is, else the text itself; for a list also words with commas."""
    value: Any = text
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
    if entry is None or (value == AUTO and isinstance(value, str)):
        return value
    if "block" in entry:
        if isinstance(value, dict):
            return value
        raise UsageError(f"--set {key}={text}: an object {{…}} is expected", fix=f"--set {key}.KEY=VALUE")
    typed = entry if "types" in entry else {**entry, "types": [entry["type"]]}
    candidates = [value, text, text.split(",")] if isinstance(value, str) else [value, text]
    fitted = [schema.coerce(each, typed) for each in candidates]
    found = next((each for each in fitted if each.coerce == "exact"), None) or fitted[0]
    if found.coerce == "refused" or ("choices" in entry and found.value not in entry["choices"]):
        raise UsageError(f"--set {key}={text}: {schema.expected(entry)} is expected")
    if limits := schema.outside(found.value, entry):
        raise UsageError(f"--set {key}={text}: a value {limits} is expected")
    return found.value


# The order of the blocks is that in which a reader asks: how much, how exact, how sharded, how updated.
WRITERS = (
    partial(blocks.written, "batch"),
    partial(blocks.written, "clipping"),
    blocks.precision,
    blocks.accumulation,
    blocks.zero,
    blocks.optimizer,
    blocks.scheduler,
    partial(blocks.written, "parallel"),
    blocks.extras,
)


def generate(spec: ZeroSpec, *, hidden_size: int | None = None, facts: HardwareFacts | None = None) -> dict[str, Any]:
    """DeepSpeed's configuration for `spec`.

    With `hidden_size` (the model's width, in elements) the bucket sizes are numbers; without it they are "auto"
    for the Trainer, and those of a usual model for DeepSpeed alone. `facts` says more about model and GPU.
    Raises UsageError for what DeepSpeed does not have and for options that do not go together."""
    facts = facts or HardwareFacts(hidden_size=hidden_size)
    config = nested(build(spec, facts))
    check_config(config, spec, facts)
    return config


def check_config(config: Mapping[str, Any], spec: ZeroSpec, facts: HardwareFacts) -> list[Finding]:
    """All findings of the linter. Raises UsageError for one on which DeepSpeed stops, or that voids a setting."""
    findings = lint(
        json.dumps(config),
        target="deepspeed" if spec.target == "deepspeed" else "trainer",
        world_size=spec.gpus,
        model_type=facts.model_type,
        gpu=facts.gpu,
    )
    for each in findings:
        if each.level == "error" or each.code in REFUSED:
            flags = ", ".join(as_typed(option.name, value) for option, value in given(spec) if option.name != "gpus")
            raise UsageError(f"{each.message} ({flags})" if flags else each.message, fix=each.fix)
    return findings


def nested(flat: FlatConfig) -> dict[str, Any]:
    """The values by block."""
    config: dict[str, Any] = {}
    for path, reasoned in flat.items():
        *parents, key = path.split(".")
        block = config
        for parent in parents:
            block = block.setdefault(parent, {})
        block[key] = reasoned.value
    return config


def build(spec: ZeroSpec, facts: HardwareFacts) -> FlatConfig:
    """Every key of the configuration by its path, with the reason for its value.

    Raises UsageError for flags that do not go together; what the JSON shows is left to `check_config`."""
    check_flags(spec)
    case = ConfigContext(spec=spec, facts=facts)
    flat: FlatConfig = {}
    for writer in WRITERS:
        flat |= writer(case)
    return flat | _copied(spec) | _overridden(spec, flat)


def _copied(spec: ZeroSpec) -> FlatConfig:
    """What options ask for that are a key of the JSON as they are; they win over every preset."""
    flat: FlatConfig = {}
    for each, value in given(spec):
        if each.metadata.get("copied"):
            reason = f"asked by {as_typed(each.name, value)}"
            flat[each.metadata["key"]] = ReasonedValue(value, reason)
            flat |= {also: ReasonedValue(fixed, reason) for also, fixed in each.metadata.get("along", {}).items()}
    return flat


def _overridden(spec: ZeroSpec, given: FlatConfig) -> FlatConfig:
    """The keys of --set, which win over everything else."""
    flat: FlatConfig = {}
    for word in spec.overrides:
        for key, value in overrides((word,)).items():
            flat[key] = ReasonedValue(value, f"asked by --set {word}")
    enabled = {key: f"--set names a key of {key.rpartition('.')[0]}" for key in switches(flat, given)}
    return {key: ReasonedValue(True, why) for key, why in enabled.items()} | flat


def render_json(config: dict[str, Any]) -> str:
    """The configuration as it is written to a file: indented JSON with a final newline."""
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"


def config_of_flags(
    stage: int, *, offload: str, optim: str | None, options: EngineOptions, hidden_size: int | None
) -> dict[str, Any] | None:
    """The configuration for the flags of `dsrun train`, or None for plain DDP (stage 0).

    An `optim` that is not AdamW keeps DeepSpeed's CPU Adam out of an offloaded run, unless it is DeepSpeed's own."""
    if stage == 0 and offload == "none":
        return None
    own_optimizer = (optim or ADAMW_OF_TORCH[0]) not in ADAMW_OF_TORCH
    zero = from_offload(stage, offload, own_optimizer=own_optimizer)
    given = engine_options(options)
    if offload != "nvme":
        given["nvme_path"] = None  # which is a remark there, not an error
    if optim == "muon":
        given["optimizer"] = optim
    return generate(replace(zero, **given), hidden_size=hidden_size)


STAGES = (0, 1, 2, 3)

# Single options that belong to some stages only; without their key in the JSON no rule would see them.
STAGES_OF_OPTION = {
    **dict.fromkeys(("reduce_bucket_size", "overlap_comm", "offload_optimizer", "zenflow"), (1, 2, 3)),
    "allgather_bucket_size": (1, 2),
    **dict.fromkeys(("offload_param", "hpz", "qwz", "qgz", "super_offload"), (3,)),
}


def _batch_differs(spec: ZeroSpec) -> bool:
    """Whether the batch sizes that are given leave no number for the rest."""
    shared = max(1, spec.autotp * spec.sequence_parallel)
    parts = (spec.micro_batch_size, spec.accumulation, spec.gpus and spec.gpus // shared)
    made = prod(each or 1 for each in parts)
    total = spec.global_batch_size
    return total is not None and (total != made if all(parts) else total % made != 0)


def names_of_flags(spec: ZeroSpec) -> SubjectNames:
    """What conditions of rules may name of flags."""
    return SubjectNames(spec, read_rules("terms")["flags"], batch_differs=_batch_differs(spec))


def check_flags(spec: ZeroSpec) -> None:
    """Raise UsageError for a value that a flag does not take, and for the first flags that do not go together."""
    if spec.stage not in STAGES:
        raise UsageError(f"ZeRO stage {spec.stage} does not exist", fix="choose --zero 0, 1, 2 or 3")
    for each, value in given(spec):
        _check_value(each.name, each.metadata, value)
        stages = STAGES_OF_OPTION.get(each.name)
        if stages and spec.stage not in stages:
            listed = " or ".join(map(str, stages))
            raise UsageError(f"{flag_of(each.name)} does nothing under --zero {spec.stage}", fix=f"use --zero {listed}")
    names = names_of_flags(spec)
    for rule in rules("flags"):
        if evaluate(rule.when, names):
            raise UsageError(rule.message.format(**asdict(spec)), fix=rule.fix.format(**asdict(spec)))


def _check_value(name: str, meta: Mapping[str, Any], value: Any) -> None:
    """One option by itself: its choices and its bounds."""
    flag, choices = flag_of(name), ", ".join(meta["choices"] or ())
    for each in value if isinstance(value, tuple) else (value,):
        finite = not isinstance(each, float) or isfinite(each)
        _TEXTS.check("value", flag=flag, value=each, meta=meta, choices=choices, is_finite=finite)
