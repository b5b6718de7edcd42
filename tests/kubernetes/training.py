"""A job whose pods train, with its run folder on their claim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dsrun.runs.folder import RunFolder
from dsrun.runs.records import read_records
from tests.kubernetes.cluster import Job


@dataclass(frozen=True)
class Training:
    """The job and its run folder."""

    job: Job
    folder: RunFolder

    @property
    def losses(self) -> dict[int, float]:
        """Training loss by step."""
        rows = read_records(self.folder.metrics) if self.folder.metrics.exists() else []
        return {row["step"]: row["loss"] for row in rows if "loss" in row}

    def events(self, kind: str) -> list[dict[str, Any]]:
        rows = read_records(self.folder.events) if self.folder.events.exists() else []
        return [row for row in rows if row["kind"] == kind]

    def halt_at(self, step: int) -> None:
        """Wait for a step, and stop all ranks there, so that what comes next meets them in mid-training."""
        self.job.until(lambda: max(self.losses, default=0) >= step or self.job.condition, f"at step {step}")
        for pod in self.job.pods.values():
            pod.halt()
        assert self.job.condition is None, self.job.story()

    def go_on(self) -> None:
        for pod in self.job.pods.values():
            pod.go_on()

    def wait_for_start(self, number: int) -> None:
        """Wait until the ranks have been started that many times, by whatever pods."""
        self.job.until(lambda: len(self.events("start")) >= number or self.job.condition, f"started {number} times")
        assert self.job.condition is None, self.job.story()
