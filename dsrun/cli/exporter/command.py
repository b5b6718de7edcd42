"""`dsrun exporter`: its options. What it does is in serve.py."""

from typing import Any

import click

from dsrun.cli.options import DEBUG, Command

PORT = 9762


@click.command(cls=Command, name="exporter")
@click.argument("folders", nargs=-1, metavar="[FOLDER]...")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="port to listen on")
@click.option(
    "--address", default="127.0.0.1", show_default=True,
    help="address to listen on; 0.0.0.0 lets every machine read the metrics",
)  # fmt: skip
@click.option("--textfile", metavar="FILE.prom", help="write the metrics into this file instead")
@click.option(
    "--interval", type=click.FloatRange(min=1), default=15.0, show_default=True, metavar="SECONDS",
    help="how often to write --textfile",
)  # fmt: skip
@click.option("--once", is_flag=True, help="write --textfile once, for a cron job")
@click.option("--dashboard", is_flag=True, help="print a Grafana dashboard as JSON, to be imported there")
@click.option("--alert-rules", is_flag=True, help="print alert rules for Prometheus as YAML")
@DEBUG
def command(**options: Any) -> int:
    """Serve the figures of runs to Prometheus, from their run folders.

    FOLDER is a run folder or one that contains run folders, by default `runs`. New runs in it are found by themselves,
    and a run is left out a day after its end. Nothing is read unless Prometheus asks.

    With --textfile a file is written instead, for the textfile collector of node_exporter. --dashboard and
    --alert-rules print a Grafana dashboard and alert rules of Prometheus for these metrics.
    """
    from dsrun.cli.exporter.serve import run

    return run(**options)
