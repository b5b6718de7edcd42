"""`dsrun doctor`: its options are in command.toml. What it does is in local.py, and between ranks in collectives.py."""

from dsrun.cli.options import declared, format_option

command = format_option(declared(__file__, "dsrun.cli.doctor.local:run"))
