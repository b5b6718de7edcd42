"""`dsrun gpus`: what a GPU's name or a GRES string means."""

from collections.abc import Sequence
from typing import Any

import click

from dsrun.cli.output import print_json, print_table
from dsrun.datafiles import toml_beside
from dsrun.hardware.gpu_facts import GpuModel, gpu_table, lookup, meanings, near_names, unknown_gpu
from dsrun.hardware.gres import parse_gres, written_gpus
from dsrun.hardware.site import instance
from dsrun.machine.gpus import visible_gpus
from dsrun.system.terminal.stderr import print_note

GpuRow = dict[str, Any]
_TABLE = toml_beside(__file__)


def explain(names: tuple[str, ...], gres: str | None, every: bool, form: str) -> None:
    given = _known() if every else [_named(name) for name in names]
    asks = not given and gres is None
    found_rows: dict[str, list[GpuRow]] = {}
    if given or asks:
        found_rows["gpus"] = given or _here() or (_known() if form == "json" else [])
    if gres is not None:
        found_rows["gres"] = [
            {"type": each.type, "count": each.count, "compute_capability": _version(each.capability)}
            for each in parse_gres(gres)
        ]
    if form == "json":
        print_json(found_rows)
    else:
        _print(found_rows, gres)
        if asks:
            click.echo(_TABLE["how_to_ask"].format(count=len(gpu_table())), err=bool(found_rows["gpus"]))


def _named(name: str) -> GpuRow:
    """What is known of `name`; `may_be` lists what it could mean, or resembles, where it is not known."""
    gpu, _, count = written_gpus(name).partition(":")
    found, rented = lookup(gpu if count.isdigit() else name), instance(name)
    if found:
        number = rented.count if rented else int(count or 1)
        return {**_row(name, found), **({"count": number} if rented or count else {})}
    may_be = [row.name for row in meanings(name)] or near_names(name)
    return {**_row(name, None), "may_be": may_be}


def _row(name: str, found: GpuModel | None) -> GpuRow:
    about = found._asdict() if found else dict.fromkeys(GpuModel._fields)
    product, capability, _ = about.pop("name"), about.pop("capability"), about.pop("aliases")
    return {"name": name, "compute_capability": _version(capability), "product": product, **about}


def _version(capability: tuple[int, int] | None) -> str | None:
    return f"{capability[0]}.{capability[1]}" if capability else None


def _known() -> list[GpuRow]:
    return [_row(row.name, row) for row in gpu_table()]


def _here() -> list[GpuRow]:
    """The GPUs of this machine."""
    rows = [(gpu, _named(gpu.name)) for gpu in visible_gpus()]
    # The driver takes precedence over the table.
    return [{**row, "compute_capability": _version(gpu.capability) or row["compute_capability"]} for gpu, row in rows]


def _print(found_rows: dict[str, list[GpuRow]], gres: str | None) -> None:
    for name, columns in _TABLE["columns"].items():
        if found_rows.get(name):
            rows = [
                {**each, "memory_gib": each.get("usable_gib") or each.get("memory_gib")} for each in found_rows[name]
            ]
            print_table([list(columns), *([_cell(key, row[key]) for key in columns.values()] for row in rows)])
    if found_rows.get("gres") == []:
        print_note(f"{gres!r} contains no GPUs")
    for row in found_rows.get("gpus", []):
        if "count" in row:
            print_note(f"{row['name']} has {row['count']} {row['product']}")
        if row["compute_capability"] is None:
            print_note(_unknown(row["name"], row["may_be"]))


def _unknown(name: str, may_be: Sequence[str]) -> str:
    if meanings(name):
        return f"{name!r} may be {' or '.join(may_be)}, which differ; write the full name"
    hint = f"; did you mean {' or '.join(may_be)}?" if may_be else ""
    return f"{unknown_gpu(name)}{hint}"


def _cell(key: str, value: object) -> str:
    if value is None:
        return "unknown" if key == "compute_capability" else "-"
    return f"{value:g}" if isinstance(value, float) else str(value)
