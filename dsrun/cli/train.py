"""`dsrun train`: check the settings, start the workers, exit with their exit code; `dsrun prepare`: only the data;
`dsrun data`: rows of it for the user's eyes."""

import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from dsrun.cli.options import Command, imported
from dsrun.errors import EXIT_USAGE, UsageError
from dsrun.system.shell import command_line
from dsrun.system.terminal.display import columns_of, fitted, wrapped
from dsrun.system.terminal.stderr import print_detail, print_error, print_note

if TYPE_CHECKING:
    from dsrun.launch.signals import StartupSignals
    from dsrun.recipe.flags import RecipeFlag
    from dsrun.recipe.recipe import Recipe

PREPARER = "dsrun.train.prepare"
HELP_COLUMN = 30


class TrainCommand(Command):
    """Leaves all flags to the recipe's parser, which knows those of Transformers too."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        params = super().get_params(ctx)
        if ctx.resilient_parsing:  # completion
            params = [*imported("dsrun.cli.completion:training_flags")(), *params]
        return params

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:
            return []
        if any(arg in ("-h", "--help") for arg in args):
            click.echo(f"Usage: {ctx.command_path} [FLAGS]\n\n  {self.get_short_help_str(200)}\n")
            click.echo(help_text(columns_of(sys.stdout)))
            ctx.exit()
        if not args:
            _explain_bare(ctx)
        choose_log_format(args)
        ctx.obj = list(args)
        return []


def _explain_bare(ctx: click.Context) -> NoReturn:
    """What is missing and two ways to go on, for somebody who tries the command first."""
    print_error("no model to train: name one with --model NAME, or a file of flags with --config run.yaml")
    demo = f"{ctx.command_path} --model demo-t5"
    print_detail(f"  {demo:33}  the demo: a small model and its data, from nothing", hang=37)
    print_detail(f"  {'dsrun init':33}  writes a run.yaml from your answers", hang=37)
    ctx.exit(EXIT_USAGE)


def choose_log_format(args: list[str]) -> None:
    """Have errors of the other flags written as --log-format says."""
    for word, value in zip(args, [*args[1:], ""], strict=False):
        flag, equals, joined = word.partition("=")
        if flag.replace("_", "-") == "--log-format":
            from dsrun.system.terminal.log_format import FORMATS, choose

            given = joined if equals else value
            if given in FORMATS:
                choose(given)


def help_text(width: int = 80) -> str:
    """The flags of `dsrun train` as plain text of at most `width` columns."""
    from dsrun.recipe.flags import hf_flags, hf_version, own_flags

    groups = groupby(own_flags().values(), key=attrgetter("group"))
    parts = ["\n".join([f"{title}:", *(_help_entry(flag, width) for flag in flags)]) for title, flags in groups]
    names = " ".join(flag.shown for flag in sorted(hf_flags().values(), key=attrgetter("name")))
    title = f"Training arguments of Transformers ({hf_version()}), under their own names:"
    listed = "\n".join(wrapped(f"  {names}", width, 2))
    notes = "Hyphens and underscores in a flag are the same; a switch takes an optional true or false, and --no-NAME "
    notes += "turns it off. Flags that Transformers 5 removed are translated with a notice."
    parts += [f"{fitted(title, width, hang=0)}\n{listed}", fitted(notes, width, hang=0)]
    return "\n\n".join(parts) + "\n"


def _help_entry(flag: "RecipeFlag", width: int) -> str:
    """One flag: name and value to the left, meaning to the right, or below where there is no room."""
    head = f"  {flag.shown} {flag.value_text}".rstrip()
    default = flag.default_text
    meaning = flag.help + (f" [{default}]" if default not in ("", "false") else "")
    is_beside = len(head) <= HELP_COLUMN - 2
    text = f"{head if is_beside else '':<{HELP_COLUMN}}{meaning}"
    lines = wrapped(text, max(HELP_COLUMN + 20, width), HELP_COLUMN)
    return "\n".join(lines if is_beside else [head, *lines])


def flags_after(program: Sequence[str]) -> list[str] | None:
    """The flags of "train --model …", the words after another command's `--`; None without words. Raises UsageError
    for another program."""
    words = list(program[1:] if program[:1] == ("dsrun",) else program)
    if words and words[0] != "train":
        raise imported("dsrun.cli.output:refusal")("train.program", word=words[0])
    return words[1:] if words else None


@click.command(cls=TrainCommand, name="train")
@click.pass_obj
def command(args: list[str]) -> int:
    """Train a seq2seq or causal LM under DeepSpeed ZeRO."""
    from dsrun.launch.coordinator.messages import StoppedBeforeStart
    from dsrun.launch.detection.detect import started_alone
    from dsrun.launch.signals import startup_signals
    from dsrun.system.env import worker_from_env
    from dsrun.system.host import require_training_packages

    if not started_alone(os.environ) and worker_from_env(os.environ) is not None:
        from dsrun.launch.program import WORKER

        require_training_packages()
        os.execv(sys.executable, [sys.executable, "-m", WORKER, *args])
    try:
        with startup_signals() as signals:
            from dsrun.launch.node.checked_recipe import checked_recipe

            recipe = checked_recipe(args)
            if recipe.spec.explain:
                imported("dsrun.cli.explain:show_values")(recipe)
                return 0
            return _run(recipe, signals)
    except StoppedBeforeStart as stopped:
        print_note(str(stopped))
        return stopped.exit_code


def _run(recipe: "Recipe", signals: "StartupSignals") -> int:
    from dsrun.launch.context import LocalLauncher
    from dsrun.launch.node.run_node import run_node
    from dsrun.launch.node.work import LaunchOptions, training_work

    spec, options = recipe.spec, LaunchOptions(output=recipe.spec.output)
    work = replace(training_work(recipe, options), find_port=spec.find_port)
    place = LocalLauncher(how="", port=spec.master_port)
    return run_node(work, place, signals, rendezvous_timeout_s=options.rendezvous_timeout)


@click.command(cls=TrainCommand, name="prepare")
@click.pass_obj
def prepare_command(args: list[str]) -> int:
    """Tokenise a run's data ahead of the job; takes the flags of `dsrun train`."""
    from dsrun.launch.node.checked_recipe import with_deepspeed_checked
    from dsrun.recipe.resolve import resolve

    recipe = resolve(args, Path.cwd())
    if not recipe.spec.explain:
        with_deepspeed_checked(recipe, recipe.spec.nproc)
        if recipe.spec.dry_run:
            imported("dsrun.recipe.preflight.files:check_inputs")(recipe)
    return _start_preparer(recipe, args)


def _start_preparer(recipe: "Recipe", args: list[str]) -> int:
    from dsrun.system.host import require_training_packages

    argv = [sys.executable, "-m", PREPARER, *args]
    if recipe.spec.explain:
        imported("dsrun.cli.explain:show_values")(recipe)
    elif recipe.spec.dry_run:
        from dsrun.launch.node.run_node import without_dry_run

        click.echo(command_line(without_dry_run(argv)))
    else:
        require_training_packages()
        os.execv(sys.executable, argv)
    return 0


class DataCommand(TrainCommand):
    """Has options of its own, and leaves files and the flags of training, in `ctx.obj`, to the recipe's parser."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            choose_log_format(args)
            Command.parse_args(self, ctx, args)
            ctx.obj = list(ctx.args)
        return []


@click.pass_obj
def show_rows(args: list[str], /, *, row: tuple[str, ...], split: str, html: str | None, **options: object) -> int:
    from dsrun.cli.output import refuse_file
    from dsrun.recipe.parser import loose_words
    from dsrun.recipe.preflight.files import check_files
    from dsrun.recipe.resolve import resolve

    ranges = [_numbers(each) for each in row]
    files, flags = loose_words(args), [*args]
    for word in files:
        flags.remove(word)
    flags += [f"--{split}-file", *files] if files else []
    recipe = resolve(flags, Path.cwd())
    check_files(recipe.spec)
    if html is not None:
        refuse_file(Path(html), "--html", force=recipe.spec.force)
    asked = {"rows": ranges, "split": split, "html": html, **options}
    return _start_preparer(recipe, ["--rows", json.dumps(asked), *flags])


def _numbers(text: str) -> tuple[int, int]:
    """The first and the last number of N or N..M."""
    found = re.fullmatch(r"([1-9]\d*)(?:\.\.([1-9]\d*))?", text)
    if not found or int(found[1]) > int(found[2] or found[1]):
        raise UsageError(f"--row {text} is neither a number from 1 on nor a range", fix="write --row 17 or --row 3..7")
    return int(found[1]), int(found[2] or found[1])
