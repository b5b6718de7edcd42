"""What is generated for the repository: the tables of docs/config.md, and the ready-made files of ds_configs/.

`python -m dsrun.zero.reference` prints the tables; with docs/config.md it puts them between the markers of that file,
and with ds_configs it writes the files there, made from the options in shipped.toml, and their README.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import Field
from pathlib import Path
from typing import Any

from dsrun.docpage import GeneratedPart, table
from dsrun.options import by_group
from dsrun.zero.generate.blocks import MOVED
from dsrun.zero.generate.config import generate, render
from dsrun.zero.generate.explain import meanings
from dsrun.zero.generate.presets import PRESETS
from dsrun.zero.generate.spec import FlagRule, ZeroSpec, flag_of, flag_rules
from dsrun.zero.rules import Rule, rules
from dsrun.zero.view import FILLED


def markdown() -> str:
    """The generated part as Markdown."""
    parts = ["## Options"]
    for group, found in by_group(ZeroSpec).items():
        rows = map(_option_row, found)
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
            [*map(_rule_row, flag_rules()), *map(_rule_row, rules())],
        ),
        "## What each key does",
        table(("key", "meaning"), [(f"`{key}`", text) for key, text in sorted(meanings().items())]),
    ]
    return "\n\n".join(parts) + "\n"


def _option_row(each: Field[Any]) -> tuple[str, str, str, str, str]:
    meta = each.metadata
    key = f"`{meta['key']}`" if "key" in meta else ""
    also = ", ".join("`--" + alias.replace("_", "-") + "`" for alias in meta["aliases"])
    meaning = meta["help"] + (f"; also {also}" if also else "")
    default = "" if each.default in (None, (), False, "none") else f"`{each.default}`"
    return f"`{flag_of(each.name)}`", _value(each), default, meaning, key


def _value(each: Field[Any]) -> str:
    meta, kind = each.metadata, str(each.type).removesuffix(" | None")
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


def _rule_row(rule: FlagRule | Rule) -> tuple[str, str, str]:
    return _plain(rule.message), _plain(rule.fix), rule.source


def _plain(text: str) -> str:
    """A rule's words with its placeholders in capitals: {zero_optimization.stage} becomes STAGE."""
    return re.sub(r"\{([\w.]+)\}", lambda match: match[1].rpartition(".")[2].upper(), text)


PART = GeneratedPart("dsrun.zero.reference", markdown)

_FILES = tomllib.loads(Path(__file__).with_name("shipped.toml").read_text(encoding="utf-8"))
SHIPPED = {name: ZeroSpec(**file["options"]) for name, file in _FILES.items()}
LINES: dict[str, str] = {name: file["does"] for name, file in _FILES.items()}

README = """# Ready-made DeepSpeed configurations

For `deepspeed --deepspeed_config`, `TrainingArguments(deepspeed=...)` or `dsrun train --deepspeed FILE`. Values that
say `"auto"` are filled by the Hugging Face Trainer from its own arguments; `dsrun train --zero N` writes the same
configuration by itself, with bucket sizes that follow the model's width. `dsrun config` makes a file like these for
any other wish, and `dsrun config --explain` says what each key does. Those with bf16 in them want the Trainer's
`--bf16`.

| file | what it does |
| --- | --- |
{rows}

Made by `python -m dsrun.zero.reference ds_configs`; a test holds files and generator equal.
"""


def readme() -> str:
    """The README.md of ds_configs/."""
    return README.format(rows="\n".join(f"| `{name}` | {LINES[name]} |" for name in SHIPPED))


def listing() -> str:
    """One line for each shipped file, as `dsrun config --list` prints them."""
    width = max(map(len, SHIPPED))
    return "\n".join(f"{name.ljust(width)}  {LINES[name].replace('`', '')}" for name in SHIPPED)


def write_all(folder: Path) -> None:
    """Write every shipped configuration and the README into `folder`."""
    for name, spec in SHIPPED.items():
        (folder / name).write_text(render(generate(spec)))
    (folder / "README.md").write_text(readme())


if __name__ == "__main__":
    if Path(*sys.argv[1:2]).name == "ds_configs":
        write_all(Path(sys.argv[1]))
    else:
        PART.main(sys.argv[1:])
