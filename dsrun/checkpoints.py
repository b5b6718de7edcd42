"""What lies in checkpoints, read without torch: those of a run as a table, and the contents of one."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dsrun.datafiles import patterns_beside
from dsrun.errors import FindingsError, UsageError
from dsrun.models.headers import read_header
from dsrun.runs.commit import HIDDEN
from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import MANIFEST, STATE_FILE, missing_or_wrong_size, read_manifest, verify
from dsrun.runs.records import whole
from dsrun.system.files import read_object
from dsrun.system.terminal.display import utc_text

CheckpointState = Literal["complete", "damaged", "saving", "foreign"]

_KINDS = patterns_beside(__file__, table="kinds")


@dataclass(frozen=True, kw_only=True)
class CheckpointEntry:
    """One checkpoint: `size` in bytes, `time` as ISO 8601 in UTC, `zero_stage` and `world_size` where they are known.

    `state`: complete (all files there, in their sizes), damaged, saving (hidden: being written, or left by a run that
    died), or foreign (written by something else, without a manifest). `why`: what is wrong with a damaged one."""

    step: int
    path: Path
    state: CheckpointState
    size: int
    time: str
    zero_stage: int | None
    world_size: int | None
    best: bool
    why: str = ""


def entries(run: RunFolder) -> list[CheckpointEntry]:
    """The checkpoints of `run`, highest step first, with one that is being saved."""
    found = run.checkpoints()
    best = best_step([path for _, path in found])
    hidden = RunFolder(run.path / HIDDEN).checkpoints()
    return [
        *(_entry(step, path, best, hidden=True) for step, path in hidden),
        *(_entry(step, path, best) for step, path in found),
    ]


def entry(checkpoint: Path) -> CheckpointEntry:
    number = checkpoint.name.rpartition("-")[2]
    step = int(number) if number.isdigit() else whole(read_object(checkpoint / STATE_FILE).get("global_step")) or 0
    return _entry(step, checkpoint, best_step([path for _, path in RunFolder(checkpoint.parent).checkpoints()]))


def find(path: Path) -> RunFolder | Path:
    """What the user gave: a run folder, or a checkpoint's. Raises UsageError for anything else."""
    if (path / MANIFEST).is_file() or (path / STATE_FILE).is_file() or _looks_like_one(path):
        return path
    run = RunFolder(path)
    if run.run_json.is_file() or run.checkpoints() or (path / HIDDEN).is_dir():
        return run
    what = "contains no checkpoint" if path.is_dir() else "does not exist"
    raise UsageError(f"{path} {what}", fix="give the --output of a dsrun train, or a checkpoint-N in it")


def best_step(checkpoints: list[Path]) -> int | None:
    """The step of the best checkpoint, as the newest one whose state can be read has it."""
    for path in checkpoints:
        state = read_object(path / STATE_FILE)
        if state:
            best = state.get("best_global_step")
            return best if isinstance(best, int) and best else None
    return None


def _entry(step: int, path: Path, best: int | None, *, hidden: bool = False) -> CheckpointEntry:
    manifest = read_manifest(path)
    extra = manifest["extra"] if manifest else {}
    damage = missing_or_wrong_size(path)
    foreign = not manifest and not (path / MANIFEST).exists() and bool(read_object(path / STATE_FILE))
    state: CheckpointState = "saving" if hidden else "foreign" if foreign else "damaged" if damage else "complete"
    if manifest:
        size, time = sum(file["size"] for file in manifest["files"].values()), manifest["time"]
    else:
        size, time = _measured(path)
    return CheckpointEntry(
        step=step,
        path=path,
        state=state,
        size=size,
        time=time,
        zero_stage=whole(extra.get("zero_stage")),
        world_size=whole(extra.get("world_size")),
        best=step == best and not hidden,
        why=damage[0].named.message if state == "damaged" else "",
    )


def _measured(path: Path) -> tuple[int, str]:
    """Size and time of a folder without a manifest: the files' own, or the folder's where there are none yet. What
    vanishes meanwhile counts nothing."""
    size, newest = 0, path.stat().st_mtime if path.is_dir() else 0.0
    for file in path.rglob("*"):
        try:
            facts = file.stat()
        except OSError:
            continue
        if file.is_file():
            size += facts.st_size
            newest = max(newest, facts.st_mtime)
    return size, utc_text(newest)


def _looks_like_one(path: Path) -> bool:
    """Also a checkpoint so damaged that nothing but its name is left."""
    return path.is_dir() and path.name.startswith("checkpoint-") and path.name[len("checkpoint-") :].isdigit()


@dataclass(frozen=True, kw_only=True)
class CheckpointWeights:
    tensors: int
    parameters: int
    by_dtype: dict[str, int]
    empty: list[str]


def weights(folder: Path) -> CheckpointWeights | None:
    """The safetensors files of `folder` together; None where there are none. Raises UsageError for a damaged one."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return None
    by_dtype: dict[str, int] = {}
    empty: list[str] = []
    tensors = 0
    for file in files:
        for name, (dtype, shape) in _header(file).items():
            count = math.prod(shape)
            tensors += 1
            by_dtype[dtype] = by_dtype.get(dtype, 0) + count
            if not count:
                empty.append(name)
    return CheckpointWeights(tensors=tensors, parameters=sum(by_dtype.values()), by_dtype=by_dtype, empty=empty)


def _header(file: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    try:
        return read_header(file)
    except ValueError as error:
        raise UsageError(f"{file} is not a complete safetensors file") from error
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error


@dataclass(frozen=True, kw_only=True)
class CheckpointKind:
    name: str
    files: int
    size: int


@dataclass(frozen=True, kw_only=True)
class CheckpointContents:
    """All that is known of a checkpoint without loading it; `facts` are the manifest's, empty without one."""

    entry: CheckpointEntry
    kinds: list[CheckpointKind]
    architecture: str | None
    model_type: str | None
    weights: CheckpointWeights | None
    facts: dict[str, Any]


def contents(checkpoint: Path) -> CheckpointContents:
    """What `checkpoint` holds. Raises UsageError where the header of its weights is damaged."""
    manifest = read_manifest(checkpoint)
    config = read_object(checkpoint / "config.json")
    architectures = config.get("architectures")
    return CheckpointContents(
        entry=entry(checkpoint),
        kinds=_kinds(checkpoint),
        architecture=str(architectures[0]) if isinstance(architectures, list) and architectures else None,
        model_type=config.get("model_type"),
        weights=weights(checkpoint),
        facts=dict(manifest["extra"]) if manifest else {},
    )


def kind_of(name: str) -> str:
    return next((kind for kind, pattern in _KINDS.items() if pattern.fullmatch(name)), "other")


def _kinds(checkpoint: Path) -> list[CheckpointKind]:
    found: dict[str, list[int]] = {}
    for path in checkpoint.rglob("*"):
        if path.is_file() and path.name != MANIFEST:
            found.setdefault(kind_of(path.relative_to(checkpoint).as_posix()), []).append(path.stat().st_size)
    kinds = [CheckpointKind(name=name, files=len(sizes), size=sum(sizes)) for name, sizes in found.items()]
    return sorted(kinds, key=lambda kind: -kind.size)


def export_source(source: Path, *, merge_lora: bool, notify: Callable[[str], None]) -> Path:
    """The folder to export: `source`, or of a run the final model or the newest valid checkpoint.

    Raises UsageError for other folders, FindingsError for a damaged checkpoint."""
    if not source.is_dir():
        raise UsageError(f"there is no folder {source}", fix="give a run folder or a checkpoint")
    if RunFolder(source).run_json.is_file():
        return _run_source(source, merge_lora=merge_lora, notify=notify)
    if (source / MANIFEST).is_file():
        damage = verify(source)
        if damage:
            more = f" and {len(damage) - 1} more" if len(damage) > 1 else ""
            raise FindingsError(
                f"{source} is damaged: {damage[0]}{more}",
                fix=f"export an older one; `dsrun export {source.parent}` takes the newest valid one",
            )
    elif (source / STATE_FILE).is_file():
        notify(f"{source} was not saved by dsrun: without a manifest it cannot be verified")
    elif not list(source.glob("*.safetensors")) and not list(source.glob("global_step*")):
        raise UsageError(f"{source} is neither a run folder nor a checkpoint", fix="name the --output of a dsrun train")
    return source


def _run_source(run: Path, *, merge_lora: bool, notify: Callable[[str], None]) -> Path:
    folder = RunFolder(run)
    if folder.finished.is_file():
        # A LoRA run has both its adapter and the merged model.
        finals = [folder.model] if merge_lora else [folder.adapter, folder.model]
        for final in finals:
            if final.is_dir():
                return final
    for _, checkpoint in folder.checkpoints():
        damage = verify(checkpoint)
        if not damage:
            notify(f"{run} has not finished: exporting {checkpoint.name}")
            return checkpoint
        notify(f"skipped {checkpoint.name}: {damage[0]}")
    raise UsageError(f"{run} has no final model and no valid checkpoint", fix=f"dsrun checkpoint list {run}")
