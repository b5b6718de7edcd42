"""A stand-in for a Kubernetes cluster: the Job controller's side of an Indexed Job, a network, and DNS by hosts files.

Nothing outside its folder and one network bridge is touched. Needs root. The controller acts while somebody waits
(`Job.until`), and follows the manifest alone: restarts, podFailurePolicy and limits are what it says.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.pod import Image, Pod, Wiring
from tests.slurm.cluster import CHECKOUT
from tests.slurm.configuration import Names
from tests.slurm.machine import SYSTEM_PATH, outermost, private_folders

PATIENCE_S = 300
POLL_S = 0.1
_FIRST_ADDRESS, _GATEWAY = 10, 254


class Cluster:
    """Claims, which are folders of `root`, and a network on which every pod gets an address of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        names = Names.of(root)
        self._switch, self._cable, self._network = names.switch, names.cable, names.network
        self._pods = 0
        shared = (CHECKOUT, Path(sys.prefix), Path(sys.base_prefix))
        hidden = private_folders(shared)
        kept = outermost(path for path in shared if any(path.is_relative_to(own) for own in hidden))
        variables = {
            "PATH": f"{Path(sys.executable).parent}:{SYSTEM_PATH}", "PYTHONPATH": str(CHECKOUT), "LANG": "C.UTF-8",
            "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        self.image = Image(variables, hidden, kept)

    def up(self) -> None:
        lines = [f"link add {self._switch} type bridge", f"link set {self._switch} up"]
        lines += [f"addr add {self._network}.{_GATEWAY}/24 dev {self._switch}", ""]
        subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)

    def down(self) -> None:
        subprocess.run(["ip", "link", "del", self._switch], stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(self.root)

    def claim(self, name: str) -> Path:
        """The folder behind a claim."""
        folder = self.root / "claims" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def wiring(self) -> tuple[str, Wiring]:
        """A name for the folder of a new pod, and where that is plugged in."""
        self._pods += 1
        address = f"{self._network}.{_FIRST_ADDRESS + self._pods}"
        gateway = f"{self._network}.{_GATEWAY}"
        return f"pod-{self._pods}", Wiring(address, gateway, self._switch, f"{self._cable}-{self._pods}")

    def apply(self, manifest: str) -> Job:
        """What `kubectl apply` and the controllers do with the manifest of a job."""
        objects = {each["kind"]: each for each in yaml.safe_load_all(manifest)}
        assert objects.keys() <= {"Service", "Job"}
        return Job(self, objects["Job"], objects.get("Service"))


class Job:
    """An Indexed Job. `condition` is Complete or Failed once it is over."""

    def __init__(self, cluster: Cluster, manifest: Mapping[str, Any], service: Mapping[str, Any] | None) -> None:
        self.name: str = manifest["metadata"]["name"]
        self.condition: str | None = None
        self.failures: Counter[int] = Counter()
        """How many failures of each index count."""
        self.ended: list[Pod] = []
        """In the order in which the controller saw it."""
        self.pods: dict[int, Pod] = {}
        self._cluster = cluster
        self._spec = manifest["spec"]
        assert self._spec["completionMode"] == "Indexed"
        assert self._spec["podReplacementPolicy"] == "Failed"
        self._service = service["metadata"]["name"] if service else None
        self._succeeded: set[int] = set()
        self._failed: set[int] = set()
        own = {"job-name": self.name, "controller-uid": str(uuid.uuid4())}
        self._labels = dict(self._spec["template"]["metadata"].get("labels", {}))
        self._labels |= {f"batch.kubernetes.io/{key}": value for key, value in own.items()}
        if service:
            assert service["spec"]["selector"].items() <= self._labels.items()

    def until(self, holds: Callable[[], object], what: str) -> None:
        """Wait until `holds()`, and do the controller's and kubelet's work meanwhile."""
        end = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < end, f"never {what}\n{self.story()}"
            self._sync()
            time.sleep(POLL_S)

    def wait_for(self, condition: str) -> None:
        """Wait for the end. Fails the test when it is another one."""
        self.until(lambda: self.condition, "over")
        assert self.condition == condition, self.story()

    def create(self, index: int) -> Pod:
        """A new pod of that index: the controller's, or a test's that wants one more."""
        folder, wiring = self._cluster.wiring()
        volumes = self._spec["template"]["spec"]["volumes"]
        sources = [volume["persistentVolumeClaim"] for volume in volumes if "persistentVolumeClaim" in volume]
        claims = {source["claimName"]: self._cluster.claim(source["claimName"]) for source in sources}
        pod = Pod(
            self._spec["template"], index, self.name, self._labels, self._cluster.root / folder, wiring,
            self._cluster.image, claims,
        )  # fmt: skip
        pod.start()
        self.pods[index] = pod
        return pod

    def codes(self) -> list[tuple[int, int | None]]:
        """Index and exit code of the pods that have ended."""
        return [(pod.index, pod.exit_code) for pod in self.ended]

    def close(self) -> None:
        for pod in self.pods.values():
            pod.kill()
            pod.process.wait()

    def story(self) -> str:
        """The ends of all pods' logs."""
        pods = [*self.ended, *(pod for pod in self.pods.values() if pod not in self.ended)]
        return "\n".join(f"== {pod.host_name}, exit code {pod.exit_code}\n{pod.log[-3000:]}" for pod in pods)

    def _sync(self) -> None:
        for pod in list(self.pods.values()):
            pod.kill_when_late()
            if pod.exit_code is not None and pod not in self.ended:
                self.ended.append(pod)
                if self.condition is None:
                    self._account(pod)
        if self.condition is None:
            # Those that are there have names; those created now get theirs a moment later, as from a real DNS.
            self._write_hosts()
            for index in range(self._spec["completions"]):
                running = index in self.pods and self.pods[index] not in self.ended
                if not running and index not in self._succeeded | self._failed:
                    self.create(index)

    def _account(self, pod: Pod) -> None:
        if pod.exit_code == 0:
            self._succeeded.add(pod.index)
            if len(self._succeeded) == self._spec["completions"]:
                self.condition = "Complete"
            return
        action = next((rule["action"] for rule in self._rules() if _matches(rule, pod)), "Count")
        if action == "Count":
            self.failures[pod.index] += 1
        if action == "FailIndex" or self.failures[pod.index] > self._spec["backoffLimitPerIndex"]:
            self._failed.add(pod.index)
        if action == "FailJob" or len(self._failed) > self._spec["maxFailedIndexes"]:
            self.condition = "Failed"
            for each in self.pods.values():
                each.end()

    def _rules(self) -> Iterable[Mapping[str, Any]]:
        return self._spec["podFailurePolicy"]["rules"]

    def _write_hosts(self) -> None:
        running = [pod for pod in self.pods.values() if pod.exit_code is None]
        names = [f"{pod.wiring.address} {pod.host_name}.{self._service}\n" for pod in running if self._service]
        for pod in running:
            pod.write_hosts("".join(names))


def _matches(rule: Mapping[str, Any], pod: Pod) -> bool:
    """Whether a rule of the podFailurePolicy is about this end of a pod."""
    if codes := rule.get("onExitCodes"):
        assert codes.get("containerName", pod.container["name"]) == pod.container["name"]
        return (pod.exit_code in codes["values"]) == (codes["operator"] == "In")
    has = {("DisruptionTarget", "True")} if pod.disrupted else set()
    return any((each["type"], each.get("status", "True")) in has for each in rule["onPodConditions"])
