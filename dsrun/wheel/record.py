"""WHEEL.json: what went into a wheel, what came out, how long it took."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsrun.wheel.build.request import Request
    from dsrun.wheel.inspect.contents import WheelReport

RECORD_NAME = "WHEEL.json"
VERSION = 1
_CHUNK = 1 << 20


def make_record(
    request: Request,
    report: WheelReport,
    *,
    seconds: Mapping[str, float],
    by_build: Mapping[str, float],
    started: str,
) -> dict[str, Any]:
    """The contents of WHEEL.json. `seconds`: wall-clock seconds by phase, `by_build`: by compiling process (named
    after its operations); `started`: ISO 8601.
    """
    return {
        "version": VERSION,
        "wheel": report.path.name,
        "sha256": report.sha256,
        "size": report.size,
        "key": request.key,
        "inputs": request.as_dict(),
        "ops": {
            "asked": list(request.ops),
            "built": sorted(report.installed_ops),
        },
        "libraries": [
            {
                "path": library.path,
                "op": library.op,
                "size": library.size,
                "sass": list(library.sass),
                "ptx": list(library.ptx),
            }
            for library in report.libraries
        ],
        "started": started,
        "seconds": _rounded(seconds) | {"builds": _rounded(by_build)},
    }


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 1) for name, value in seconds.items()}


def write_record(folder: Path, record: Mapping[str, Any]) -> Path:
    """Write WHEEL.json into `folder`, which nobody reads yet."""
    path = folder / RECORD_NAME
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return path


def read_record(folder: Path) -> dict[str, Any] | None:
    """WHEEL.json of `folder`; None when there is none, or none that can be read as one of version 1."""
    try:
        found = json.loads((folder / RECORD_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("version") != VERSION:
        return None
    return found if all(isinstance(found.get(name), str) for name in ("wheel", "sha256")) else None


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def wrong_with(folder: Path, names: Sequence[str] = ()) -> str | None:
    """What is wrong with the wheel beside WHEEL.json in `folder`; None when its SHA-256 is the one recorded.

    `names`: files that must be there too.
    """
    record = read_record(folder)
    if record is None:
        return f"{RECORD_NAME} is missing or unreadable"
    wheel = folder / Path(record["wheel"]).name
    gone = [name for name in (wheel.name, *names) if not (folder / name).is_file()]
    if gone:
        return f"{gone[0]} is missing"
    try:
        same = sha256_of(wheel) == record["sha256"]
    except OSError as error:
        return f"{wheel.name} cannot be read: {error.strerror or error}"
    return None if same else f"{wheel.name} is not the file that was stored"
