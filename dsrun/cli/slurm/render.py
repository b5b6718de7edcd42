"""`dsrun render-slurm`: its options, which are those of SlurmSpec. What it does is in script.py."""

import click

from dsrun.cli.options import RenderCommand
from dsrun.errors import UsageError
from dsrun.slurm.render.options import SlurmSpec

HELP = """Write the sbatch script of a job: `dsrun render-slurm --nodes 4 | sbatch`.

The command after `--` runs on every GPU: `-- train --model …`, `-- python my_train.py …`, `-- ./program …`.
The default is run.yaml of this folder, or else the demo.
"""
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


command = SlurmCommand(
    name="render-slurm",
    help=HELP,
    spec=SlurmSpec,
    noun="script",
    section="slurm",
    callback="dsrun.cli.slurm.script:run",
    params=[
        click.Option(["--force"], is_flag=True, help="replace the file; render despite errors"),
        click.Option(["--template"], metavar="FILE", help="your own Jinja2 template"),
        click.Option(["--show-template"], is_flag=True, help="print the shipped template"),
        click.Option(["--submit"], is_flag=True, help="submit the job and print its ID"),
        click.Option(["--follow"], is_flag=True, help="submit the job, show its log to its end, exit with its code"),
        click.Option(["--test-only"], is_flag=True, help="query whether and when the scheduler would start it"),
    ],
    epilog="docs/slurm.md explains every option.",
)
