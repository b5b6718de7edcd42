"""What the renderer takes from the world around it, as plain values."""

from __future__ import annotations

import sys
from dataclasses import dataclass

# Where no earlier run says how long a checkpoint takes: ten minutes' training lost to a signal that came too late
# cost more than three minutes' training not done.
DEFAULT_LEAD_S = 180
# slurmctld looks at time limits about every 30 s, so a shorter lead may be missed altogether.
LEAST_LEAD_S = 60
_SAVING_TIMES = 2  # the step in progress and a slow file system


@dataclass(frozen=True, kw_only=True)
class Site:
    """The cluster and the installation a job is rendered for.

    `gpus_per_node` and `cores_per_gpu` are None where no cluster is there to be asked. `checkpoint_s` is the time
    that the slowest checkpoint of an earlier run took. `python` is the interpreter of the workers, `own_python` the
    one that has dsrun.
    """

    python: str = sys.executable
    own_python: str = sys.executable
    gpus_per_node: int | None = None
    cores_per_gpu: int | None = None
    checkpoint_s: float | None = None

    @property
    def lead(self) -> int:
        """Seconds before the time limit at which a job is to be signalled."""
        if self.checkpoint_s is None:
            return DEFAULT_LEAD_S
        return LEAST_LEAD_S + round(_SAVING_TIMES * self.checkpoint_s)
