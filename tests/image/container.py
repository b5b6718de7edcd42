"""A process in an image as Kubernetes starts it: without privileges, its volumes writable by its group, no init."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from tests.image.build import Image
from tests.image.root import HOSTNAME, Root

FS_GROUP = 2000


class Container:
    """Where processes of an image run, with a volume at /runs and one at /tmp, both kept in `folder`."""

    def __init__(self, image: Image, folder: Path) -> None:
        self._image = image
        self.runs = folder / "runs"
        self._tmp = folder / "tmp"
        self._hosts = folder / "hosts"
        self.runs.mkdir()
        os.chown(self.runs, 0, FS_GROUP)
        self.runs.chmod(0o2770)
        self._tmp.mkdir()
        self._tmp.chmod(0o1777)
        self._hosts.write_text(f"127.0.0.1 localhost\n127.0.1.1 {HOSTNAME}\n")
        self._root = Root.above(folder / "root", image.root)
        # An engine makes what it mounts on, also where the root is read-only.
        for name in ("runs", "etc"):
            (self._root.layer / name).mkdir()
        (self._root.layer / "etc/hosts").touch()

    def start(
        self,
        *args: str,
        user: int = 1000,
        program: str | None = None,
        env: Mapping[str, str] | None = None,
        read_only: bool = False,
        **popen: Any,
    ) -> subprocess.Popen[str]:
        """Start the entry point, or `program` in its place, with `args`; `read_only`: it can write to volumes alone."""
        become = [f"--reuid={user}", f"--regid={user}", f"--groups={FS_GROUP}", "--no-new-privs"]
        become += ["--bounding-set=-all", "--inh-caps=-all"]
        argv = self._root.command(
            [*([program] if program else self._image.entrypoint), *args],
            env={**self._image.env, **(env or {})},
            cwd=self._image.workdir,
            become=become,
            mounts=[(self.runs, "/runs"), (self._tmp, "/tmp"), (self._hosts, "/etc/hosts")],
            read_only=read_only,
        )
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **popen}
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, text=True, **streams)

    def run(self, *args: str, **options: Any) -> tuple[int, str]:
        """Exit code and output of what `start` starts."""
        with self.start(*args, **options) as process:
            output = process.communicate()[0]
        return process.returncode, output


def first_process(started: subprocess.Popen[str]) -> psutil.Process:
    """Process 1 of a container, as the machine around it numbers it."""
    while not (children := psutil.Process(started.pid).children()):
        assert started.poll() is None
        time.sleep(0.05)
    return children[0]
