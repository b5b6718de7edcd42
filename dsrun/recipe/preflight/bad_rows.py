"""Rows that cannot be used, and how many of them --max-bad-rows lets be left out."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dsrun.errors import UsageError
from dsrun.recipe.preflight.data_files import LINE_END, data_format, read_head
from dsrun.recipe.preflight.layouts import LayoutHints, RowLayout, detect
from dsrun.recipe.preflight.splits import expanded
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.system.files import parse_json

REASONS: Final = {
    "unreadable": "that cannot be read",
    "columns": "without a column that they need",
    "invalid": "with an invalid value",
    "template": "that the chat template refuses",
    "no_source": "without a source",
    "no_target": "without a target",
    "empty": "without a text",
    "no_loss": "with nothing to learn within the limit",
}
"""Why rows are left out, by the names that run.json has for it."""
UNUSABLE: Final = ("unreadable", "columns", "invalid", "template")
"""The reasons that are faults, of which --max-bad-rows allows a share; rows of the others are simply left out."""

UNREADABLE: Final = "\0unreadable"
"""The only key of a row that could not be read: why."""


def refuse_bad(left: Mapping[str, list[Any]], rows: int, share: float, *, least: int = 1) -> None:
    """Raise UsageError where more than this share of the rows cannot be used; fewer rows than `least` count as so many.
    `left` has by reason the number of rows first, and last the first of them in words."""
    found = {reason: left[reason] for reason in UNUSABLE if reason in left}
    bad = sum(count for count, *_ in found.values())
    # 0.29 * 100 is less than 29.
    if bad <= share * max(rows, least) + 1e-6:
        return
    why = "; ".join(f"{count:,} {REASONS[reason]} (the first: {first})" for reason, (count, *_, first) in found.items())
    enough = math.ceil(1000 * bad / max(rows, least)) / 1000
    leave = f"leave such rows out: --max-bad-rows {enough:g}"
    raise UsageError(
        f"{bad:,} of {rows:,} rows cannot be used: {why}", fix="mend them" if bad >= rows else f"mend them, or {leave}"
    )


def check_rows(spec: TrainSpec) -> None:
    """Refuse splits of JSON lines of which too many cannot be used, as far as that shows without a model: where the
    heads of their files are all there is, or no row may be bad. What a plugin makes of rows is not known."""
    for names, limit in (
        (spec.train_file, spec.max_train_samples),
        (spec.validation_file, spec.max_eval_samples),
        (spec.test_file, spec.max_predict_samples),
    ):
        files = expanded("a data file", names)
        if files and not limit and not spec.plugin and all(data_format(file) == "json" for file in files):
            found = [_rows_of(file) for file in files]
            if all(complete for _, complete in found) or not spec.max_bad_rows:
                _check([pair for rows, _ in found for pair in rows], spec)


def _rows_of(path: Path) -> tuple[list[tuple[str, Any]], bool]:
    """The places and rows in the head of a file of JSON lines, a broken one as its error; and whether they are all."""
    head, complete = read_head(path)
    lines = [(n, line) for n, line in enumerate(LINE_END.split(head.decode("utf-8-sig", "replace")), 1) if line.strip()]
    rows: list[tuple[str, Any]] = []
    for number, line in lines if complete else lines[:-1]:
        try:
            rows.append((f"{path}, line {number}", parse_json(line)))
        except json.JSONDecodeError as error:
            rows.append((f"{path}, line {number}", error))
        if not isinstance(rows[0][1], dict):
            return [], False
    return rows, complete


def _check(rows: Sequence[tuple[str, Any]], spec: TrainSpec) -> None:
    left: dict[str, list[Any]] = {}
    layout = _pair_of([row for _, row in rows[:100] if isinstance(row, dict)], spec)
    for where, row in rows:
        bad = ("unreadable", f"not JSON ({row.msg})") if isinstance(row, json.JSONDecodeError) else None
        if layout and isinstance(row, dict):
            nested = [name for name in layout.used if not layout.keys and isinstance(row.get(name), dict | list)]
            bad = ("invalid", f"column {nested[0]!r} is not text") if nested else None
            bad = ("columns", lack) if (lack := layout.lack(row)) else bad
        if bad:
            left.setdefault(bad[0], [0, f"{where}: {bad[1]}"])[0] += 1
    refuse_bad(left, len(rows), spec.max_bad_rows)


def _pair_of(rows: Sequence[Mapping[str, Any]], spec: TrainSpec) -> RowLayout | None:
    """How rows are read, where that is the same for every kind of model: a source and a target."""
    sample: dict[str, Any] = {}
    for row in rows:
        sample |= {name: value for name, value in row.items() if sample.get(name) is None}
    hints = LayoutHints("causal-lm", spec.text_column, spec.summary_column, spec.source_lang, spec.target_lang)
    try:
        layout = detect([*sample], sample, hints, "")
    except UsageError:
        return None
    return layout if layout.kind == "pair" and spec.task != "dpo" else None
