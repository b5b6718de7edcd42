"""`dsrun render-slurm` takes options of sbatch, too. What it does is in script.py."""

from dsrun.cli.options import RenderCommand
from dsrun.errors import UsageError

HETJOB = (
    "all nodes of a job must be alike: one torch.distributed.run a node starts the same number of workers "
    "everywhere, and a heterogeneous job has several such groups"
)


class SlurmCommand(RenderCommand):
    """Takes options of sbatch, too."""

    def translated(self, own: list[str]) -> list[str]:
        for arg in own:
            if arg == ":" or arg.startswith(("--het-group", "--pack-group")):
                raise UsageError(f"{arg}: heterogeneous jobs are not supported", fix=HETJOB)
        if own in (["--help"], ["-h"]):
            return list(own)
        from dsrun.slurm.render.sbatch_flags import translate

        return translate(own)
