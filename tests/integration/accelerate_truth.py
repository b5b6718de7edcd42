"""What accelerate itself makes of a YAML file: from its launcher's environment to its plugin's configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def configuration(path: Path) -> dict[str, Any] | str:
    """The configuration of its DeepSpeedPlugin on two processes, or the error that it ends in."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import DeepSpeedPlugin
    from accelerate.utils.launch import prepare_deepspeed_cmd_env

    parsed = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    args, defaults, precision_from_file = _validate_launch_command(parsed)
    # As launch_command does, which would start the program.
    fields = [*defaults.deepspeed_config, *(["mixed_precision"] if precision_from_file else [])]
    args.deepspeed_fields_from_accelerate_config = ",".join(fields)
    _, made = prepare_deepspeed_cmd_env(args)
    before = dict(os.environ)
    os.environ.update({name: value for name, value in made.items() if name.startswith("ACCELERATE_")})
    try:
        plugin = DeepSpeedPlugin()
        plugin.set_mixed_precision(made["ACCELERATE_MIXED_PRECISION"])
        return dict(plugin.deepspeed_config)
    except ValueError as error:
        return str(error)
    finally:
        os.environ.clear()
        os.environ.update(before)
