"""What this folder and this machine offer a first run: models, data files and what their columns mean."""

import csv
import gzip
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any

from dsrun.errors import UsageError
from dsrun.models.families import family_of, other_models
from dsrun.models.folder import cached_snapshot, has_weights, hub_cache
from dsrun.recipe.preflight.data_files import (
    FORMATS,
    check_data_file,
    data_format,
    first_row,
    is_gzip,
    natural_order,
    suffix_of,
)
from dsrun.recipe.preflight.layouts import LayoutHints, RowLayout, detect
from dsrun.system.files import read_object
from dsrun.system.terminal.display import size_text

SHOWN = 8
"""Models, and data files, that are offered."""
READ = 50
"""Files whose heads are read in search of data."""
TASKS = ("seq2seq", "causal-lm", "dpo")
# Token files need no columns, and a .bin or .npy beside a model is seldom data.
_TABLES = frozenset(FORMATS) - {".bin", ".npy"}
_HELD_OUT = re.compile(r"(^|[^a-z])(valid|validation|val|dev|eval|test)([^a-z]|$)")
_NOT_DATA = re.compile(r"(requirements|readme|licen[cs]e|constraints|cmakelists|notice|todo).*\.txt", re.IGNORECASE)
_SAMPLE_ROWS = 100
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
        return bool(_HELD_OUT.search(self.path.name.lower()))

    @property
    def is_validation(self) -> bool:
        """Whether its name says that it is for validation; a test file is for the end."""
        found = _HELD_OUT.search(self.path.name.lower())
        return found is not None and found[2] != "test"

    def layout(self, task: str | None) -> RowLayout | None:
        """What its columns mean for a task, or for the first that they suit; None where they suit none."""
        for each in TASKS if task is None else (task,):
            with suppress(UsageError):
                return detect(list(self.row), self.row, hints_for(each), str(self.path))
        return None

    def description(self, task: str | None) -> str:
        """Its size and columns, in a few words."""
        found = self.layout(task)
        columns = ", ".join(list(self.row)[:SHOWN])
        meaning = found.name if found else f"columns {columns}" if columns else ""
        return ", ".join(filter(None, (size_text(self.size), meaning)))


def hints_for(task: str, text_column: str | None = None, summary_column: str | None = None) -> LayoutHints:
    """What `detect` needs to know of a task."""
    return LayoutHints(
        task="causal-lm" if task == "dpo" else task,
        preference=task == "dpo",
        text_column=text_column,
        summary_column=summary_column,
    )


def read_sample(path: Path) -> dict[str, Any]:
    """A row with the first value of each column in the head of a data file; {} for token files, and for Parquet where
    pyarrow is not installed. Raises UsageError for a file that is not what its suffix says."""
    check_data_file(path)
    kind = data_format(path)
    if kind == "json":
        return first_row(path)
    if kind == "txt":
        return {"text": ""}
    if kind in ("csv", "tsv"):
        return _table_sample(path, "\t" if kind == "tsv" else ",")
    return _parquet_sample(path) if kind == "parquet" else {}


def _table_sample(path: Path, delimiter: str) -> dict[str, Any]:
    row: dict[str, Any] = {}
    with gzip.open(path) if is_gzip(path) else path.open("rb") as packed:
        lines = TextIOWrapper(packed, encoding="utf-8-sig", errors="replace", newline="")
        with suppress(csv.Error):  # a broken line deep in the file is the training's to report
            for each in islice(csv.DictReader(lines, delimiter=delimiter), _SAMPLE_ROWS):
                row = {name: row.get(name) or value for name, value in each.items() if name is not None}
                if all(row.values()):
                    break
    return row


def _parquet_sample(path: Path) -> dict[str, Any]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        return {}
    try:
        with ParquetFile(path) as file:
            rows = next(file.iter_batches(batch_size=1), None)
            found: list[dict[str, Any]] = [] if rows is None else rows.to_pylist()
    except (ArrowException, OSError) as error:
        raise UsageError(f"{path} is not a valid Parquet file: {str(error).splitlines()[0]}") from None
    return found[0] if found else {}


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
    named = [each for place in places for each in _entries(place) if _may_be_data(each)]
    found = []
    for path in sorted(named, key=lambda each: "train" not in each.name.lower())[:READ]:
        with suppress(UsageError, OSError):
            if path.is_file():
                found.append(DataFile(path=path, row=read_sample(path), size=path.stat().st_size))
    # A JSON file of other columns is seldom data.
    able = [each for each in found if each.layout(None) or suffix_of(each.path) != ".json"]
    return sorted(able, key=_likelihood)


def _may_be_data(path: Path) -> bool:
    return suffix_of(path) in _TABLES and path.name[0] != "." and not _NOT_DATA.fullmatch(path.name)


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
