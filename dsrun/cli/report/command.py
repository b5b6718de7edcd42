"""`dsrun report`: its options. What it does is in write_page.py."""

import click

from dsrun.cli.options import Command, format_option, lazy_callback

HELP = """Write one HTML page about runs: curves, time, evaluations, findings, settings, environment.

RUN is the --output of a `dsrun train` or `dsrun launch`, finished, failed or still running. The page is one file
and loads nothing else. Several runs are drawn over each other, with a table of what differs.
"""

command = format_option(
    Command(
        name="report",
        help=HELP,
        callback=lazy_callback("dsrun.cli.report.write_page:run"),
        params=[
            click.Argument(["runs"], nargs=-1, required=True, metavar="RUN..."),
            click.Option(
                ["-o", "--output"],
                metavar="FILE",
                help="page to write; default: report.html in the run folder, of several runs in this one",
            ),
            click.Option(["--png"], metavar="DIR", help="also write each chart as a PNG picture into this folder"),
            click.Option(["--force"], is_flag=True, help="replace files that exist"),
        ],
        epilog="docs/report.md explains the page.",
    )
)
