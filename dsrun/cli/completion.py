"""Shell completion: click's protocol for bash, zsh and fish, and what it does not know of dsrun's command lines.

The values of an option follow from its placeholder in --help: FILE, DIR, RUN, or the words of `auto|N`. The flags of
`dsrun train` come from the recipe's table, also behind the `--` of a command that starts a program."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import BashComplete, CompletionItem, ShellComplete, get_completion_class

from dsrun.cli.options import LazyGroup
from dsrun.errors import UsageError

SHELLS = ("bash", "zsh", "fish")
# Words of a placeholder -> what it takes. The first that matches: RUN.YAML is a file, DIR|FILE may be one.
KINDS = {
    "file": {"FILE", "PATH", "YAML", "OUT", "LOG", "PROGRAM", "FILENAME"},
    "run": {"RUN", "CHECKPOINT"},
    "dir": {"DIR", "FOLDER", "DIRECTORY"},
}
# Names of parameters that take GPUs: --gpu, --gpus, --arch, `verify-wheel --for`, and the argument of `dsrun gpus`.
GPU_PARAMETERS = {"gpu", "gpus", "arch", "target", "names"}
TRAINING = ("train", "prepare", "data")
# What bash would split or expand once more, and fish cut off.
PLAIN = re.compile(r"[\w./+-]+")

if TYPE_CHECKING:
    Item = CompletionItem[str]  # generic since click 8.4


def complete(cli: click.Command, variable: str, instruction: str) -> int:
    """Answer what the shell asks in `variable`: the script that it reads once, or the words that may follow.

    Nothing but these is written: stderr would appear in the line that is being typed."""
    shell, _, task = instruction.partition("_")
    found = get_completion_class(shell) if shell in SHELLS else None
    if found is None or task not in ("source", "complete"):
        named = ", ".join(f"{each}_source" for each in SHELLS)
        raise UsageError(f"{variable}={instruction} is not known", fix=f"use one of {named}")
    asked = found(cli, {}, "dsrun", variable)
    if task == "source":
        click.echo(asked.source(), nl=False)
        return 0
    # An unknown command, a folder that may not be read: nothing fits.
    with suppress(Exception):
        click.echo("\n".join(asked.format_completion(each) for each in _answers(asked)))
    return 0


def _answers(asked: ShellComplete) -> "Iterator[Item]":
    """The words that fit, as the shell wants them."""
    words, incomplete = asked.get_completion_args()
    if isinstance(asked, BashComplete) and words[-1:] == ["="]:  # bash takes --flag=value as three words
        words.pop()
    args = [word.replace("_", "-") if word.startswith("--") else word for word in words]
    flag, equals, value = incomplete.partition("=")
    joined = flag.startswith("-") and bool(equals)
    if joined:
        incomplete = f"{flag.replace('_', '-')}={value}"
    found = _program(asked, args, incomplete) if "--" in args else asked.get_completions(args, incomplete)
    for item in found:
        value = f"{flag}={item.value}" if joined and item.type == "plain" else item.value
        # Their scripts take the comma for the end of what is shown.
        meaning = re.sub(r"\s+", " ", item.help or "").replace(",", ";")
        yield CompletionItem(value, type=item.type, help=meaning or None)


def _program(asked: ShellComplete, args: list[str], incomplete: str) -> "list[Item]":
    """What fits behind the `--`: the flags of `train`, or files."""
    at = args.index("--")
    before, program = args[:at], args[at + 1 :]
    if before[:2] == ["config", "check"]:  # its program is the flags alone
        program = ["train", *program]
    started = program[1:] if program[:1] == ["dsrun"] else program
    if started and started[0] in TRAINING:
        return asked.get_completions(started, incomplete)
    # `dsrun launch` starts scripts first of all.
    if not started and (program or incomplete or before[:1] != ["launch"]) and "train".startswith(incomplete):
        return [CompletionItem("train")]
    return [CompletionItem(incomplete, type="file")]


def offered(command: click.Command, ctx: click.Context, incomplete: str) -> "list[Item]":
    """The commands of a group, or else the flags of a command, that begin so."""
    lines: Mapping[str, str] = {}
    if isinstance(command, LazyGroup):
        lines = {name: line for name, (_, line) in command.lazy.items()}
    elif isinstance(command, click.Group):
        lines = {name: each.get_short_help_str() for name, each in command.commands.items() if not each.hidden}
    found = [CompletionItem(name, help=line) for name, line in lines.items() if name.startswith(incomplete)]
    if not incomplete.startswith("-") and (incomplete or lines):
        return found
    either = ctx.token_normalize_func is not None or command.name in TRAINING
    for each in command.get_params(ctx):
        if isinstance(each, click.Option) and not each.hidden and not _is_given(each, ctx):
            for spellings in (each.opts, each.secondary_opts):
                found += _flag(spellings, incomplete, each.help, either=either)
    return found


def _is_given(option: click.Option, ctx: click.Context) -> bool:
    given = ctx.get_parameter_source(option.name or "") is click.core.ParameterSource.COMMANDLINE
    return given and not option.multiple


def _flag(spellings: list[str], incomplete: str, meaning: str | None, *, either: bool) -> "list[Item]":
    """A flag under the first of its names that begins so; with `either`, hyphens and underscores are the same."""
    typed = incomplete[2:]
    for name in sorted(spellings, key=lambda name: not name.startswith("--")):
        if name.startswith(incomplete):
            return [CompletionItem(name, help=meaning)]
        if either and name[2:].replace("_", "-").startswith(typed.replace("_", "-")) and name.startswith("--"):
            mark, other = ("_", "-") if "_" in typed else ("-", "_")
            return [CompletionItem("--" + name[2:].replace(other, mark), help=meaning)]
    return []


def set_types(command: click.Command) -> None:
    """Give parameters a type that completes what their placeholder names; these values are never used."""
    for each in command.params:
        placeholder = each.metavar or (each.name or "" if isinstance(each, click.Argument) else each.type.name).upper()
        if not isinstance(each.type, click.Choice | click.types.BoolParamType):
            takes_text = each.type in (click.STRING, click.UNPROCESSED)
            each.type = _Text(placeholder, gpus=takes_text and each.name in GPU_PARAMETERS)


class _Text(click.types.StringParamType):
    """Any text; `placeholder` says which."""

    def __init__(self, placeholder: str, *, gpus: bool = False) -> None:
        self.placeholder, self.gpus = placeholder, gpus

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[Item]":
        literal = [each for each in self.placeholder.split("|") if re.fullmatch(r"[a-z0-9]+", each)]
        found = [CompletionItem(each) for each in literal if each.startswith(incomplete)]
        if self.gpus:
            head, comma, typed = incomplete.rpartition(",")
            return found + [CompletionItem(head + comma + each) for each in gpu_names() if each.startswith(typed)]
        words = set(re.findall(r"[A-Z]+", self.placeholder))
        kind = next((kind for kind, named in KINDS.items() if named & words), None)
        if kind == "run":
            runs = sorted(str(each.parent) for each in Path("runs").glob("*/run.json"))
            found += [CompletionItem(each) for each in runs if each.startswith(incomplete) and PLAIN.fullmatch(each)]
            kind = None if found else "dir"
        return found if kind is None or found else [CompletionItem(incomplete, type=kind)]


def gpu_names() -> list[str]:
    """Names of GPUs as one word each: a100, a100-sxm4-80gb, rtx-4090."""
    from dsrun.hardware.gpu_facts import gpu_table

    names: dict[str, None] = {}
    for row in gpu_table():
        name = re.sub(r"^(tesla|geforce|quadro) |[()]", "", row.name.lower()).replace(" ", "-")
        if family := re.match(r"[a-z]{1,2}\d+[a-z]?(?=-(?:[a-z]|\d+gb))", name):
            names[family[0]] = None
        names[name] = None
    return list(names)


def training_flags() -> list[click.Parameter]:
    """The flags of `dsrun train`, as click's options."""
    from dsrun.recipe.flags import JSON_OR_PATH, all_flags

    found: list[click.Parameter] = []
    for flag in all_flags().values():
        names = [flag.shown, *("--" + alias.replace("_", "-") for alias in flag.aliases)]
        names += [name.replace("_", "-") for name in names if "_" in name]
        is_switch = flag.kind == "bool"
        placeholder = "FILE" if flag.name in JSON_OR_PATH else flag.metavar or ""
        if is_switch and flag.default is True:
            names = [f"{name}/--no{flag.shown[1:]}" if name == flag.shown else name for name in names]
        found.append(
            click.Option(
                [*names, flag.name],
                is_flag=is_switch,
                type=None if is_switch else click.Choice(flag.choices) if flag.choices else _Text(placeholder),
                multiple=flag.kind == "list",
                help=flag.help,
            )
        )
    return found
