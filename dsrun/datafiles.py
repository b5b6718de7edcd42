"""Where the data folders shipped beside the package (`ds_configs`, `slurm`, `build`) are."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from dsrun.errors import MissingError

_PACKAGE = Path(__file__).resolve().parent


def data_folder(name: str) -> Path:
    """The shipped folder `name`: inside an installed wheel, else in the checkout of an editable install."""
    for candidate in (_PACKAGE / "_data" / name, _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    raise MissingError(
        f"dsrun was installed without its folder {name!r}", fix="reinstall: pip install --force-reinstall dsrun"
    )


def read_toml(folder: str, name: str) -> dict[str, Any]:
    """The content of the shipped file `name` in data folder `folder`."""
    return tomllib.loads((data_folder(folder) / name).read_text(encoding="utf-8"))
