"""`dsrun export`: a run or a checkpoint as a Hugging Face folder, whatever ZeRO stage and number of ranks saved it."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import click

from dsrun.cli.options import DEBUG
from dsrun.cli.output import print_note
from dsrun.errors import FindingsError, UsageError
from dsrun.findings import Finding
from dsrun.system.packages import require_training_packages

EXPORTER = "dsrun.train.export.run"

# Nothing here needs a GPU, and a GPU's driver would only cost memory; what libraries warn of is not the user's doing.
# glibc's malloc keeps what is freed, up to 32 MiB a piece, unless told to map and unmap it (mallopt(3)).
ENVIRONMENT = {
    "DS_ACCELERATOR": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONWARNINGS": "ignore",
    "MALLOC_MMAP_THRESHOLD_": "1048576",
    "MALLOC_TRIM_THRESHOLD_": "1048576",
}

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?", re.IGNORECASE)


@click.command(name="export")
@click.argument("source", metavar="RUN|CHECKPOINT", type=click.Path(path_type=Path))
@click.option("--to", required=True, metavar="DIR", type=click.Path(path_type=Path), help="The folder to write.")
@click.option(
    "--dtype",
    type=click.Choice(["bf16", "fp16", "fp32"]),
    help="Of the weights.  [default: as they were saved]",
)
@click.option("--merge-lora", is_flag=True, help="Add a LoRA adapter to its base model's weights.")
@click.option("--max-shard-size", default="5GB", show_default=True, metavar="SIZE", help="Bytes of one file at most.")
@click.option("--force", is_flag=True, help="Replace what is in --to.")
@DEBUG
def command(
    *,
    source: Path,
    to: Path,
    dtype: str | None,
    merge_lora: bool,
    max_shard_size: str,
    force: bool,
) -> int:
    """Write the weights of a run or a checkpoint as a Hugging Face folder, and prove that it computes the same.

    A RUN is exported as its final model when it has finished, else as its newest checkpoint that verifies. No GPU is
    needed, and memory for one tensor.
    """
    require_training_packages()
    limit = shard_bytes(max_shard_size)
    refuse_target(to, source, force=force)
    chosen = chosen_source(source, merge_lora=merge_lora)
    is_merged = chosen == source / "model" and (source / "adapter").is_dir()
    request = {
        "source": str(chosen.absolute()),
        "to": str(to.absolute()),
        "dtype": dtype,
        "merge_lora": merge_lora and not is_merged,
        "limit": limit,
        "force": force,
    }
    os.environ.update(ENVIRONMENT)
    os.execv(sys.executable, [sys.executable, "-m", EXPORTER, json.dumps(request)])


def shard_bytes(text: str) -> int:
    """A size as transformers takes it: 5GB is 5 × 10**9 bytes, 5GiB 5 × 2**30. Raises UsageError for what is none."""
    found = _SIZE.fullmatch(text.strip())
    if not found or float(found[1]) <= 0:
        raise UsageError(f"--max-shard-size {text} is no size", fix="use 5GB, 500MB or 2GiB")
    base = 1024 if found[3] else 1000
    return max(1, int(float(found[1]) * base ** " KMGT".index(found[2].upper() or " ")))


def refuse_target(to: Path, source: Path, *, force: bool) -> None:
    """Raise UsageError where `to` is a file, or a folder with something in it that may not be replaced.

    A run's folder, and one in which the `source` lies, may not with `force` either: all in it would be deleted.
    """
    if to.exists() and not to.is_dir():
        raise UsageError(f"--to {to} is a file", fix="give a folder")
    if to.is_dir() and any(to.iterdir()) and not force:
        raise UsageError(f"--to {to} is not empty", fix="choose another folder, or --force to replace it")
    if source.resolve().is_relative_to(to.resolve()):
        raise UsageError(f"--to {to} would replace {source} itself", fix="choose another folder")
    if (to / "run.json").is_file():
        raise UsageError(f"--to {to} is a run folder, with its checkpoints", fix="choose another folder")


def chosen_source(source: Path, *, merge_lora: bool) -> Path:
    """The folder to export for what the user named: it, or of a run the final model or the newest sound checkpoint.

    Raises UsageError for a folder that is nothing of the kind, FindingsError for a damaged checkpoint.
    """
    from dsrun.runs.manifest import MANIFEST, within

    if not source.is_dir():
        raise UsageError(f"there is no folder {source}", fix="give a run folder or a checkpoint")
    if (source / "run.json").is_file():
        return _of_run(source, merge_lora=merge_lora)
    if (source / MANIFEST).is_file():
        damage = _damage(source)
        if damage:
            more = f" and {len(damage) - 1} more" if len(damage) > 1 else ""
            raise FindingsError(
                f"{source} is damaged: {within(source, damage[0])}{more}",
                fix=f"export an older one; `dsrun export {source.parent}` takes the newest that verifies",
            )
    elif (source / "trainer_state.json").is_file():
        print_note(f"{source} has no manifest, as dsrun did not save it: it cannot be verified")
    elif not list(source.glob("*.safetensors")) and not list(source.glob("global_step*")):
        raise UsageError(f"{source} is neither a run folder nor a checkpoint", fix="give the --output of a dsrun train")
    return source


def _of_run(run: Path, *, merge_lora: bool) -> Path:
    from dsrun.runs.folder import RunFolder
    from dsrun.runs.manifest import within

    folder = RunFolder(run)
    if folder.finished.is_file():
        # A LoRA run leaves its adapter, and beside it the model that has it merged.
        finals = [folder.model] if merge_lora else [run / "adapter", folder.model]
        for final in finals:
            if final.is_dir():
                return final
    for _, checkpoint in folder.checkpoints():
        damage = _damage(checkpoint)
        if not damage:
            print_note(f"{run} has not finished: exporting {checkpoint.name}")
            return checkpoint
        print_note(f"passed over {checkpoint.name}: {within(checkpoint, damage[0])}")
    raise UsageError(f"{run} has no final model and no checkpoint that verifies", fix=f"dsrun checkpoint list {run}")


def _damage(checkpoint: Path) -> list[Finding]:
    from dsrun.runs.manifest import verify

    return verify(checkpoint)
