"""Whether a run can learn from its local data, told from names and first rows; the training process reads the rest."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dsrun.errors import UsageError
from dsrun.models.families import SEQ2SEQ
from dsrun.models.folder import cached_snapshot, hub_cache
from dsrun.recipe.mixture import naming, specs_of
from dsrun.recipe.preflight import splits
from dsrun.recipe.preflight.bad_rows import refuse_bad
from dsrun.recipe.preflight.data_files import HEAD, data_format
from dsrun.recipe.preflight.files import DEMO_MODELS, is_path
from dsrun.recipe.preflight.layouts import LayoutHints, RowLayout, detect, no_template
from dsrun.recipe.recipe import Recipe, evaluation_is_requested, phases
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.recipe.rows.normal import normal_or_bad
from dsrun.recipe.rows.readers import check_columns, first_rows, sample_of
from dsrun.system.files import read_object

_COMPARED = 20
"""Files of a split whose columns are compared."""


def check_data(recipe: Recipe) -> None:
    """Raise UsageError where a split lacks data, or the first rows of local files cannot be learned. Data that are not
    files of this machine are left to the training process."""
    spec = recipe.spec
    tasks = tasks_of(spec)
    sets = specs_of(spec)
    found = {name: _files(each) for name, each in sets.items()}
    wanted = phases(recipe)
    for name, files in found.items():
        with naming(name):
            layouts: dict[Path, RowLayout | None] = {}
            for split, paths in (files or {}).items():
                if spec.plugin:  # It may make other rows of them.
                    first_rows(paths[0])
                elif split in wanted:
                    layouts[paths[0]] = _check_split(split, paths, sets[name], tasks, layouts)
    files = found.get("")
    if files is None or len(tasks) > 1:
        return
    required = evaluation_is_requested(recipe)
    is_tokens = "train" in files and data_format(files["train"][0]) in ("bin", "npy")
    kind = "seq2seq" if tasks[0] == "seq2seq" else "causal-lm"
    held = splits.held_out(spec, kind, files, required=required, is_tokens=is_tokens)
    for split in splits.SPLITS:
        is_needed = split != "validation" or (not held and (required or "train" not in wanted))
        if is_needed and split in wanted and split not in files:
            raise splits.missing(split, spec.dataset or str(next(iter(files.values()))[0]), files)


def tasks_of(spec: TrainSpec) -> tuple[str, ...]:
    """What the run learns: seq2seq, causal-lm or dpo; both of the first where only transformers can tell."""
    if spec.task not in ("auto", "distill"):
        return (spec.task,)
    if spec.model in DEMO_MODELS:
        return (DEMO_MODELS[spec.model],)
    name = spec.model or spec.config_name
    folder = None
    if name:
        folder = Path(name).expanduser() if is_path(name) else cached_snapshot(name, hub_cache(os.environ))
    config = read_object(folder / "config.json") if folder else {"model_type": spec.model_type}
    if not config.get("model_type") or "auto_map" in config:
        return ("seq2seq", "causal-lm")
    both = config.get("is_encoder_decoder", config["model_type"] in SEQ2SEQ)
    return ("seq2seq" if both else "causal-lm",)


def _files(spec: TrainSpec) -> dict[str, list[Path]] | None:
    """The files of each split; None where the data are not all files of this machine."""
    found: dict[str, list[Path]] = {}
    if spec.dataset:
        local = splits.dataset_files(spec.dataset, spec.dataset_config) if is_path(spec.dataset) else None
        if local is None:
            return None
        found = local[0]
    return found | splits.given_files(spec)


def _check_split(
    split: str, paths: Sequence[Path], spec: TrainSpec, tasks: Sequence[str], others: Mapping[Path, RowLayout | None]
) -> RowLayout | None:
    """The layout of the files of a split, where it can be told. Raises UsageError where they do not mix, or their
    columns or too many of their rows are of no use; `others` are the layouts of splits before it."""
    splits.format_of(paths)
    where = str(paths[0])
    rows = first_rows(paths[0])
    if not rows:
        return None
    columns, sample = sample_of(rows)
    layouts, refused = [], []
    for task in tasks:
        hints = LayoutHints.of(spec, task)
        try:
            layouts.append(detect(columns, sample, hints, where))
        except UsageError as error:
            refused.append(error)
    if not layouts:
        for other, layout in others.items():
            if lacking := [name for name in layout.needed if name not in columns] if layout else []:
                # Flags that name the columns hold for all splits.
                what = f"{where} lacks {' and '.join(lacking)}, which {other} has; columns found: {', '.join(columns)}"
                raise UsageError(what, fix="rename the columns: all splits have the same")
        raise refused[0]
    layout = layouts[0]
    if all((each.kind, each.used) == (layout.kind, layout.used) for each in layouts):
        check_columns(paths[:_COMPARED], [name for name in layout.read if name in columns])
        tokenizer = spec.tokenizer or spec.model or ""
        if layout.is_chat and not spec.chat_template and lacks_template(Path(tokenizer).expanduser()):
            raise no_template(where, tokenizer)
        is_limited = getattr(spec, splits.SAMPLE_LIMITS[split]) is not None
        _check_rows(paths, layout, spec.max_bad_rows, is_limited=is_limited)
    return layout


def _check_rows(paths: Sequence[Path], layout: RowLayout, share: float, *, is_limited: bool) -> None:
    """Raise UsageError where none of the first rows can be used, or too few of a split small enough to be read now."""
    is_whole = not is_limited and sum(path.stat().st_size for path in paths) <= HEAD
    read = [pair for path in paths for pair in first_rows(path, None)] if is_whole else first_rows(paths[0])
    made = [normal_or_bad(layout, where, row) for where, row in read]
    bad = [row for row in made if "bad" in row]
    if len(bad) == len(made) and share < 1:
        raise UsageError(bad[0]["bad"])
    left: dict[str, list[Any]] = {}
    for row in bad:
        left.setdefault(row["reason"], [0, row["bad"]])[0] += 1
    if is_whole or not (share or is_limited):
        refuse_bad(left, len(made), share)


def lacks_template(folder: Path) -> bool:
    """Whether a tokenizer is in this folder, without a chat template in any of the places where transformers looks."""
    config = folder / "tokenizer_config.json"
    if not config.is_file():
        return False
    files = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")
    return not read_object(config).get("chat_template") and not any((folder / name).exists() for name in files)
