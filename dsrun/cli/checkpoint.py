"""`dsrun checkpoint list|verify|inspect`: what a run has saved, and whether it is intact. Needs no torch."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from dsrun.checkpoints import CheckpointContents, CheckpointEntry, contents, entries, find
from dsrun.cli.output import evaluated, print_fields, print_findings, print_json, print_line, print_table
from dsrun.datafiles import toml_beside
from dsrun.errors import EXIT_FINDINGS, UsageError
from dsrun.findings.finding import text_of
from dsrun.findings.translation import translated
from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import FileDamage, complete_checkpoints
from dsrun.runs.manifest import verify as read_through
from dsrun.system.terminal.display import duration, size_text

_TABLE = toml_beside(__file__)


def list_checkpoints(*, run: Path, form: str) -> int:
    place = find(run)
    found = entries(place if isinstance(place, RunFolder) else RunFolder(place.absolute().parent))
    if form == "json":
        print_json({"checkpoints": found})
    elif found:
        print_table([[*_TABLE["columns"]], *(_row(entry) for entry in found)])
    else:
        click.echo(f"{run} has no checkpoints", err=True)
    return 0


def verify(*, where: Path, form: str) -> int:
    place = find(where)
    paths = [path for _, path in place.checkpoints()] if isinstance(place, RunFolder) else [place]
    if not paths:
        raise UsageError(f"{where} has no checkpoints")
    results: list[tuple[Path, list[FileDamage]]] = []
    for path in paths:
        damage = read_through(path)
        if damage and path != place and not path.is_dir():
            continue  # Training has deleted it meanwhile, as older than those it keeps.
        results.append((path, damage))
        if form == "text":
            print_findings(each.finding for each in damage)
            if not damage:
                print_line(f"{path}: {translated(text_of('total.intact'))}")
    if form == "json":
        checked = [
            {"path": path, "damaged": bool(damage), "findings": [each.named for each in damage]}
            for path, damage in results
        ]
        print_json({"checkpoints": checked})
    return EXIT_FINDINGS if any(damage for _, damage in results) else 0


def inspect(*, where: Path, form: str) -> int:
    found = contents(_one(where))
    if form == "json":
        print_json({"checkpoint": found})
    else:
        print_fields(_lines(found), width=18)
    return 0


def _one(where: Path) -> Path:
    place = find(where)
    if not isinstance(place, RunFolder):
        return place
    complete = complete_checkpoints(place)
    if not complete:
        raise UsageError(f"{where} has no complete checkpoint", fix=f"dsrun checkpoint list {where}")
    return complete[0][1]


def _state(entry: CheckpointEntry) -> str:
    return entry.state + (", best" if entry.best else "") + (f": {translated(entry.why)}" if entry.why else "")


def _row(entry: CheckpointEntry) -> list[str]:
    age = duration(max(0.0, (datetime.now(UTC) - datetime.fromisoformat(entry.time)).total_seconds()))
    return [*evaluated(_TABLE["columns"], entry=entry, state=_state(entry), age=age).values()]


def _lines(found: CheckpointContents) -> list[tuple[str, str]]:
    names = {"entry": found.entry, "state": _state(found.entry), "weights": _weights(found), "short": _short}
    lines = evaluated(_TABLE["fields"], **names, found=found, facts=found.facts)
    return [*lines.items(), *((f"  {kind.name}", f"{size_text(kind.size)} in {kind.files}") for kind in found.kinds)]


def _weights(found: CheckpointContents) -> str:
    held = found.weights
    if held is None:
        return ""
    empty = f"; {len(held.empty)} tensors are EMPTY, {held.empty[0]} first" if held.empty else ""
    return f"{held.parameters:,} parameters in {held.tensors} tensors, {', '.join(sorted(held.by_dtype))}{empty}"


def _short(digest: Any) -> str:
    return f"sha256 {str(digest)[:16]}" if digest else ""
