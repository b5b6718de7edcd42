"""The command line of `dsrun launch`: its options, those of a torchrun line, and the program that follows."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import fields, replace
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dsrun.cli.run_job import LaunchOptions, Work, checked_recipe, local_topology, training_work
from dsrun.errors import MissingError, UsageError
from dsrun.launch.compat import parse_torchrun, torchrun_words
from dsrun.launch.job import Job
from dsrun.launch.supervisor.policy import Limits
from dsrun.runs.folder import default_name
from dsrun.slurm.render.program import WORKER, Program, any_program, train_program
from dsrun.system import variables


def merge_torchrun(options: LaunchOptions, argv: tuple[str, ...]) -> tuple[LaunchOptions, tuple[str, ...], str]:
    """`options` with those of a torchrun line, the program that it starts, and the run ID of its rendezvous."""
    after = torchrun_words(argv)
    if after is None:
        return options, argv, ""
    found = parse_torchrun(after)
    given: dict[str, Any] = {each.name: getattr(found, each.name, None) for each in fields(options)}
    given = {name: value for name, value in given.items() if value is not None}
    for name, value in given.items():
        own = getattr(options, name)
        if own is not None and own != value:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} {own} for dsrun launch, but {value} for torchrun", fix="give it once")
    python = argv[0] if argv[1:2] == ("-m",) else "python"
    program = {(): (python,), ("--module",): (python, "-m"), ("--no-python",): ()}[found.mode]
    return replace(options, **given), (*program, *found.words), found.rdzv_id or ""


def parse_program(argv: tuple[str, ...]) -> Program:
    """What is to run: dsrun's own training, or an external program. Raises UsageError for a script that is missing."""
    first, *rest = argv
    if Path(first).name == "dsrun" and rest[:1] == ["train"]:
        return train_program(rest[1:])
    if first == "-m" or first.endswith(".py"):
        argv = ("python", *argv)
    found = any_program(argv)
    if found.mode == ("--module",) and found.entry in (WORKER, "dsrun"):
        own = list(found.args)
        if found.entry == "dsrun" and own[:1] != ["train"]:
            raise UsageError("of dsrun's commands only train can be launched", fix="-- dsrun train --model …")
        return train_program(own[1:] if found.entry == "dsrun" else own)
    if found.file and not Path(found.file).is_file() and (found.mode == () or "/" in found.file):
        raise UsageError(f"there is no file {found.file}", fix="-- path/to/my_train.py --flag value")
    return found


def work_of(options: LaunchOptions, program: Program) -> Work:
    """What this machine runs; the options of `dsrun launch` take precedence over those of `dsrun train`."""
    environment_output = os.environ.get(variables.OUTPUT)
    if not program.trains:
        return _external_work(replace(options, output=options.output or environment_output), program)
    recipe = checked_recipe(list(program.args))
    named = recipe.spec.output
    if options.output and named and options.output != named:
        raise UsageError(f"--output {options.output} for dsrun launch, but {named} for dsrun train", fix="give it once")
    return training_work(recipe, replace(options, output=options.output or named or environment_output))


def _external_work(options: LaunchOptions, program: Program) -> Work:
    """Any program but dsrun's own training."""
    topology = local_topology(options.nproc, use_cpu=False)
    restarts = {} if options.max_restarts is None else {"max_restarts": options.max_restarts}
    return Work(
        topology=topology,
        output=options.output or default_name(program.name, datetime.now()),
        debug=options.debug,
        dry_run=options.dry_run,
        # The program may write into its folder whatever it likes.
        force=True,
        require=partial(_require, program),
        job=partial(
            Job,
            topology=topology,
            program=_worker_argv(program),
            external=True,
            limits=Limits(**restarts, remedy=False),
            hang_timeout=options.hang_timeout,
            warm=False,
            # Users expect its output on the terminal, as with torchrun.
            echo=True,
        ),
    )


def _worker_argv(program: Program) -> tuple[str, ...]:
    """A `python` other than this one runs its scripts itself: torch.distributed.run would start its own otherwise."""
    if "--no-python" in program.mode or program.interpreter is None:
        return (*program.mode, program.entry, *program.args)
    found = shutil.which(program.interpreter) or program.interpreter
    if Path(found).parent == Path(sys.executable).parent:
        return (*program.mode, program.entry, *program.args)
    module = ("-m",) if "--module" in program.mode else ()
    return ("--no-python", found, "-u", *module, program.entry, *program.args)


def _require(program: Program) -> None:
    """Raise MissingError here, where the rank would only end with a traceback, and be restarted."""
    if find_spec("torch") is None:
        raise MissingError(f"there is no torch in {sys.executable}, which starts the workers", fix="pip install torch")
    if "--no-python" in program.mode and shutil.which(program.entry) is None:
        raise MissingError(f"there is no program {program.entry}", fix="-- PROGRAM ARGS, with its path")
