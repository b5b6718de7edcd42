"""ModelScope's cache on this machine: where a model or dataset is in it, and whether all of it is there.

An interrupted download leaves a folder that looks like a complete one. So dsrun writes a record beside the folder once
all files are there: a later start then needs no network, and takes what the first one took."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dsrun.errors import MissingError
from dsrun.recipe.mixture import specs_of
from dsrun.recipe.preflight.files import DEMO_MODELS, is_path
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.runs.records import write_json_atomic
from dsrun.system.files import parse_json

NAME = "modelscope"
VERSION = 1
WHOLE, SETTINGS = "*", "without weights"
"""The parts of a model; those of a dataset are its configurations."""
_BRANCHES = ("master", "main")
"""The names that the branch has that is taken where no revision is given."""


@dataclass(frozen=True, kw_only=True)
class ModelscopeAsset:
    """A model or dataset of ModelScope. `revision` None is its default branch; `part` says which files are needed."""

    kind: Literal["model", "dataset"]
    name: str
    revision: str | None = None
    part: str = WHOLE

    @property
    def key(self) -> str:
        """What its record is kept under."""
        return f"{self.part} @ {self.revision or _BRANCHES[0]}"


def assets_of(spec: TrainSpec) -> list[ModelscopeAsset]:
    """What the run takes from ModelScope."""
    if spec.hub != NAME:
        return []
    revision = None if spec.model_revision == "main" else spec.model_revision
    parts = {name: SETTINGS for name in (spec.tokenizer, spec.config_name) if name}
    if spec.model:
        parts[spec.model] = SETTINGS if spec.from_scratch else WHOLE
    if spec.teacher:
        parts[spec.teacher] = WHOLE
    models = [
        ModelscopeAsset(kind="model", name=name, revision=revision, part=part)
        for name, part in parts.items()
        if name not in DEMO_MODELS and not is_path(name)
    ]
    named = [(each.dataset, each.dataset_config or WHOLE) for each in specs_of(spec).values()]
    data = [ModelscopeAsset(kind="dataset", name=name, part=part) for name, part in named if name and not is_path(name)]
    return [*models, *dict.fromkeys(data)]


def local_name(name: str, kind: Literal["model", "dataset"], spec: TrainSpec, environ: Mapping[str, str]) -> str:
    """The folder that stands for `name` on this machine where --hub is ModelScope; any other name as it is.

    Raises MissingError where nothing of it has been downloaded."""
    asset = next((each for each in assets_of(spec) if (each.kind, each.name) == (kind, name)), None)
    if asset is None:
        return name
    folder = folder_of(asset, cache_of(environ, spec.cache_dir))
    if not folder.is_dir():
        raise MissingError(f"{kind} {name} is not in ModelScope's cache", fix="download it first: dsrun prepare")
    return str(folder)


def stored_name(name: str, spec: TrainSpec, environ: Mapping[str, str]) -> str:
    """The same for a model where it may be that nothing of it is here: then its name."""
    with suppress(MissingError):
        return local_name(name, "model", spec, environ)
    return name


def cache_of(environ: Mapping[str, str], chosen: str | None = None) -> Path:
    """The folder that the modelscope package keeps downloads in, by its own environment variable."""
    if chosen or environ.get("MODELSCOPE_CACHE"):
        return Path(chosen or environ["MODELSCOPE_CACHE"]).expanduser().absolute()
    return Path(environ.get("HOME") or "~").expanduser() / ".cache" / NAME


def folder_of(asset: ModelscopeAsset, cache: Path) -> Path:
    """Where its files are, or will be (modelscope_hub/_download.py: `_repo_cache_dir_path`, `_find_legacy_repo_dir`).

    Releases of modelscope before 1.38 had one folder for all revisions."""
    owner, _, short = asset.name.partition("/")
    for legacy in (cache, cache / "hub"):
        old = legacy / f"{asset.kind}s" / owner / short.replace(".", "___")
        if any(old.glob("*")):
            return old
    snapshots = cache / f"{asset.kind}s" / asset.name.replace("/", "--") / "snapshots"
    names = (asset.revision,) if asset.revision else _BRANCHES
    return next((snapshots / name for name in names if any((snapshots / name).glob("*"))), snapshots / names[0])


def complete(asset: ModelscopeAsset, cache: Path) -> Path | None:
    """The folder with all that is needed of `asset`, as its record says; None where anything is missing."""
    folder = folder_of(asset, cache)
    parts = _recorded(folder)
    # A model with its weights is one without, too.
    files = parts.get(asset.key) or parts.get(asset.key.replace(SETTINGS, WHOLE, 1))
    there = (folder / name for name in files or ())
    sizes = [each.stat().st_size if each.is_file() else None for each in there]
    return folder if files and sizes == [*files.values()] else None


def record(asset: ModelscopeAsset, folder: Path, files: Mapping[str, int]) -> None:
    """Note that these files, by size, are all that is needed of `asset`."""
    content = {"version": VERSION, "parts": {**_recorded(folder), asset.key: dict(files)}}
    write_json_atomic(_record_file(folder), content)


def unfinished(folder: Path) -> Iterator[Path]:
    """What an interrupted download has left in it."""
    return folder.rglob("*.incomplete")


def _record_file(folder: Path) -> Path:
    return folder.parent / f".dsrun-{folder.name}.json"


def _recorded(folder: Path) -> dict[str, dict[str, int]]:
    try:
        found = parse_json(_record_file(folder).read_text(encoding="utf-8"))
        parts = found["parts"] if found["version"] == VERSION else {}
        return {key: dict(files) for key, files in parts.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
