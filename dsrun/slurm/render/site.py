"""The cluster and the installation that a job script is rendered for."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from dsrun.datafiles import data_folder
from dsrun.slurm.render.options import SlurmSpec

# Where no earlier run says how long a checkpoint takes: ten minutes' training lost to a signal that came too late
# cost more than three minutes' training not done.
DEFAULT_LEAD_S = 180
# slurmctld looks at time limits about every 30 s, so a shorter lead may be missed altogether.
MIN_LEAD_S = 60
_SAVING_TIMES = 2  # the step in progress and a slow file system


def functions_file(name: str = "job") -> Path:
    """The shell functions that job scripts call; `name` another for those of --spare, --preflight, --stage …"""
    return data_folder("slurm") / f"{name}.bash"


def used_functions(spec: SlurmSpec) -> list[str]:
    """The names of the files with shell functions that a job uses: job, and of those beside it those of its options."""
    uses = {name: getattr(spec, name) for name in ("spare", "elastic", "preflight", "stage")}
    uses["spare"] = spec.spare or spec.elastic  # which chooses the nodes
    return ["job", *(name for name, used in uses.items() if used)]


@dataclass(frozen=True, kw_only=True)
class ClusterSite:
    """The cluster and the installation a job is rendered for.

    `gpus_per_node` and `cores_per_gpu` are None where no cluster is there to be asked. `checkpoint_s` is the time
    that the slowest checkpoint of an earlier run took. `python` is the interpreter of the workers, `own_python` the
    one that has dsrun. `functions` is where the nodes find the shell functions that scripts call. `user` and `command`
    rendered it, in the folder `cwd`; None where that is not known on the cluster. `has_dsrun`: the Python of the
    workers, if no image brings it, has this dsrun.
    """

    python: str = sys.executable
    own_python: str = sys.executable
    gpus_per_node: int | None = None
    cores_per_gpu: int | None = None
    checkpoint_s: float | None = None
    functions: str = field(default_factory=lambda: str(functions_file()))
    user: str = ""
    command: tuple[str, ...] = ()
    cwd: str | None = None
    has_dsrun: bool = True

    @property
    def signal_lead_s(self) -> int:
        """Seconds before the time limit at which a job is to be signalled."""
        if self.checkpoint_s is None:
            return DEFAULT_LEAD_S
        return MIN_LEAD_S + round(_SAVING_TIMES * self.checkpoint_s)
