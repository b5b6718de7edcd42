"""What this folder and this machine offer a first run: models, data files and what their columns mean."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsrun.errors import UsageError
from dsrun.models.families import family_of, other_models
from dsrun.models.folder import cached_snapshot, has_weights, hub_cache
from dsrun.recipe.preflight.data_files import FORMATS, is_gzip, suffix_of
from dsrun.recipe.preflight.layouts import LayoutHints, RowLayout, detect
from dsrun.recipe.preflight.splits import NO_DATA, natural_order, split_of
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.recipe.rows.readers import first_rows, sample_of
from dsrun.system.files import read_object
from dsrun.system.terminal.display import size_text

SHOWN = 8
"""Models, and data files, that are offered."""
READ = 50
"""Files whose heads are read in search of data."""
TASKS = ("seq2seq", "causal-lm", "dpo")
# Token files need no columns, and a .bin or .npy beside a model is seldom data.
_TABLES = frozenset(FORMATS) - {".bin", ".npy"}
_HEAD = 1 << 16


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """A data file that can be read; `row` is a sample of it, {} where its columns are not known before it is read."""

    path: Path
    row: Mapping[str, Any]
    size: int

    @property
    def is_held_out(self) -> bool:
        """Whether its name says that it is for validation or a test."""
        return split_of(self.path.name) in ("validation", "test")

    def layout(self, task: str | None) -> RowLayout | None:
        """What its columns mean for a task, or for the first that they suit; None where they suit none."""
        for each in TASKS if task is None else (task,):
            with suppress(UsageError):
                return detect(list(self.row), self.row, LayoutHints.of(TrainSpec(), each), str(self.path))
        return None

    def description(self, task: str | None) -> str:
        """Its size and columns, in a few words."""
        found = self.layout(task)
        columns = ", ".join(list(self.row)[:SHOWN])
        meaning = found.name if found else f"columns {columns}" if columns else ""
        return ", ".join(filter(None, (size_text(self.size), meaning)))


def read_sample(path: Path) -> dict[str, Any]:
    """A row with the first value of each column in the head of a data file; {} for token files, and where `first_rows`
    reads none. Raises UsageError for a file that is not what its suffix says."""
    return {"text": ""} if suffix_of(path) == ".txt" else sample_of(first_rows(path))[1]


def row_count(path: Path) -> int | None:
    """About how many rows a file of lines has, from the lines of its head; None for other files."""
    if is_gzip(path) or suffix_of(path) not in (".jsonl", ".ndjson", ".csv", ".tsv", ".txt"):
        return None
    with path.open("rb") as file:
        head = file.read(_HEAD)
    lines = head.count(b"\n")
    return round(path.stat().st_size * lines / len(head)) if lines else None


def data_files(folder: Path) -> list[DataFile]:
    """The data files in a folder and in those below it called data or dataset, the likeliest training data first."""
    places = [folder, *(folder / name for name in ("data", "dataset", "datasets"))]
    able = [each for place in places for each in _entries(place) if suffix_of(each) in _TABLES]
    named = [each for each in able if each.name[0] != "." and not NO_DATA.fullmatch(each.name)]
    found = []
    for path in sorted(named, key=lambda each: "train" not in each.name.lower())[:READ]:
        with suppress(UsageError, OSError):
            if path.is_file():
                found.append(DataFile(path=path, row=read_sample(path), size=path.stat().st_size))
    # A JSON file of other columns is seldom data.
    return sorted((each for each in found if each.layout(None) or suffix_of(each.path) != ".json"), key=_likelihood)


def _likelihood(file: DataFile) -> tuple[Any, ...]:
    named = "train" in file.path.name.lower()
    return (file.is_held_out, not named, file.layout(None) is None, suffix_of(file.path) == ".txt", -file.size)


def _entries(folder: Path) -> list[Path]:
    """What is in a folder, as paths from here; nothing where it cannot be read, and no name that cannot be shown."""
    with suppress(OSError):
        named = (each for each in folder.iterdir() if each.name.isprintable())
        return sorted((Path(os.path.relpath(each)) for each in named), key=natural_order)
    return []


def model_folders(folder: Path) -> Iterator[tuple[str, str]]:
    """Folders with a model that can be trained, here and one level below, as (path, description)."""
    below = [each for each in _entries(folder) if each.is_dir() and not each.name.startswith(".")]
    for path in (*below, *(inner for each in below if each.name in ("models", "model") for inner in _entries(each))):
        kind = _trainable(path)
        if kind:
            yield f"./{path}", f"{kind}, a folder here"


def cached_models(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Hub models whose files are on this machine, as (name, description), those used last first."""
    cache = hub_cache(environ)
    with suppress(OSError):
        for each in sorted(cache.glob("models--*"), key=lambda path: -path.stat().st_mtime):
            name = each.name.removeprefix("models--").replace("--", "/")
            snapshot = cached_snapshot(name, cache)
            if snapshot and (kind := _trainable(snapshot)):
                yield name, f"{kind}, in the Hub's cache"


def _trainable(folder: Path) -> str | None:
    """The model type of a folder with a text model and its weights; None for any other folder."""
    if not (folder / "config.json").is_file() or not has_weights(folder):
        return None
    config = read_object(folder / "config.json")
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind in other_models() or family_of(kind).reads_both_ways:
        return None
    return kind
