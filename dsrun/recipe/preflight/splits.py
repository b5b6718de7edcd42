"""Which files are the training, validation and test data."""

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from dsrun.datafiles import toml_beside
from dsrun.errors import DsrunError, UsageError
from dsrun.recipe.preflight.data_files import FORMATS, data_format
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.refusals import Refusals
from dsrun.system.files import is_there

SAMPLE_LIMITS = {"train": "max_train_samples", "validation": "max_eval_samples", "test": "max_predict_samples"}
"""The options that limit the rows of each split."""
SPLITS = tuple(SAMPLE_LIMITS)

NAMES: dict[str, list[str]] = toml_beside(__file__)
"""What files, folders and splits of the Hub are called that are for each."""
# Files found beside data on the Hub, in saved models and in projects.
NO_DATA = re.compile(
    r"dataset_infos?\.json|state\.json|dataset_dict\.json|(requirements|readme|licen[cs]e|constraints|cmakelists|notice|todo).*\.txt",
    re.IGNORECASE,
)
_KNOWN = f"known: {', '.join(FORMATS)}"
refused = Refusals(__file__, "refusals.toml").error


def expanded(flag: str, names: Sequence[str]) -> list[Path]:
    """The files that a flag names, with folders and patterns such as `shards/*.jsonl` expanded, those of one in natural
    order: part-2 before part-10. Raises UsageError for a pattern that matches nothing, a folder without data or
    with that of other splits, and a file that is named twice."""
    found: list[Path] = []
    for name in names:
        from glob import has_magic  # many runs name no file

        path = Path(name).expanduser()
        matches = [path]
        if has_magic(name) and not path.exists():
            base = Path(path.anchor)
            matches = sorted(base.glob(str(path.relative_to(base))), key=natural_order)
            if not matches:
                raise UsageError(f"{flag} {name} matches no file", fix=f"ls {path.parent} shows what is there")
        elif is_there(path) and path.is_dir():
            matches = _in_folder(flag, path)
        twice = next((each for each in matches if each in found), None)
        if twice:
            raise UsageError(f"{flag} names {twice} twice", fix="name each file once")
        found += matches
    return found


def given_files(spec: TrainSpec) -> dict[str, list[Path]]:
    """The files that flags name, by split."""
    given = {split: expanded(f"--{split}-file", getattr(spec, f"{split}_file")) for split in SPLITS}
    return {split: files for split, files in given.items() if files}


def format_of(paths: Sequence[Path]) -> str:
    """The format of the files of a split, `table` for rows of several. Raises UsageError for those that do not mix."""
    formats = {data_format(path) for path in paths}
    if len(formats) > 1 and formats - {"json", "csv", "tsv", "parquet"}:
        raise refused("files.mixed", formats=" and ".join(sorted(formats)), first=paths[0])
    return formats.pop() if len(formats) == 1 else "table"


def natural_order(path: Path) -> list[tuple[int, str]]:
    """A key that sorts numbers within names by value."""
    return [(int(piece), "") if piece.isdigit() else (-1, piece) for piece in re.split(r"(\d+)", str(path))]


def _in_folder(flag: str, folder: Path) -> list[Path]:
    """The data files in a folder, none of which may be of another split than the flag's."""
    if _is_saved(folder):
        raise UsageError(f"{flag} {folder} is a saved dataset", fix=f"--dataset {folder}")
    found = _data_in(folder)
    if not found:
        raise UsageError(f"{flag} {folder} contains no data files", fix=_KNOWN)
    own = flag.removeprefix("--").removesuffix("-file")
    other = next((path for path, split in found.items() if split not in (own, None)), None)
    if other and len(set(found.values())) > 1:
        mine = " ".join(str(path) for path, split in found.items() if split in (own, None))
        what = f"{flag} {folder} contains {other.relative_to(folder)}, which is not for that by its name"
        raise UsageError(what, fix=f"--dataset {folder}" if "train" in found.values() else f"{flag} {mine}")
    return list(found)


def _data_in(folder: Path) -> dict[Path, str | None]:
    """The data files in a folder and below it, each with the split that its name or that of a folder above it says."""
    visible = (file for file in folder.rglob("[!.]*") if not any(p[0] == "." for p in file.relative_to(folder).parts))
    files = sorted((file for file in visible if file.is_file() and _is_data(file)), key=natural_order)
    return {file: split_of(file.name) or split_of(str(file.relative_to(folder).parent)) for file in files}


def _is_data(path: Path) -> bool:
    try:
        data_format(path)
    except UsageError:
        return False
    return not NO_DATA.fullmatch(path.name)


def dataset_files(name: str, config: str | None) -> tuple[dict[str, list[Path]], list[str]] | None:
    """The data files of a local dataset by split, and what is worth knowing about them; None for a folder that
    `save_to_disk` has written. Raises UsageError where there are none."""
    path = Path(name).expanduser()
    if path.is_file():
        if config:
            raise refused("files.config_of_file", config=config, name=name)
        return {"train": [path]}, []
    folder = path / (config or "")
    if not folder.is_dir():
        wrong = f"--dataset-config {config}: {path} has no folder of that name"
        raise UsageError(wrong if path.is_dir() else f"--dataset {name} does not exist")
    if _is_saved(folder):
        return None
    found: dict[str, list[Path]] = {}
    for file, split in _data_in(folder).items():
        found.setdefault(split or "", []).append(file)
    if not found:
        raise UsageError(f"{folder} contains no data files", fix=f"{_KNOWN}, and save_to_disk folders")
    unnamed = found.pop("", [])
    # As in `datasets`: without any split in the names everything is training data.
    if not found or not unnamed:
        return found or {"train": unnamed}, []
    more = f" and {len(unnamed) - 1:,} more" if len(unnamed) > 1 else ""
    return found, [f"{folder}: {unnamed[0].relative_to(folder)}{more} left out: other files have a split in their name"]


def _is_saved(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))


def split_of(name: str) -> str | None:
    """The split that a file, folder or Hub split is named after: `valid.json` and `dev-00000-of-2` are validation."""
    parts = set(re.split(r"[^a-z]+", name.lower()))
    return next((split for split, names in NAMES.items() if parts & set(names)), None)


def held_out(spec: TrainSpec, task: str, splits: Collection[str], *, required: bool, is_tokens: bool) -> int:
    """Percentage of the training data that stands in for missing validation data; 0 when none is needed. Also when this
    run does not evaluate, so that a later evaluation does not see what was trained on."""
    if task != "causal-lm" or "validation" in splits or "train" not in splits:
        return 0
    percent = spec.validation_split_percentage
    if not 0 <= percent < 100:
        raise UsageError(f"--validation-split-percentage {percent}: must be from 0 to 99")
    if percent and spec.streaming and not is_tokens:
        if required:
            raise UsageError("a stream has no end to hold validation data out of", fix="--validation-file FILE")
        return 0
    return percent


def missing(split: str, name: str, found: Collection[str]) -> DsrunError:
    """The error for a split without data; `name` is that of the data, "" where there are none."""
    listed = ", ".join(found) or "no data at all"
    return refused("files.no_split", split=split, place=name and f" in {name}", found=listed)
