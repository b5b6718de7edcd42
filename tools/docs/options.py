"""The generated parts of pages about options: every option of a command, and what its values mean."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import Field
from operator import attrgetter
from typing import Any

from dsrun.kubernetes.options import KubernetesSpec
from dsrun.options import by_group, flag_of, key_of, value_kind
from dsrun.recipe.compat.removed import SAME, RemovedCase, RemovedFlag, removed_flags
from dsrun.recipe.compat.removed import other_tools as tool_flags
from dsrun.recipe.flags import RecipeFlag, by_spelling, hf_flags, hf_version, own_flags, shown, shown_value
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.slurm.render.environment import networks
from dsrun.slurm.render.options import SlurmSpec
from dsrun.slurm.render.spec import RESERVED_OPTIONS
from dsrun.zero.generate.blocks import MOVED
from dsrun.zero.generate.explain import meanings
from dsrun.zero.generate.presets import PRESETS
from dsrun.zero.generate.spec import ZeroSpec
from dsrun.zero.rules import ConfigRule, rules
from dsrun.zero.view import FILLED
from tools.docs import table

by_name = attrgetter("name")


def train() -> str:
    """The generated part of docs/train.md: our flags by group, the names of the others, the removed flags."""
    parts = ["## Flags of dsrun"]
    for title, found in by_group(TrainSpec).items():
        rows = [_train_row(own_flags()[key_of(each)]) for each in found]
        parts += [f"### {title}", table(("flag", "value", "default", "meaning"), rows)]
    removed = [(f"`--{row.name}`", _fate(row)) for row in sorted(removed_flags().values(), key=by_name)]
    parts += [
        "## Training arguments of Transformers",
        f"All {len(hf_flags())} of them are taken under their own names (Transformers {hf_version()}):",
        ", ".join(f"`{flag.shown}`" for flag in sorted(hf_flags().values(), key=by_name)) + ".",
        "`--trainer_debug` is the training argument `debug`; `--debug underflow_overflow` reaches it too.",
        "## Flags that Transformers 5 removed",
        "Each is translated with one notice on stderr, or refused with what to write instead.",
        table(("flag", "what happens"), removed),
    ]
    return "\n\n".join(parts) + "\n"


def mixture() -> str:
    """The generated part of docs/data.md: the keys of a set of a mixture."""
    rows = [(f"`{flag.name}`", flag.help) for flag in own_flags().values() if flag.per_set]
    return table(("key of a set", "meaning"), rows) + "\n"


def _train_row(flag: RecipeFlag) -> tuple[str, str, str, str]:
    also = ", ".join(f"`{shown(alias)}`" for alias in flag.aliases)
    meaning = flag.help + (f"; also {also}" if also else "")
    return f"`{flag.shown}`", _code(flag.value_text) or "switch", _code(flag.default_text), meaning


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _fate(row: RemovedFlag) -> str:
    return "; ".join(_case(case, several=len(row.cases) > 1) for case in row.cases)


def _case(case: RemovedCase, *, several: bool) -> str:
    """One case of a removed flag in words."""
    opening = f"{case.label or 'else'}: " if several else ""
    if case.becomes:
        flag = by_spelling()[case.becomes]
        value = "" if case.value is SAME else f" {shown_value(flag.name, case.value)}"
        return f"{opening}taken as `{flag.shown}{value}`"
    return f"{opening}refused, {case.reason}: {case.advice}" if case.fix else f"{opening}ignored, {case.reason}"


def other_tools() -> str:
    """The generated part of docs/coming-from.md: what is written here instead of a flag or key of each tool."""
    by_tool: dict[str, list[tuple[str, str]]] = {}
    for name, (tool, advice) in tool_flags().items():
        by_tool.setdefault(tool, []).append((f"`{name}`", advice))
    return "\n\n".join(f"### {tool}\n\n{table(('theirs', 'here'), rows)}" for tool, rows in by_tool.items()) + "\n"


def config() -> str:
    """The generated part of docs/config.md."""
    parts = ["## Options"]
    for group, found in by_group(ZeroSpec).items():
        rows = map(_config_row, found)
        parts += [f"### {group}", table(("flag", "value", "default", "meaning", "key"), rows)]
    parts += [
        "## Presets",
        table(("", *PRESETS), _preset_rows()),
        "\n".join(f"- **{name}**: {preset.why}." for name, preset in PRESETS.items()),
        "## What the Trainer fills",
        table(("key", "from"), [(f"`{key}`", source) for key, source in FILLED.items()]),
        "## Defaults that moved",
        table(("key", "DeepSpeed's own default"), [(f"`{key}`", words) for key, words in MOVED.items()]),
        "## What does not go together",
        "Refused by name, with what to write instead. The places are below `deepspeed/` unless they say otherwise.",
        table(
            ("what is refused", "way out", "where it follows from"),
            [*map(_rule_row, rules("flags")), *map(_rule_row, rules())],
        ),
        "## What each key does",
        table(("key", "meaning"), [(f"`{key}`", text) for key, text in sorted(meanings().items())]),
    ]
    return "\n\n".join(parts) + "\n"


def _config_row(each: Field[Any]) -> tuple[str, str, str, str, str]:
    meta = each.metadata
    key = f"`{meta['key']}`" if "key" in meta else ""
    also = ", ".join("`--" + alias.replace("_", "-") + "`" for alias in meta["aliases"])
    meaning = meta["help"] + (f"; also {also}" if also else "")
    default = "" if each.default in (None, (), False, "none") else f"`{each.default}`"
    return f"`{flag_of(each)}`", _config_value(each), default, meaning, key


def _config_value(each: Field[Any]) -> str:
    meta, kind = each.metadata, value_kind(each)
    if kind == "bool":
        return "switch, `--no-`"
    word = "|".join(meta["choices"]) if meta["choices"] else meta["metavar"] or {"int": "N", "float": "X"}[kind]
    return f"`{word}`" + (" …" if kind == "tuple[str, ...]" else "")


def _preset_rows() -> list[Sequence[str]]:
    presets = list(PRESETS.values())
    return [
        ("bucket, × width²", *(f"{each.bucket:g}" for each in presets)),
        ("both buckets with their copies, at most of GPU memory", *(f"{each.bucket_share:.0%}" for each in presets)),
        ("fetched ahead (ZeRO 3), × bucket", *(f"{each.prefetch:g}" for each in presets)),
        ("parameters that stay whole (ZeRO 3), × width", *(f"{10 * each.persistence:g}" for each in presets)),
        ("gathered parameters (ZeRO 3), of GPU memory", *(f"{each.live_share:.1%}" for each in presets)),
        ("slice of the optimizer step (ZeRO 3)", *(f"{each.sub_group:,}" for each in presets)),
        ("reduce during the backward pass", *(_yes(each.overlap_comm) for each in presets)),
        ("pinned host memory", *(_yes(each.pin_memory) for each in presets)),
        (
            "activation checkpointing block, for DeepSpeed alone",
            *(_yes(each.activation_checkpointing) for each in presets),
        ),
    ]


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _rule_row(rule: ConfigRule) -> tuple[str, str, str]:
    return _plain(rule.message), _plain(rule.fix), rule.source


def _plain(text: str) -> str:
    """A rule's words with its placeholders in capitals: {zero_optimization.stage} becomes STAGE."""
    return re.sub(r"\{([\w.]+)\}", lambda match: match[1].rpartition(".")[2].upper(), text)


def slurm() -> str:
    """The generated part of docs/slurm.md."""
    parts = ["## Every option"]
    for title, found in by_group(SlurmSpec).items():
        parts += [f"### {title}", table(("flag", "value", "default", "meaning", "sbatch"), map(_slurm_row, found))]
    parts += [
        "### What --sbatch does not take",
        "Every option above that has an sbatch option of its own, and:",
        table(
            ("sbatch option", "why, and what to write"), [(f"`{key}`", why) for key, why in RESERVED_OPTIONS.items()]
        ),
        "## Network presets",
        table(
            ("`--network`", "for", "sets, where the environment has nothing"),
            [
                (f"`{name}`", each["about"], ", ".join(f"`{key}={value}`" for key, value in each["variables"].items()))
                for name, each in networks().items()
            ],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def kubernetes() -> str:
    """The generated part of docs/kubernetes.md."""
    parts = ["## Every option"]
    for title, found in by_group(KubernetesSpec).items():
        rows = [(*_job_row(each), f"`{each.metadata['field']}`") for each in found]
        parts += [f"### {title}", table(("flag", "value", "default", "meaning", "field"), rows)]
    return "\n\n".join(parts) + "\n"


def _slurm_row(each: Field[Any]) -> tuple[str, str, str, str, str]:
    meta = each.metadata
    return (*_job_row(each), f"`--{meta['sbatch']}`" if "sbatch" in meta else "")


def _job_row(each: Field[Any]) -> tuple[str, str, str, str]:
    """An option of a renderer: flag, value, default, meaning."""
    meta, kind = each.metadata, value_kind(each)
    names = [flag_of(each), *("--" + alias.replace("_", "-") for alias in meta["aliases"])]
    names += [f"-{meta['short']}"] if "short" in meta else []
    value = "switch, `--no-`" if kind == "bool" else f"`{'|'.join(meta['choices'] or ()) or meta['metavar']}`"
    default = "" if each.default in (None, (), False) else "on" if each.default is True else f"`{each.default}`"
    return (
        " ".join(f"`{name}`" for name in names),
        value + (" …" if kind == "tuple[str, ...]" else ""),
        default,
        meta["help"],
    )
