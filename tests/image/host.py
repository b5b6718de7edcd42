"""How this machine reaches its packages, for processes in another root: pip, apt, proxies, certificates."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

_PLACE = "/run/host"
_VARIABLES = re.compile(r"(https?|no|all)_proxy|SSL_CERT_FILE|REQUESTS_CA_BUNDLE", re.IGNORECASE)
# Not what depends on packages that only this machine has, such as the programs of apt's hooks.
_APT = re.compile(r"Acquire::(Check-|Retries|https?::|ForceIPv)")
_LOCAL = re.compile(r"(?<![\w/:])(?:file://)?(/[^\s]+)")


@dataclass
class Host:
    """Variables of the environment, and files and folders of this machine with their places in the root."""

    env: dict[str, str] = field(default_factory=dict)
    mounts: list[tuple[Path, str]] = field(default_factory=list)

    def take(self, name: str, value: str) -> None:
        """Set a variable. Every path in it that exists here appears below /run, and is renamed to that."""
        self.env[name] = _LOCAL.sub(self._placed, value)

    def _placed(self, match: re.Match[str]) -> str:
        path = Path(match[1])
        # An index refers to files beside its folder.
        source = path.parent if match[0].startswith("file://") else path
        if not source.exists():
            return match[0]
        mount = (source, f"{_PLACE}{source}")
        if mount not in self.mounts:
            self.mounts.append(mount)
        return match[0].replace(match[1], f"{_PLACE}{path}")


def this_machine(folder: Path) -> Host:
    """What is configured here; files made for it are written to `folder`."""
    host = Host()
    for name, value in {**_pip(), **os.environ}.items():
        if name.startswith("PIP_") or _VARIABLES.fullmatch(name):
            host.take(name, value)
    # Where the packages of earlier builds are; a build-arg says that pip may keep them.
    cache = _pip_says("cache", "dir").strip()
    Path(cache).mkdir(parents=True, exist_ok=True)
    host.take("PIP_CACHE_DIR", cache)
    settings = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
    (folder / "apt.conf").write_text("".join(f"{line}\n" for line in settings.splitlines() if _APT.match(line)))
    host.take("APT_CONFIG", str(folder / "apt.conf"))
    host.mounts.append((Path("/etc/resolv.conf"), "/etc/resolv.conf"))
    return host


def _pip() -> dict[str, str]:
    """The settings of pip's files, as the variables that mean the same."""
    lines = re.findall(r"^(?!:env:)\w+\.([\w-]+)='(.*)'$", _pip_says("config", "list"), re.MULTILINE)
    return {f"PIP_{key.upper().replace('-', '_')}": value.replace("\\n", " ") for key, value in lines}


def _pip_says(*words: str) -> str:
    argv = [sys.executable, "-m", "pip", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout
