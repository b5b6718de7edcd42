"""`dsrun init` and `dsrun import`: their options are in command.toml and import_file.toml, what they do in run.py and
import_file.py."""

from dsrun.cli.options import DEBUG, declared

command = DEBUG(declared(__file__, "dsrun.cli.init.run:run"))
import_command = DEBUG(declared(__file__, "dsrun.cli.init.import_file:run", "import_file.toml"))
