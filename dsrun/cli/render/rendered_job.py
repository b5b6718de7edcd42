"""The job to render: what the words after `--` or a run file say, and the options of the command line and run.yaml."""

import os
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from dsrun.errors import UsageError, nearest
from dsrun.launch.program import JobProgram, any_program, launcher_in, refuse_scripts
from dsrun.options import OptionValue, flag_of
from dsrun.system.shell import command_line
from dsrun.system.terminal.secrets import MASK, masked, object_in, secret_key, without_tokens
from dsrun.system.terminal.stderr import print_note

if TYPE_CHECKING:
    from dsrun.launch.launcher_line import LauncherLine
    from dsrun.recipe.recipe import Recipe

RUN_FILE = "run.yaml"
_WORKERS = frozenset({"gpus_per_node", "gres", "nproc"})
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

    `recipe` is that of dsrun's own training; of another program `words` are its command, and `line` is what a launcher
    before it says."""

    program: JobProgram
    config: str | None
    recipe: "Recipe | None" = None
    words: tuple[str, ...] = ()
    line: "LauncherLine | None" = None


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
        if args[0].startswith("t"):
            from shutil import which  # slow, and nearest() is as well

            if nearest(args[0], ["train"]) and which(args[0]) is None:
                raise UsageError(f"-- {args[0]}: there is no such program here", fix="did you mean -- train?")
        line = None
        if launcher_in(args):
            from dsrun.launch.launcher_line import launcher_line

            line = launcher_line(args, os.environ, unnamed=None)
        words = tuple(line.command if line else args)
        refuse_scripts(words, cwd)
        return RenderedProgram(program=any_program(words), config=config or here, words=words, line=line)
    if config or here:
        name = str(config or here)
        from dsrun.cli.render.training import refuse_no_training

        refuse_no_training(name, cwd)
        print_note(f"no command after --: the job runs {name}")
        return _train(["--config", name], name, cwd, rendering)
    print_note(f"no command after --, and no {RUN_FILE} here: the job trains the demo")
    return _train(DEMO, None, cwd, rendering)


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


def given_options(
    job: RenderedProgram, spec: type, values: dict[str, Any], cwd: Path, rendering: JobRendering
) -> tuple[Sequence[OptionValue], ...]:
    """The options of the command line, with those of a launcher's line behind it, the weaker ones of run.yaml, and the
    training's --elastic, which the job's own options have to fit."""
    flags, section = list(from_flags(spec, values)), [*from_run_file(job.config, cwd, rendering)]
    if elastic := job.recipe and job.recipe.spec.elastic:
        section.append(OptionValue(name="elastic", values=(elastic,), where="--elastic"))
    if job.line is None:
        return flags, section
    known = {each.name for each in (*flags, *section)}
    return [*_of_launcher(job.line, flags, known, f"dsrun render-{rendering.section}"), *flags], section


def _of_launcher(
    line: "LauncherLine", flags: Sequence[OptionValue], known: Set[str], command: str
) -> list[OptionValue]:
    """What a launcher's line says for a job, beside the options `flags` of the `command`; `known` are the names of all.

    Its workers of each node are that many GPUs where nobody says how many a node has. Of the rendezvous nothing is
    taken over: a job has its own. Raises UsageError for named machines, and for what contradicts the flags."""
    from dsrun.launch.launcher_line import refuse_other
    from dsrun.launch.refusals import refuse

    refuse("rendered", line=line)
    given, own = line.given("nodes", "nproc", "max_restarts"), {each.name: each.values for each in flags}
    refuse_other({name: values[0] for name, values in own.items()}, given, line, command)
    if "nproc" in given and not known & _WORKERS:
        given["gpus_per_node"] = given.pop("nproc")
    # Which GPUs of its own a job sees is the scheduler's.
    variables = [each for each in line.assignments if not each.startswith("CUDA_VISIBLE_DEVICES=")]
    said: dict[str, tuple[str, ...]] = {name: (str(value),) for name, value in given.items() if name not in own}
    said |= {"env": (*variables, *own.get("env", ()))} if variables else {}
    words = [f"--{name.replace('_', '-')}={value}" for name, values in said.items() for value in values]
    shown = f"{command}{' …' if flags else ''} {without_tokens(command_line([*words, '--', *line.command]))}"
    print_note(line.same_as(shown, [*line.given("node_rank", "master_addr", "master_port", "rdzv_id")]))
    return [OptionValue(name, values, line.launcher) for name, values in said.items()]


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
