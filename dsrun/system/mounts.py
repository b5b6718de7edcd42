"""On which file system a path is, by the text of /proc/self/mounts."""

import re
from dataclasses import dataclass
from pathlib import Path

from dsrun.datafiles import toml_beside

NETWORK = frozenset(toml_beside(__file__)["network"])


@dataclass(frozen=True, kw_only=True)
class MountPoint:
    """A mounted file system: where, its type ("ext4", "nfs4"), and its options ("rw", "noexec")."""

    point: Path
    kind: str
    options: tuple[str, ...] = ()

    @property
    def shared(self) -> bool:
        """Whether another machine serves it."""
        return self.kind in NETWORK


def mount_in(text: str, path: Path) -> MountPoint | None:
    """The file system that holds `path`, links followed, by the lines of /proc/self/mounts; None where none does."""
    real = path.resolve()
    found: MountPoint | None = None
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 4:
            continue
        # The kernel writes blanks, tabs, line breaks and backslashes as octal numbers (getmntent(3)).
        point = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[1]))
        # Of two at one place the later one is on top.
        if real.is_relative_to(point) and (found is None or len(point.parts) >= len(found.point.parts)):
            found = MountPoint(point=point, kind=fields[2], options=tuple(fields[3].split(",")))
    return found
