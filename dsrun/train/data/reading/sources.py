"""Where rows come from: files, folders of them, saved datasets and the Hub, and a plugin that makes others of them."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
from datasets.exceptions import DatasetNotFoundError
from huggingface_hub import constants

from dsrun.errors import DsrunError, UsageError, one_line
from dsrun.hub.modelscope_cache import local_name
from dsrun.hub.reach import refused, unreachable
from dsrun.recipe.preflight.bad_rows import UNREADABLE
from dsrun.recipe.preflight.files import is_path
from dsrun.recipe.preflight.splits import NAMES, SPLITS, dataset_files, format_of, given_files
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.recipe.rows.readers import START, RawRow, RawRows, ReadPosition, read_marked, sample_of
from dsrun.system.files import sha256_of
from dsrun.train.base.plan import LoadedPlugin
from dsrun.train.base.refusals import refusal
from dsrun.train.model.load import HTTP_ERROR

SourcePosition = tuple[int, ReadPosition]
"""Where reading the files of a split goes on: the number of a file, and a mark in it."""

# Beyond this, hashing every byte takes longer than it protects; size, time and both ends must do.
HASHED_WHOLE = 1 << 30


@dataclass(frozen=True)
class FileSource:
    """Local data files of one split. `format` is one of the values of `FORMATS`, or `table` for rows of several."""

    paths: tuple[Path, ...]
    format: str
    keep_linebreaks: bool = True

    @property
    def where(self) -> str:
        return str(self.paths[0]) if len(self.paths) == 1 else f"{self.paths[0].parent} ({len(self.paths)} files)"

    def identity(self) -> str:
        """A digest of the content: the same after a copy or a touch, another after any edit."""
        digest = hashlib.sha256(f"{self.format} {self.keep_linebreaks}".encode())
        for path in self.paths:
            digest.update(_digest(path).encode())
        return digest.hexdigest()

    def outline(self) -> str:
        """A digest of the sizes and both ends of the files, for data too large to be read for it."""
        digest = hashlib.sha256(self.format.encode())
        for path in self.paths:
            digest.update(_ends(path))
        return digest.hexdigest()

    def rows(self) -> RawRows:
        return ((where, row) for _, where, row in self.rows_from((0, START)))

    def rows_from(self, place: SourcePosition) -> Iterator[tuple[SourcePosition, str, RawRow]]:
        """The rows from `place` on, each with the place after it; what lies before is not read."""
        first, start = place
        for number, path in enumerate(self.paths[first:], first):
            for mark, where, row in read_marked(path, keep_linebreaks=self.keep_linebreaks, start=start):
                yield (number, mark), where, row
            start = START

    def sample(self) -> tuple[list[str], RawRow]:
        return sample_of(self.rows())


@dataclass(frozen=True)
class TableSource:
    """A split of a saved dataset or of the Hub: `table` is a datasets.Dataset or IterableDataset."""

    table: Any
    where: str

    @classmethod
    def of(cls, table: Any, where: str) -> "TableSource":
        """Of rows as they are stored: not as tensors, and media not decoded, which takes packages of its own."""
        media = {name: each for name, each in (table.features or {}).items() if getattr(each, "decode", False)}
        for name, each in media.items():
            table = table.cast_column(name, replace(each, decode=False))
        return cls(table.with_format(None), where)

    def identity(self) -> str:
        """The fingerprint `datasets` keeps: that of the prepared files on this machine."""
        # Private, but what `datasets` names its own cache files by.
        return str(self.table._fingerprint)

    def rows(self) -> RawRows:
        for number, row in enumerate(self.table, 1):
            yield f"{self.where}, row {number}", row

    def sample(self) -> tuple[list[str], RawRow]:
        found, sample = sample_of(self.rows())
        return list(self.table.column_names or found), sample


DataSource = FileSource | TableSource


@dataclass(frozen=True)
class PluginSource:
    """A split whose rows go through `rows` of a plugin, before anything is known of their columns."""

    source: DataSource
    plugin: LoadedPlugin
    split: str

    @property
    def where(self) -> str:
        return self.source.where

    def identity(self) -> str:
        """Another digest where the data is another, or the plugin's source or version."""
        return f"{self.source.identity()} {self.plugin.fingerprint} {self.split}"

    def outline(self) -> str | None:
        """The same for data too large to be read for it; None where that is not known."""
        if not isinstance(self.source, FileSource):
            return None
        return f"{self.source.outline()} {self.plugin.fingerprint}"

    def rows(self) -> RawRows:
        return ((where, made) for where, row in self.source.rows() for made in self.made(where, row))

    def made(self, where: str, row: RawRow) -> list[RawRow]:
        """What the plugin makes of one row of the source."""
        return [row] if UNREADABLE in row else self.plugin.rows(row, self.split, where)

    def sample(self) -> tuple[list[str], RawRow]:
        columns, sample = sample_of(self.rows())
        if not sample:
            raise UsageError(f"rows() of --plugin {self.plugin.file.named} leaves no row of {self.where}")
        return columns, sample


AnySource = DataSource | PluginSource


@dataclass(frozen=True)
class DataSources:
    """What there is: a name for the header, the splits that were found, and what is worth knowing about them."""

    name: str
    splits: dict[str, DataSource]
    notices: list[str]


def find_sources(spec: TrainSpec) -> DataSources:
    splits: dict[str, DataSource] = {}
    notices: list[str] = []
    name = ""
    if spec.dataset:
        name = spec.dataset + (f"/{spec.dataset_config}" if spec.dataset_config else "")
        splits = _dataset(spec, notices)
    if spec.train_file and "train" in splits:
        raise refusal("source.two", dataset=spec.dataset, file=spec.train_file[0])
    for split, files in given_files(spec).items():
        splits[split] = file_source(files, keep_linebreaks=spec.keep_linebreaks)
        name = name or (files[0].name if len(files) == 1 else f"{files[0].name} and {len(files) - 1} more")
    train, held = (set(getattr(splits.get(split), "paths", ())) for split in ("train", "validation"))
    if train & held:
        notices.append(f"{min(train & held)} is training and validation data: the model is evaluated on what it learns")
    return DataSources(name, splits, notices)


def file_source(paths: list[Path], *, keep_linebreaks: bool = True) -> FileSource:
    for path in paths:
        if not path.is_file():
            raise UsageError(f"data file {path} does not exist")
    return FileSource(tuple(paths), format_of(paths), keep_linebreaks)


def _dataset(spec: TrainSpec, notices: list[str]) -> dict[str, DataSource]:
    name = local_name(str(spec.dataset), "dataset", spec, os.environ)
    if not is_path(name):
        return _hub(spec)
    local = dataset_files(name, spec.dataset_config)
    if local is None:
        return _saved(Path(name).expanduser() / (spec.dataset_config or ""))
    found, more = local
    notices += more
    return {split: file_source(paths, keep_linebreaks=spec.keep_linebreaks) for split, paths in found.items()}


def _saved(path: Path) -> dict[str, DataSource]:
    try:
        loaded = datasets.load_from_disk(str(path))
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"{path} cannot be loaded as a saved dataset: {one_line(error)}") from error
    if isinstance(loaded, datasets.Dataset):
        loaded = {"train": loaded}
    return _tables(loaded, str(path))


def _hub(spec: TrainSpec) -> dict[str, DataSource]:
    name = str(spec.dataset)
    try:
        how = {"token": spec.token, "cache_dir": spec.cache_dir, "streaming": spec.streaming}
        loaded = datasets.load_dataset(name, spec.dataset_config, **how)
    except (OSError, ValueError, RuntimeError, HTTP_ERROR) as error:
        raise _hub_error(name, error) from error
    return _tables(loaded, name)


def _hub_error(name: str, error: Exception) -> DsrunError:
    reason = one_line(error)
    answered = refused(f"dataset {name}", error, os.environ, instead="--train-file FILE")
    if answered:
        return answered
    if isinstance(error, DatasetNotFoundError):
        return refusal("source.gated" if "gated" in reason else "source.unknown", name=name)
    if isinstance(error, ValueError | RuntimeError):
        return UsageError(f"dataset {name}: {reason}", fix="--dataset-config" if "onfig" in reason else None)
    return unreachable(f"dataset {name}", reason, instead="--train-file FILE", offline=constants.HF_HUB_OFFLINE)


def _tables(loaded: Any, name: str) -> dict[str, DataSource]:
    splits: dict[str, DataSource] = {}
    for key, table in loaded.items():
        split = next((split for split in SPLITS if str(key) in NAMES[split]), None)
        if split and split not in splits:
            splits[split] = TableSource.of(table, f"{name} ({key})")
    if not splits:
        raise UsageError(f"{name} has no split named train, validation or test; found: {', '.join(map(str, loaded))}")
    return splits


def _digest(path: Path) -> str:
    stat = path.stat()
    if stat.st_size > HASHED_WHOLE:
        return hashlib.sha256(f"{stat.st_mtime_ns} ".encode() + _ends(path)).hexdigest()
    return sha256_of(path)


def _ends(path: Path) -> bytes:
    """A digest of a file's size, its first and its last MiB."""
    size = path.stat().st_size
    digest = hashlib.sha256(f"{size} ".encode())
    with path.open("rb") as file:
        for offset in (0, max(0, size - (1 << 20))):
            file.seek(offset)
            digest.update(file.read(1 << 20))
    return digest.digest()
