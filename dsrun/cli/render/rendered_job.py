"""The job to render: what the words after `--` or a run file say, and the options of the command line and run.yaml."""

import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from dsrun.errors import DsrunError, UsageError, nearest
from dsrun.launch.launchers import launcher_in, refuse_scripts
from dsrun.launch.program import FIX, JobProgram, any_program
from dsrun.options import OptionValue, flag_of
from dsrun.system.shell import command_line
from dsrun.system.terminal.secrets import MASK, masked, object_in, secret_key
from dsrun.system.terminal.stderr import print_note

if TYPE_CHECKING:
    from dsrun.recipe.recipe import Recipe

RUN_FILE = "run.yaml"
DEMO = ("--model", "demo-t5", "--zero", "2")


class JobRendering(NamedTuple):
    """What jobs are rendered as: its name in messages, its section of run.yaml, and how a job gets a token instead."""

    noun: str
    section: str
    token_fix: str
    training_token_fix: str
    run_file_value: Callable[[str, Iterable[str], str], OptionValue]


class RenderedProgram(NamedTuple):
    """What a job runs: the program, and the run.yaml whose section applies, as the user wrote its path.

    `recipe` is that of dsrun's own training.
    """

    program: JobProgram
    config: str | None
    recipe: "Recipe | None" = None


def refuse_empty(values: dict[str, Any]) -> None:
    """Raise UsageError for a flag that names a file, and does not."""
    for name in ("output", "config", "template"):
        if values.get(name) == "":
            raise UsageError(f"--{name} is empty", fix="name a file, or remove it")


def find_job(args: Sequence[str], config: str | None, cwd: Path, rendering: JobRendering) -> RenderedProgram:
    """What runs: the arguments after `--`, else the run file, else the demo. Raises UsageError for wrong flags."""
    here = RUN_FILE if (cwd / RUN_FILE).is_file() else None
    if tuple(args[:2]) == ("dsrun", "train"):
        args = args[1:]
    if args and args[0] == "train":
        return _train(args[1:], config or here, cwd, rendering)
    if args:
        refuse_secrets(args, rendering)
        refuse_scripts(args, cwd)
        if args[0].startswith("t"):
            from shutil import which  # slow, and nearest() is as well

            if nearest(args[0], ["train"]) and which(args[0]) is None:
                raise UsageError(f"-- {args[0]}: there is no such program here", fix="did you mean -- train?")
        fix = _without_launcher(args) if launcher_in(args) else FIX
        return RenderedProgram(program=any_program(args, fix=fix), config=config or here)
    if config or here:
        name = str(config or here)
        from dsrun.cli.render.training import refuse_no_training

        refuse_no_training(name, cwd)
        print_note(f"no command after --: the job runs {name}")
        return _train(["--config", name], name, cwd, rendering)
    print_note(f"no command after --, and no {RUN_FILE} here: the job trains the demo")
    return _train(DEMO, None, cwd, rendering)


def _without_launcher(args: Sequence[str]) -> str:
    """What a render command is to be given instead of another launcher's line."""
    from dsrun.launch.environment import LOCAL_RANK
    from dsrun.launch.launcher_line import launcher_line  # which may run the launcher's own code

    try:
        line = launcher_line(args, os.environ)
    except DsrunError:
        return FIX
    if line is None:
        return FIX
    given = {"nodes": line.nodes, "nproc": line.nproc, "max-restarts": line.max_restarts}
    flags = [f"--{name}={value}" for name, value in given.items() if value is not None]
    # Which GPUs of its own a job sees is the scheduler's.
    variables = [each for each in line.assignments if not each.startswith("CUDA_VISIBLE_DEVICES=")]
    flags += [word for each in variables for word in ("--env", each)]
    program = list(line.command)
    if line.local_rank:
        rank = f"{line.local_rank}={LOCAL_RANK}"
        text = shlex.join(program).replace(shlex.quote(rank), f'{line.local_rank}="$LOCAL_RANK"')
        program = ["bash", "-c", f"exec {text}"]
    return command_line([*flags, "--", *program])


def _train(args: Sequence[str], config: str | None, cwd: Path, rendering: JobRendering) -> RenderedProgram:
    """dsrun's own training; `config` is the run file here or that of --config."""
    from dsrun.cli.render.training import training_of  # the flags of training, which other programs do without

    recipe, program = training_of(args, cwd, rendering)
    return RenderedProgram(program=program, config=recipe.spec.config or config, recipe=recipe)


def refuse_secrets(words: Sequence[str], rendering: JobRendering) -> None:
    """Raise UsageError for a secret in a job's command, named by its flag or key."""
    for before, word, shown in zip(("", *words), words, masked(words), strict=False):
        if word == shown:
            continue
        flag, fix = word.partition("=")[0] if word.startswith("-") else before, rendering.token_fix
        if shown == MASK:
            what = f"{before} has a value that" if before.startswith("-") else f"{word[:6]}…"
        elif key := secret_key(object_in(word)):
            what = f"{flag}: {key}"
            if flag == "--deepspeed":  # comet.api_key: comet reads COMET_API_KEY
                variable = "_".join(key.split(".")[-2:]).upper()
                fix = f"remove it here; {rendering.training_token_fix.replace('HF_TOKEN', variable)}"
        else:
            told = repr(shown) if " " in shown else shown
            what = f"{flag} {told}" if flag.startswith("-") and flag == before else told
        raise UsageError(f"{what} looks like a token, and everybody can read a job's {rendering.noun}", fix=fix)


def from_run_file(config: str | None, cwd: Path, rendering: JobRendering) -> tuple[OptionValue, ...]:
    """The options of the run file's section, and max_restarts of its `launch:` section."""
    if config is None:
        return ()
    from dsrun.recipe.runfile import read_section  # PyYAML, only where it is needed

    path, section = cwd / config, rendering.section
    given = [rendering.run_file_value(key, values, where) for key, values, where in read_section(path, config, section)]
    restarts = [
        OptionValue(name="max_restarts", values=tuple(values), where=where)
        for key, values, where in read_section(path, config, "launch")
        if key.replace("-", "_") == "max_restarts" and all(each.name != "max_restarts" for each in given)
    ]
    if given:
        print_note(f"options from the {section} section of {config}: {', '.join(each.name for each in given)}")
    return (*given, *restarts)


def from_flags(spec: type, values: dict[str, Any]) -> Iterable[OptionValue]:
    """The options of the command line, unconverted."""
    ctx = click.get_current_context()
    for each in fields(spec):
        if ctx.get_parameter_source(each.name) is click.core.ParameterSource.COMMANDLINE:
            value = values[each.name]
            several = value if isinstance(value, tuple) else (str(value).lower() if isinstance(value, bool) else value,)
            yield OptionValue(name=each.name, values=several, where=flag_of(each))
