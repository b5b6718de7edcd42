"""The run folder of a job, read from its script: what dsrun's own script exports, or what --output says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from dsrun.runs.folder import RunFolder
from dsrun.runs.records import iter_records
from dsrun.system import variables

_EXPORT = re.compile(rf"^\s*export {variables.OUTPUT}=(.*)$", re.MULTILINE)
_FLAG = re.compile(r"(?:^|\s)--output(?:[_-]dir)?(?:=|\s+)(\S.*)$", re.MULTILINE)
# One piece of a shell word: $'..', '..', "..", an escaped character, plain text.
_PIECE = re.compile(
    r"\$'(?P<ansi>(?:\\.|[^'\\])*)'|'(?P<single>[^']*)'|\"(?P<double>(?:\\.|[^\"\\])*)\"|\\(?P<escaped>.)"
    r"|(?P<plain>(?:\$\{[^}]*\}|\$(?!')|[^\s'\"\\;&|()<>$])+)"
)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|.)", re.DOTALL)
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r"}


def run_folder(script: str, *, work_dir: str, variables: Mapping[str, str]) -> str | None:
    """The absolute path of the job's run folder; None where the script does not say, or not in words we read.

    `variables` are those the job's shell has, as far as they are known; PWD is `work_dir`.
    """
    known = {**variables, "PWD": work_dir}
    body = "\n".join(line for line in script.splitlines() if not line.lstrip().startswith("#"))
    for pattern in (_EXPORT, _FLAG):
        for found in pattern.finditer(body):
            word = shell_word(found[1], known)
            if word:
                return str(PurePosixPath(work_dir) / word)
    return None


def job_variables(*, label: str, number: str, name: str) -> dict[str, str]:
    """What a job's shell has by its number: `label` is "6_1" for a task of an array, else the `number` itself.

    "job" is dsrun's own name for the label in the script it renders.
    """
    array, _, task = label.partition("_")
    own = {"SLURM_ARRAY_JOB_ID": array, "SLURM_ARRAY_TASK_ID": task} if task else {}
    return {"SLURM_JOB_ID": number, "SLURM_JOBID": number, "SLURM_JOB_NAME": name, "job": label, **own}


def shell_word(text: str, variables: Mapping[str, str]) -> str | None:
    """The first shell word of `text` with its variables filled in; None when one of them is not known.

    Other expansions (commands, arithmetic, ${x:-y}) are not done: None for these too.
    """
    word, position = "", 0
    while piece := _PIECE.match(text, position):
        position = piece.end()
        part = _piece(piece, variables)
        if part is None:
            return None
        word += part
    return word


def _piece(piece: re.Match[str], variables: Mapping[str, str]) -> str | None:
    if piece["ansi"] is not None:
        return _ESCAPE.sub(_ansi, piece["ansi"])
    if piece["single"] is not None:
        return piece["single"]
    if piece["escaped"] is not None:
        return piece["escaped"]
    text = piece["double"] if piece["double"] is not None else piece["plain"]
    names = [found[1] or found[2] for found in _VARIABLE.finditer(text)]
    if (
        any(name not in variables for name in names)
        or "$" in _VARIABLE.sub("", text).replace("\\$", "")
        or "`" in text
    ):
        return None
    filled = _VARIABLE.sub(lambda found: variables[found[1] or found[2]], text)
    return re.sub(r'\\([\\"$`])', r"\1", filled) if piece["double"] is not None else filled


def _ansi(found: re.Match[str]) -> str:
    code = found[1]
    return chr(int(code[1:], 16)) if len(code) > 1 else _CONTROLS.get(code, code)


def checkpoint_seconds(folder: Path) -> float | None:
    """Seconds of the slowest checkpoint that the run in `folder` has written; None where it has written none."""
    times = [
        float(record["seconds"])
        for record in iter_records(RunFolder(folder).events)
        if record.get("kind") == "checkpoint_end" and isinstance(record.get("seconds"), (int, float))
    ]
    return max(times, default=None)
