"""`dsrun init`: its options are in command.toml. What it does is in run.py."""

from dsrun.cli.options import DEBUG, declared

command = DEBUG(declared(__file__, "dsrun.cli.init.run:run"))
