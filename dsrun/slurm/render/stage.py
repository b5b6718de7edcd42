"""--stage: an environment on every node's own disk instead of one shared file system."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from dsrun.errors import UsageError

Kind = Literal["wheel", "tar", "folder"]
TARS = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What is copied (`path`), what it is called below `local_dir`."""

    kind: Kind
    path: str
    file: str
    local_dir: str

    @property
    def has_python(self) -> bool:
        """Whether what is staged brings the interpreter."""
        return self.kind != "wheel"


def stage(path: str, local_dir: str) -> Stage:
    """How `path` is staged. A folder is an environment; raises UsageError for a file that is neither wheel nor tar."""
    name = PurePosixPath(path).name
    if name.endswith(".whl"):
        return Stage(kind="wheel", path=path, file=name, local_dir=local_dir)
    if name.endswith(TARS):
        return Stage(kind="tar", path=path, file=name, local_dir=local_dir)
    if "." in name.lstrip(".") and name.rpartition(".")[2] in ("zip", "sif", "sqsh", "py", "txt", "sh"):
        raise UsageError(f"--stage {path}: neither a wheel nor a tar file nor an environment's folder")
    return Stage(kind="folder", path=path, file="staged.tar", local_dir=local_dir)
