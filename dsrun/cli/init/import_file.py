"""`dsrun import`: the file of axolotl, LLaMA-Factory or TRL as a run.yaml."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dsrun.cli.init.run_yaml import scalar
from dsrun.cli.output import write_output
from dsrun.errors import EXIT_USAGE, UsageError
from dsrun.recipe.compat.imported_run import ImportedRun, import_run, tool_of
from dsrun.recipe.resolve import resolve
from dsrun.recipe.runfile import read_mapping
from dsrun.system.process.scratch import scratch_folder
from dsrun.system.terminal.display import printable
from dsrun.system.terminal.stderr import print_error, print_note

ZERO = {"zero": "stage", "offload": "offload"}


def run(*, file: str, tool: str | None, gpus: int, drop: tuple[str, ...], output: str | None, force: bool) -> int:
    """Translate and write; the callback of `dsrun import`. Everything that is against it is named first."""
    config, lines = read_mapping(Path(file), file)
    tool = tool or tool_of(config, file)
    for key in drop:
        if not _without(config, key):
            raise UsageError(f"--drop {key}: {file} has no such key", fix="leave it out")
    found = import_run(ImportedRun(tool, config, Path(file).parent, tool, f"{file}:", lines), gpus)
    text = "".join(f"{line}\n" for line in _lines(found, file))
    if not found.refused:
        try:
            with scratch_folder("dsrun-import-") as folder:
                Path(folder, "run.yaml").write_text(text, encoding="utf-8")
                found.notes += resolve(["--config", "run.yaml"], Path(folder)).notices
        except UsageError as error:
            found.refused.append(f"{file} becomes a run.yaml that cannot be trained: {error}")
    for note in found.notes:
        print_note(note)
    for reason in found.refused:
        print_error(reason)
    if found.refused:
        return EXIT_USAGE
    write_output(text, None if output == "-" else output, force=force)
    if output and output != "-":
        print_note(f"{output} is written; `dsrun train --config {shlex.quote(output)} --dry-run` checks it here")
    return 0


def _without(value: Any, key: str) -> bool:
    """Take a key out wherever it is, and tell whether it was there."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    found = [_without(each, key) for each in inner]
    return any(found) or (isinstance(value, dict) and value.pop(key, found) is not found)


def _lines(found: ImportedRun, file: str) -> Iterator[str]:
    values = dict(found.values)
    mix = values.pop("mix", None)
    zero = {ZERO[name]: values.pop(name) for name in ZERO if name in values}
    yield f"# Written by `dsrun import` from {printable(file)}, a file of {found.tool}; docs/train.md lists all keys."
    for section, entries in {"train": values, "zero": zero, "data": mix or {}}.items():
        if entries:
            yield f"\n{section}:"
        for key, value in entries.items():
            why = found.why.get(next((name for name, of in ZERO.items() if of == key), key), "")
            yield f"  {key}: {scalar(value)}{f'  # {printable(why)}' if why else ''}"
