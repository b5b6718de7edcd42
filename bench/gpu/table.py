"""The table of `make bench-gpu`, as JSON and as Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.gpu.run import Row

HEADINGS = ("block", "result", "seconds", "tokens/s", "MFU", "goal", "peak GiB", "detail")


def write_table(rows: Sequence[Row], facts: Mapping[str, Any], folder: Path) -> None:
    """bench-gpu.json and bench-gpu.md; after every block, so that a run that is cut off leaves what it measured."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {"version": 2, **facts, "blocks": [row.as_dict() for row in rows]}
    (folder / "bench-gpu.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    (folder / "bench-gpu.md").write_text(markdown(rows, facts), encoding="utf-8")


def markdown(rows: Sequence[Row], facts: Mapping[str, Any]) -> str:
    """A heading with the machine, and a line for each block."""
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    machine = f"{len(facts['gpus'])} × {facts['gpus'][0]}" if facts["gpus"] else "no GPU"
    lines = [_line(HEADINGS), _line(["---"] * len(HEADINGS)), *(_line(_cells(row)) for row in rows)]
    return f"{facts['date']}, {machine}; {versions}\n\n" + "\n".join(lines) + "\n"


def _cells(row: Row) -> list[str]:
    figures = row.figures
    return [
        row.name,
        row.status,
        f"{row.seconds:.0f}" if row.seconds else "",
        f"{figures['tokens_per_s']:,.0f}" if "tokens_per_s" in figures else "",
        f"{figures['mfu']:.1%}" if figures.get("mfu") is not None else "",
        f"{figures['goal']:.0%}" if "goal" in figures else "",
        f"{figures['gpu_memory_peak'] / 2**30:.1f}" if figures.get("gpu_memory_peak") else "",
        (row.detail or figures.get("note", "")).replace("|", "\\|"),
    ]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
