"""`dsrun build-wheel` as a user starts it, with a store and caches of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Builder:
    """`dsrun build-wheel` with a cache and a temporary folder of its own."""

    def __init__(self, folder: Path, cache: Path | None = None) -> None:
        self.folder = folder
        self.cache = cache or folder / "cache"
        self.scratch = folder / "tmp"
        self.scratch.mkdir(parents=True, exist_ok=True)

    def environ(self, **env: str) -> dict[str, str]:
        """The environment it is started in."""
        own = {"DSRUN_CACHE": str(self.cache), "TMPDIR": str(self.scratch), "CUDA_VISIBLE_DEVICES": ""}
        return {**os.environ, **own, "PYTHONPATH": str(ROOT), **env}

    def start(self, *args: object, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "dsrun", "build-wheel", "--arch", "cpu", *map(str, args)],
            env=self.environ(**env),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *args: object, **env: str) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        process = self.start(*args, **env)
        out, err = process.communicate()
        return process.returncode, out, err

    def wheel(self, *args: object, **env: str) -> Path:
        code, out, err = self.run(*args, **env)
        assert code == 0, err
        assert out.count("\n") == 1
        return Path(self.folder, out.strip())

    @property
    def stored(self) -> list[str]:
        """Names in the store but the locks."""
        root = self.cache / "wheels"
        return sorted(path.name for path in root.iterdir() if path.suffix != ".lock") if root.is_dir() else []


def small(tree, *more):
    """The flags for a wheel of the tiny operation alone."""
    return ("--ops", "cpu_lion", "--deepspeed", tree, *more)
