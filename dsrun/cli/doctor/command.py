"""`dsrun doctor`: its options. What it does is in local.py, and between ranks in collectives.py."""

from typing import Any

import click

from dsrun.cli.options import HYPHENS, Command, format_option


@click.command(cls=Command, name="doctor", context_settings=HYPHENS)
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="[-- train FLAGS]")
@click.option("--for", "run_file", metavar="RUN.YAML", help="check whether this very job will work here")
@click.option("--output", metavar="DIR", help="its run folder  [default: that of the job]")
@click.option(
    "--nproc", type=click.IntRange(min=1), metavar="N", help="its ranks on this machine  [default: one a GPU]"
)
@click.option("--only", multiple=True, metavar="CODE", help="run these checks only; a prefix will do; may be repeated")
@click.option("--skip", multiple=True, metavar="CODE", help="leave these checks out; may be repeated")
@click.option("--deep", is_flag=True, help="test the GPUs for minutes: dcgmi, nccl-tests, nvbandwidth, if installed")
@click.option("--all", "every", is_flag=True, help="list the checks that do not apply here, too")
@click.option("--min-gpus", type=click.IntRange(min=1), metavar="N", help="fail with fewer visible GPUs")
@click.option("--min-gpu-memory", type=click.FloatRange(min=0), metavar="GIB", help="fail if a GPU has less memory")
@click.option("--ranks", type=click.IntRange(min=1), metavar="N", help="test collectives between N ranks here instead")
@click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="test collectives between N nodes instead")
@click.option("--node-rank", type=click.IntRange(min=0), metavar="R", help="which of the nodes this is, from 0")
@click.option("--master-addr", metavar="HOST", help="name or address of node 0")
@click.option(
    "--master-port", type=click.IntRange(1, 65535), metavar="P", help="port of the ranks' rendezvous on node 0"
)
@click.option(
    "--preflight", is_flag=True, help="run these checks on every node of a SLURM step, then test the collectives"
)
@format_option
def command(**given: Any) -> int:
    """Find out in seconds whether training will work here, and what to do about it if not.

    Checks driver, torch, compilers, caches, network and variables; with --for, or the flags of `dsrun train` after --,
    also the settings, model, memory and run folder of that job. Neither torch nor a network is needed, and nothing is
    changed.

    The exit code is 0 if no check fails, also with warnings, and 3 otherwise.
    """
    from dsrun.cli.doctor.local import run  # help needs the options only

    return run(**given)
