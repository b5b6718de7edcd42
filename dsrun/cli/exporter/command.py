"""`dsrun exporter`: its options are in command.toml. What it does is in serve.py."""

from dsrun.cli.options import DEBUG, declared

command = DEBUG(declared(__file__, "dsrun.cli.exporter.serve:run"))
