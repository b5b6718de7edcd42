"""`dsrun certify`: its options are in command.toml. What it does is in run.py."""

from dsrun.cli.options import declared, format_option

command = format_option(declared(__file__, "dsrun.cli.certify.run:run"))
