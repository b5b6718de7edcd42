"""File systems of layers, and what starts a process in one as a container would: own mounts and process 1."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HOSTNAME = "container"
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_STREAMS = {"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}


@dataclass(frozen=True)
class Root:
    """A layer above others, the first of `below` being the next one; none of them is mounted outside of a process."""

    folder: Path
    below: tuple[Path, ...] = ()

    @property
    def layer(self) -> Path:
        """What this root adds to those below it."""
        return self.folder / "layer"

    @classmethod
    def above(cls, folder: Path, base: Root | Path) -> Root:
        """A new, empty layer in `folder` above a root, or above a folder with a whole system."""
        root = cls(folder, (base,) if isinstance(base, Path) else (base.layer, *base.below))
        for name in ("layer", "work", "mounted"):
            (folder / name).mkdir(parents=True)
        return root

    def find(self, path: str) -> Path:
        """Where a file of this root lies. Raises FileNotFoundError."""
        for layer in (self.layer, *self.below):
            if (found := layer / path.lstrip("/")).exists():
                return found
        raise FileNotFoundError(path)

    @property
    def size(self) -> int:
        """Bytes of all layers on the disk."""
        argv = ["du", "--summarize", "--total", "--block-size=1", self.layer, *self.below]
        return int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()[-1].split()[0])

    def command(
        self,
        words: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str = "/",
        become: Sequence[str] = (),
        mounts: Iterable[tuple[Path, str]] = (),
        read_only: bool = False,
    ) -> list[str]:
        """The command line that runs `words` in this root with no environment but `env`.

        Their process is number 1. `become` are flags of setpriv: user, groups, capabilities. `mounts` are folders and
        files of this machine, each with its place in the root; a place below /run leaves nothing behind.
        """
        mounted = self.folder / "mounted"
        if read_only:
            options = f"lowerdir={':'.join(map(str, (self.layer, *self.below)))}"
        else:
            lower = ":".join(map(str, self.below))
            options = f"lowerdir={lower},upperdir={self.layer},workdir={self.folder / 'work'}"
        lines = [
            f"mount -t overlay overlay -o {shlex.quote(options)} {mounted}",
            f"cd {mounted}",
            f"hostname {HOSTNAME}",
            "mount -t proc proc proc",
            "mount --rbind --make-rslave /sys sys",
            "for folder in dev run; do mount -t tmpfs -o mode=1777 tmpfs $folder; done",
            *(f"touch dev/{name} && mount --bind /dev/{name} dev/{name}" for name in _DEVICES),
            *(f"ln -s /proc/self/{target} dev/{name}" for name, target in _STREAMS.items()),
            "mkdir -m 1777 dev/shm && mount -t tmpfs -o mode=1777 tmpfs dev/shm",
            *(_bind(source, place.lstrip("/")) for source, place in mounts),
        ]
        inside = ["setpriv", *become, "env", "-i", f"--chdir={cwd}", *(f"{k}={v}" for k, v in env.items()), *words]
        lines.append(f"exec chroot . {shlex.join(inside)}")
        script = "set -e\n" + "\n".join(lines)
        return ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "bash", "-c", script]


def _bind(source: Path, place: str) -> str:
    make = f"mkdir -p {place}" if source.is_dir() else f"mkdir -p $(dirname {place}) && touch {place}"
    return f"[ -e {place} ] || {{ {make}; }}; mount --bind {shlex.quote(str(source))} {place}"
