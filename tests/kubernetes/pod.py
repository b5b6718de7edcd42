"""A pod of a manifest as processes of this machine: what kubelet makes of its template, in namespaces of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests import reaper
from tests.slurm.machine import SYSTEM_PATH, UNSHARE

SETUP = Path(__file__).with_name("pod.sh")
INIT_PATIENCE_S = 60
_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")
_UNITS = {"Ki": "k", "Mi": "m", "Gi": "g"}


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` replaced by a variable, `$$` by a dollar; a name that is not known stays as it is."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[1] is None else variables.get(found[1], found[0])

    return _REFERENCE.sub(value, text)


@dataclass(frozen=True)
class Wiring:
    """Where the pod is plugged in: its address, the network's gateway, the switch, and the cable's name outside."""

    address: str
    gateway: str
    switch: str
    cable: str


@dataclass(frozen=True)
class Image:
    """What the container has of its image: variables, folders of this machine that are hidden, and those in them that
    are there nevertheless."""

    variables: Mapping[str, str]
    hidden: tuple[Path, ...]
    kept: tuple[Path, ...]


@dataclass
class Pod:
    """One pod of index `index`; `labels` are those of the template and the Job controller's."""

    template: Mapping[str, Any]
    index: int
    job: str
    labels: Mapping[str, str]
    folder: Path
    wiring: Wiring
    image: Image
    claims: Mapping[str, Path]
    disrupted: bool = False
    """The condition DisruptionTarget."""
    deadline: float | None = None
    killed: bool = False
    process: subprocess.Popen[bytes] = field(init=False)

    @property
    def host_name(self) -> str:
        """As the Job controller names the pods of an Indexed Job."""
        return f"{self.job}-{self.index}"

    @property
    def spec(self) -> dict[str, Any]:
        return dict(self.template["spec"])

    @property
    def container(self) -> dict[str, Any]:
        (only,) = self.spec["containers"]
        return dict(only)

    @property
    def log(self) -> str:
        file = self.folder / "log"
        return file.read_text(errors="replace") if file.exists() else ""

    @property
    def exit_code(self) -> int | None:
        """The container's, as kubelet shows it; None while it runs."""
        code = self.process.poll()
        # unshare cannot end by SIGKILL as its child has, and says 1.
        return code if code is None else 128 + signal.SIGKILL if self.killed else code

    def start(self) -> None:
        """Init containers one after the other, then the container; a failed one is the pod's end."""
        (self.folder / "root").mkdir(parents=True)
        (self.folder / "nsswitch.conf").write_text("hosts: files\npasswd: files\ngroup: files\n")
        (self.folder / "hosts").touch()
        self.write_hosts("")
        for container in (*self.spec.get("initContainers", ()), self.container):
            assert container.get("restartPolicy") is None, "sidecars are not run here"
            self.process = self._started(container)
            if container != self.container and self.process.wait(INIT_PATIENCE_S):
                return

    def _started(self, container: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        variables = self._variables(container)
        words = [expanded(word, variables) for part in ("command", "args") for word in container.get(part, ())]
        environment = [f"{name}={value}" for name, value in variables.items()]
        folder = container.get("workingDir", "/")
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [
                    "bash", "-c", UNSHARE, "pod", "bash", str(SETUP), *self._user(container),
                    "env", "-i", f"--chdir={folder}", "--default-signal", *environment, *words,
                ],
                cwd="/",
                env={
                    **{name: os.environ[name] for name in (reaper.VARIABLE,) if name in os.environ},
                    "PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "FOLDER": str(self.folder), "HOST_NAME": self.host_name,
                    "ADDRESS": self.wiring.address, "GATEWAY": self.wiring.gateway, "SWITCH": self.wiring.switch,
                    "CABLE": self.wiring.cable, "MOUNTS": "\n".join(self._mounts(container)),
                    "HIDDEN": "\n".join(map(str, self.image.hidden)), "KEPT": "\n".join(map(str, self.image.kept)),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def write_hosts(self, service: str) -> None:
        """The file by which names are resolved in there: what kubelet writes, and then the answers of the DNS.

        In place, because the file is mounted; and never empty, because it is read meanwhile.
        """
        long = f"{self.host_name}.{self.spec.get('subdomain', '')}.default.svc.cluster.local"
        text = f"127.0.0.1 localhost\n{self.wiring.address} {long} {self.host_name}\n{service}"
        with (self.folder / "hosts").open("r+") as file:
            file.write(text)
            file.truncate()

    def end(self, *, disrupted: bool = False) -> None:
        """What an eviction or a deletion does: SIGTERM, and SIGKILL after the grace period."""
        self.disrupted = self.disrupted or disrupted
        if self.deadline is None:
            self.deadline = time.monotonic() + self.spec["terminationGracePeriodSeconds"]
            self._signal(signal.SIGTERM)

    def kill_when_late(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            self.kill()

    def kill(self) -> None:
        """All its processes die at once, as when the kernel ends its first one."""
        self.killed = self.exit_code is None
        self._signal(signal.SIGKILL)

    def halt(self) -> None:
        """Stop the ranks, so that what comes next meets them in mid-training."""
        self._signal_ranks(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal_ranks(signal.SIGCONT)

    def inside(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in there, as `kubectl exec` does."""
        into = ["nsenter", f"--target={self._first()}", "--all", "--root", "--wd=/"]
        return subprocess.run([*into, *words], capture_output=True, text=True, check=False)

    def _first(self) -> int | None:
        """The number, out here, of the container's first process; None when it is gone."""
        pid = self.process.pid
        with suppress(OSError, ValueError):
            return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
        return None

    def _signal(self, signum: int) -> None:
        if first := self._first():
            with suppress(ProcessLookupError):
                os.kill(first, signum)

    def _signal_ranks(self, signum: int) -> None:
        with suppress(psutil.NoSuchProcess):
            for each in psutil.Process(self.process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if each.name().startswith("rank-"):
                        each.send_signal(signum)

    def _variables(self, container: Mapping[str, Any]) -> dict[str, str]:
        """The image's, kubelet's and the Job controller's own, and those of the template."""
        found = {
            **self.image.variables, "KUBERNETES_SERVICE_HOST": self.wiring.gateway, "KUBERNETES_SERVICE_PORT": "443",
            "HOSTNAME": self.host_name, "JOB_COMPLETION_INDEX": str(self.index),
        }  # fmt: skip
        for each in container.get("env", ()):
            found[each["name"]] = expanded(each["value"], found) if "value" in each else self._field(each["valueFrom"])
        return found

    def _field(self, source: Mapping[str, Any]) -> str:
        path = source["fieldRef"]["fieldPath"]
        label = re.fullmatch(r"metadata\.labels\['(.+)'\]", path)
        assert label, path
        return self.labels.get(label[1], "")

    def _user(self, container: Mapping[str, Any]) -> list[str]:
        """How the container's runtime becomes the user, and gives up what the manifest says."""
        pod, own = self.spec.get("securityContext", {}), container.get("securityContext", {})
        words = ["setpriv", f"--reuid={pod.get('runAsUser', 0)}", f"--regid={pod.get('runAsGroup', 0)}"]
        words.append(f"--groups={pod['fsGroup']}" if "fsGroup" in pod else "--clear-groups")
        if "ALL" in own.get("capabilities", {}).get("drop", ()):
            words += ["--bounding-set=-all", "--inh-caps=-all"]
        return words if own.get("allowPrivilegeEscalation", True) else [*words, "--no-new-privs"]

    def _mounts(self, container: Mapping[str, Any]) -> list[str]:
        """Each volume's folder, or the size of its memory, and where the container has it."""
        volumes = {volume["name"]: volume for volume in self.spec.get("volumes", ())}
        found = []
        for mount in container.get("volumeMounts", ()):
            volume = volumes[mount["name"]]
            if "persistentVolumeClaim" in volume:
                source = self.claims[volume["persistentVolumeClaim"]["claimName"]]
            elif volume["emptyDir"].get("medium") == "Memory":
                size = volume["emptyDir"]["sizeLimit"]
                found.append(f"tmpfs:{size[:-2]}{_UNITS[size[-2:]]} {mount['mountPath']}")
                continue
            else:
                source = self.folder / mount["name"]
                source.mkdir(exist_ok=True)
            self._give_to_group(source)
            found.append(f"{source} {mount['mountPath']}")
        return found

    def _give_to_group(self, folder: Path) -> None:
        group = self.spec.get("securityContext", {}).get("fsGroup")
        if group is not None and folder.stat().st_gid != group:
            os.chown(folder, -1, group)
            folder.chmod(0o2775)
