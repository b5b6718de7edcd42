"""`dsrun export`: a run or a checkpoint as a Hugging Face folder, from any ZeRO stage and number of ranks."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from dsrun.checkpoints import export_source
from dsrun.datafiles import toml_beside
from dsrun.errors import DsrunError, UsageError
from dsrun.models.folder import find
from dsrun.refusals import Refusals
from dsrun.runs.folder import RunFolder
from dsrun.system.files import read_object
from dsrun.system.host import require_training_packages
from dsrun.system.terminal.stderr import print_detail, print_note

EXPORTER = "dsrun.train.export"

ENVIRONMENT: dict[str, str] = toml_beside(__file__)["environment"]
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?", re.IGNORECASE)


def export(*, source: Path, to: Path, merge_lora: bool, max_shard_size: str, force: bool, **given: Any) -> int:
    require_training_packages()
    limit = shard_bytes(max_shard_size)
    refuse_target(to, source, force=force)
    chosen = export_source(source, merge_lora=merge_lora, notify=print_note)
    run = RunFolder(source)
    is_merged = chosen == run.model and run.adapter.is_dir()
    request = {
        "source": str(chosen.absolute()),
        "to": str(to.absolute()),
        "dtype": given["dtype"],
        "merge_lora": merge_lora and not is_merged,
        "limit": limit,
        "force": force,
        **_base(given["base"], chosen, given["text_only"]),
    }
    os.environ.update(ENVIRONMENT)
    print_detail(f"exporting {chosen} to {to}")
    os.execv(sys.executable, [sys.executable, "-m", EXPORTER, json.dumps(request)])


def _base(given: str | None, chosen: Path, text_only: bool) -> dict[str, str | bool | None]:
    """The folder of the model that was trained, as given or as run.json has it; and whether the text model of it is
    exported alone, as is that of a run with --text-only."""
    if given:
        return {"base": str(find(given).folder.absolute()), "text_only": text_only}
    run = read_object(RunFolder(chosen.parent).run_json) or {}
    text_only = text_only or bool(run.get("specs", {}).get("train", {}).get("text_only"))
    try:
        folder = find(str(run["model"])).folder.absolute()
    except (KeyError, DsrunError):
        if run.get("part_of") and not text_only:
            print_note(
                f"{run['model']} is not on this machine: the text model of it is exported alone; --base DIR names where"
                " it is"
            )
        return {"base": None, "text_only": text_only}
    return {"base": str(folder), "text_only": text_only}


def shard_bytes(text: str) -> int:
    """A size as transformers takes it: 5GB is 5 × 10**9 bytes, 5GiB 5 × 2**30. Raises UsageError for invalid sizes."""
    found = _SIZE.fullmatch(text.strip())
    if not found or float(found[1]) <= 0:
        raise UsageError(f"--max-shard-size {text} is not a size", fix="write 5GB, 500MB or 2GiB")
    base = 1024 if found[3] else 1000
    return max(1, int(float(found[1]) * base ** " KMGT".index(found[2].upper() or " ")))


def refuse_target(to: Path, source: Path, *, force: bool) -> None:
    """Raise UsageError if `to` is a file, or a folder with content that may not be replaced.

    A run folder, and one that contains `source`, may not with `force` either: their content would be deleted."""
    Refusals(__file__).check("target", to=to, source=source, force=force, any=any, run=RunFolder(to))
