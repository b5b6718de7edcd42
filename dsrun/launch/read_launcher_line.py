"""A program: what `accelerate launch …` or `deepspeed …` would start, by their own code, as one line of JSON.

    python read_launcher_line.py accelerate --num_processes 2 train.py --lr 1e-4

It runs under the Python that has the launcher, which may have no dsrun. Nothing is started: where the launcher hands
over to torch.distributed.run, or starts the program, its decision is printed instead."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ACCELERATE = ("num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port", "max_restarts")


def told(args: Any, env: dict[str, str], *, given: dict[str, Any]) -> None:
    """Print the decision: the program, the options that say how many run it, and the variables that differ from those
    here."""
    changed = {name: value for name, value in env.items() if os.environ.get(name) != value}
    values = {
        "script": args.training_script,
        "arguments": list(args.training_script_args),
        "module": bool(args.module),
        "no_python": bool(args.no_python),
        "env": changed,
        "given": given,
    }
    print(json.dumps(values))


def accelerate_line(argv: Sequence[str]) -> None:
    """What `accelerate launch` decides, with its configuration file."""
    from accelerate.commands import launch
    from accelerate.commands.config import config_args
    from accelerate.utils import launch as settings

    def instead(prepare: Callable[[Any], dict[str, str]]) -> Callable[[Any], None]:
        def tell(args: Any) -> None:
            # Before it is prepared, which fills defaults in.
            given = {name: getattr(args, name, None) for name in ACCELERATE}
            args.deepspeed_multinode_launcher = "standard"  # which starts torch.distributed.run, and no ssh
            told(args, prepare(args), given=given)

        return tell

    launch.deepspeed_launcher = instead(lambda args: settings.prepare_deepspeed_cmd_env(args)[1])
    launch.multi_gpu_launcher = instead(settings.prepare_multi_gpu_env)
    launch.simple_launcher = instead(lambda args: settings.prepare_simple_launcher_cmd_env(args)[1])
    for name in ("tpu_launcher", "tpu_pod_launcher", "sagemaker_launcher"):
        setattr(launch, name, _refuse)
    args = launch.launch_command_parser().parse_args(argv)
    file = Path(args.config_file or config_args.default_config_file)
    if args.config_file and not file.is_file():
        raise SystemExit(f"{file} is {'a folder' if file.is_dir() else 'not there'}")
    if file.is_file():
        try:
            config_args.load_config_from_file(str(file))
        except Exception as error:
            why = "it is for SageMaker" if "SageMaker" in str(error) else error
            raise ValueError(f"{file}: {why}") from None
    launch.launch_command(args)


def _refuse(*_: object) -> None:
    raise SystemExit("this configuration is for TPUs or SageMaker")


def deepspeed_line(argv: Sequence[str]) -> None:
    """What `deepspeed` reads from its command line."""
    from deepspeed.launcher import runner

    args = runner.parse_args(list(argv))
    args.training_script, args.training_script_args = args.user_script, args.user_args
    plain = vars(runner.parse_args(["script"]))
    given = {name: value for name, value in vars(args).items() if name in plain and value != plain[name]}
    told(args, {}, given=given)


def main(argv: Sequence[str]) -> int:
    try:
        {"accelerate": accelerate_line, "deepspeed": deepspeed_line}[argv[0]](argv[1:])
    except Exception as error:
        raise SystemExit(f"error: {' '.join(str(error).split())}") from None
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
