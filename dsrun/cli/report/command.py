"""`dsrun report`: its options are in command.toml. What it does is in write_page.py."""

from dsrun.cli.options import declared, format_option

command = format_option(declared(__file__, "dsrun.cli.report.write_page:run"))
