"""The generated part of docs/slurm.md: every option, the network presets, and what a template can name.

`python -m dsrun.slurm.reference` prints it; `python -m dsrun.slurm.reference docs/slurm.md` puts it between the
markers of that file.
"""

from __future__ import annotations

import sys
from dataclasses import Field
from typing import Any

from dsrun.docpage import GeneratedPart, table
from dsrun.options import by_group, flag_of, value_kind
from dsrun.slurm.render.environment import networks
from dsrun.slurm.render.options import SlurmSpec
from dsrun.slurm.render.spec import RESERVED_OPTIONS


def markdown() -> str:
    """The generated part as Markdown."""
    parts = ["## Every option"]
    for title, found in by_group(SlurmSpec).items():
        parts += [f"### {title}", table(("flag", "value", "default", "meaning", "sbatch"), map(_row, found))]
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


def _row(each: Field[Any]) -> tuple[str, str, str, str, str]:
    meta, kind = each.metadata, value_kind(each)
    names = [flag_of(each), *("--" + alias.replace("_", "-") for alias in meta["aliases"])]
    names += [f"-{meta['short']}"] if "short" in meta else []
    value = "switch, `--no-`" if kind == "bool" else f"`{'|'.join(meta['choices'] or ()) or meta['metavar']}`"
    default = "" if each.default in (None, (), False) else "on" if each.default is True else f"`{each.default}`"
    sbatch = f"`--{meta['sbatch']}`" if "sbatch" in meta else ""
    return (
        " ".join(f"`{name}`" for name in names),
        value + (" …" if kind == "tuple[str, ...]" else ""),
        default,
        meta["help"],
        sbatch,
    )


PART = GeneratedPart("dsrun.slurm.reference", markdown)

if __name__ == "__main__":
    PART.main(sys.argv[1:])
