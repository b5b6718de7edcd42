"""Make a demo: an ordinary model folder without weights, and ordinary data files.

A folder is filled as a hidden sibling and renamed, so a folder that has the mark of a finished build
is complete.  The mark also holds a key over everything the content follows from; a dsrun or a Python that could write
something else finds another key, and replaces the folder with all that is in it."""

import hashlib
import json
import platform
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dsrun import __version__
from dsrun.demo import models, tokenizers
from dsrun.demo.corpus import CorpusSplits, number_phrases, python_docs
from dsrun.errors import UsageError
from dsrun.system.files import parse_json, replace_folder

DEMO_NAMES: Final = tuple(models.TASKS)
MARK: Final = "dsrun-demo.json"


@dataclass(frozen=True, kw_only=True)
class DemoPaths:
    """A demo for `task`, ``seq2seq`` or ``causal-lm``.

    `model` is a folder for AutoConfig and AutoTokenizer, without weights; None for a demo of data only. The languages
    are the keys of each row's ``translation``; None for causal-lm, whose rows are ``{"text": ...}``."""

    task: str
    model: Path | None
    train_file: Path
    validation_file: Path
    test_file: Path
    source_lang: str | None = None
    target_lang: str | None = None


def materialise(name: str, folder: Path) -> DemoPaths:
    """Make the demo ``name`` in ``folder/model`` and ``folder/data``, or reuse it if it is there already.

    Raises UsageError for an unknown name, or where ``folder`` holds something that dsrun did not make; MissingError for
    demo-llama without the package `tokenizers`, or a Python without its library."""
    if name not in models.TASKS:
        raise UsageError(f"there is no demo {name!r}", fix=f"one of: {', '.join(DEMO_NAMES)}")
    _build(name, folder, lambda target: _fill(name, target))
    return _paths(models.TASKS[name], folder, model=folder / "model")


def data_only(task: str, folder: Path) -> DemoPaths:
    """Make only a demo's data files in ``folder/data``, for a model that came without a data set: number phrases for
    seq2seq, Python documentation for causal-lm. Raises as `materialise` does."""
    if task not in models.TASKS.values():
        raise UsageError(f"there is no demo data for task {task!r}", fix="one of: seq2seq, causal-lm")
    make = number_phrases if task == "seq2seq" else python_docs
    _build(f"data-{task}", folder, lambda target: _write_data(target, make()))
    return _paths(task, folder, model=None)


def _paths(task: str, folder: Path, *, model: Path | None) -> DemoPaths:
    data = folder / "data"
    fields: dict[str, Any] = {f"{split}_file": data / f"{split}.jsonl" for split in ("train", "validation", "test")}
    if task == "seq2seq":
        fields |= {"source_lang": "en", "target_lang": "ro"}
    return DemoPaths(task=task, model=model, **fields)


def _fill(name: str, folder: Path) -> None:
    splits = number_phrases() if name == models.DEMO_T5 else python_docs()
    _write_data(folder, splits)
    (folder / "model").mkdir()
    # The training split alone: what the tokenizer has seen is not held out either.
    texts = (row.get("text", "") for row in splits.train)
    for file, content in tokenizers.model_files(name, texts).items():
        (folder / "model" / file).write_text(content, encoding="utf-8", newline="\n")


def _write_data(folder: Path, splits: CorpusSplits) -> None:
    (folder / "data").mkdir()
    for split, rows in vars(splits).items():
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / "data" / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8", newline="\n")


def _build(name: str, folder: Path, fill: Callable[[Path], None]) -> None:
    """Bring ``folder`` to the state that ``fill`` writes, unless its mark shows that it is there already."""
    from filelock import FileLock  # thirty modules, and the names of the demos are asked for by every command

    folder.parent.mkdir(parents=True, exist_ok=True)
    key = _key()
    # Several processes of one job may come here at once: one builds, the others wait and reuse.
    with FileLock(folder.parent / f".{folder.name}.lock"):
        mark = _read_mark(folder)
        if mark is not None and (mark["name"], mark["key"]) == (name, key) and _is_complete(folder, mark):
            return
        if mark is None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"{folder} holds something that is not a demo", fix="give another folder")
        prefix = f".{folder.name}.tmp-"
        # What a killed build left behind; no other build can be running while we hold the lock.
        for leftover in folder.parent.glob(f"{prefix}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
        try:
            fresh = work / "new"
            fresh.mkdir()
            fill(fresh)
            files = sorted(str(file.relative_to(fresh)) for file in fresh.rglob("*") if file.is_file())
            new_mark = {"name": name, "key": key, "files": files}
            (fresh / MARK).write_text(json.dumps(new_mark) + "\n", encoding="utf-8")
            replace_folder(fresh, folder, aside=work / "old")
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _read_mark(folder: Path) -> Mapping[str, Any] | None:
    """The content of the folder's mark, or None where there is none that dsrun wrote."""
    try:
        mark = parse_json((folder / MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return mark if isinstance(mark, dict) and {"name", "key"} <= mark.keys() else None


def _is_complete(folder: Path, mark: Mapping[str, Any]) -> bool:
    """Whether all files are there; one emptied by a crash of the machine counts as missing."""
    files = [folder / file for file in mark.get("files", ())]
    return bool(files) and all(file.is_file() and file.stat().st_size > 0 for file in files)


def _key() -> str:
    """A hash over what a demo's content follows from: dsrun, this package's source, and the Python."""
    digest = hashlib.sha256(f"{__version__} {platform.python_version()}".encode())
    for source in sorted(models.FOLDER.rglob("*.*")):
        if source.is_file() and "__pycache__" not in source.parts:
            digest.update(f"\0{source.relative_to(models.FOLDER)}\0".encode() + source.read_bytes())
    return digest.hexdigest()
