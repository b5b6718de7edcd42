"""A machine of the test cluster: namespaces with a host name, address, process 1 and local disk of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import reaper

BOOT = Path(__file__).with_name("machine.sh")
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
# Opens the host's network namespace as file handle 3 before leaving it.
UNSHARE = 'exec 3</proc/self/ns/net; exec unshare --net --uts --mount --ipc --pid --fork --kill-child --mount-proc "$@"'


@dataclass(frozen=True)
class Machine:
    """One machine, whether it is switched on or not.

    `root` is the cluster's folder. `private` are folders of which each machine has its own, and `shared` those within
    them that stay the same everywhere. `cable` names the host's end of its network link.
    """

    root: Path
    name: str
    role: str
    address: str
    gateway: str
    switch: str
    cable: str
    private: tuple[Path, ...] = ()
    shared: tuple[Path, ...] = ()

    @property
    def mark(self) -> str:
        """What stands in the environment of the machine's first process, and nowhere else."""
        return f"TEST_MACHINE={self.root}/{self.name}"

    @property
    def up(self) -> bool:
        """Whether it is on and its services were started."""
        return (self.root / "run" / f"{self.name}.up").exists() and self.process is not None

    @property
    def process(self) -> int | None:
        """The process, outside, that holds the machine; None when it is off."""
        try:
            pid = int((self.root / "run" / f"{self.name}.pid").read_text())
            while not (environment := Path(f"/proc/{pid}/environ").read_bytes()):
                # It has none for a moment while it becomes another program, and none for good when it is dead.
                if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                    return None
                time.sleep(0.001)
        except (OSError, ValueError):
            return None
        # A number alone may long belong to another process.
        return pid if self.mark.encode() in environment.split(b"\0") else None

    def power_on(self) -> None:
        """Start it; returns at once. What boot prints is in log/NAME.boot."""
        if self.process:
            return
        (self.root / "run" / f"{self.name}.up").unlink(missing_ok=True)
        # The kernel takes the cable of a machine that has just died away only after a while.
        subprocess.run(["ip", "link", "del", self.cable], stderr=subprocess.DEVNULL, check=False)
        mark, _, value = self.mark.partition("=")
        held = subprocess.Popen(
            ["bash", "-c", UNSHARE, "machine", "bash", str(BOOT)],
            cwd="/",
            env={
                # By its session's mark the reaper finds it, should the session be killed.
                **{name: os.environ[name] for name in (reaper.VARIABLE,) if name in os.environ},
                "PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "HOME": "/root", mark: value, "ROOT": str(self.root),
                "SLURM_CONF": f"{self.root}/etc/slurm.conf", "NAME": self.name, "ROLE": self.role,
                "ADDRESS": self.address, "GATEWAY": self.gateway, "SWITCH": self.switch, "CABLE": self.cable,
                "OWN_FOLDERS": "\n".join(map(str, self.private)), "KEPT_FOLDERS": "\n".join(map(str, self.shared)),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        (self.root / "run" / f"{self.name}.pid").write_text(str(held.pid))

    def power_off(self) -> None:
        """The plug is pulled: everything on it dies at once, without a signal that it could handle."""
        while pid := self.process:
            first = _children(pid)
            for victim in first or [pid]:
                try:
                    os.kill(victim, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.01)
        _reap(self.root / "run" / f"{self.name}.pid")

    def inside(
        self,
        words: Sequence[str],
        *,
        user: int = 0,
        cwd: Path | str = "/",
        env: Mapping[str, str] | None = None,
    ) -> list[str]:
        """The command that runs `words` on this machine as `user` (a uid), with no environment but PATH and `env`."""
        pid = self.process
        children = _children(pid) if pid else []
        if not children:
            raise RuntimeError(f"{self.name} is off")
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
        variables = {"PATH": SYSTEM_PATH, **(env or {})}
        return [
            "nsenter", "--target", str(children[0]), "--net", "--uts", "--mount", "--root", "--ipc", "--pid",
            # A shell ignores Ctrl-C for what it starts in the background, `make test-slurm &` for one.
            *become, "env", "-i", "--default-signal=INT", f"--chdir={cwd}",
            *(f"{name}={value}" for name, value in variables.items()), *words,
        ]  # fmt: skip


def private_folders(shared: Sequence[Path]) -> tuple[Path, ...]:
    """Folders of which each machine gets its own: /tmp, and such as a user could not pass to reach what is shared."""
    closed = {
        folder for path in shared for folder in path.parents if folder != Path("/") and not folder.stat().st_mode & 1
    }
    return outermost([Path("/tmp"), *closed])


def outermost(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Without those that lie within another."""
    every = set(paths)
    return tuple(sorted(path for path in every if not any(parent in every for parent in path.parents)))


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _reap(file: Path) -> None:
    """Collect the dead process where this one started it; elsewhere init does."""
    with contextlib.suppress(OSError, ValueError):
        os.waitpid(int(file.read_text()), 0)
    file.unlink(missing_ok=True)
