"""What several commands declare: --format, --debug, options made of dataclass fields, groups that load lazily."""

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dsrun.datafiles import toml_beside
from dsrun.errors import UsageError, nearest

if TYPE_CHECKING:
    from dataclasses import Field

    from click.shell_completion import CompletionItem

Declared = TypeVar("Declared", bound=Callable[..., Any] | click.Command)
# Shown by no command: main() reads it from argv.
DEBUG = click.option("--debug", is_flag=True, hidden=True, expose_value=False)
# For options that may be written with underscores too.
HYPHENS = {"token_normalize_func": lambda name: name.replace("_", "-")}
_METAVARS = {"int": "N", "float": "X"}


def imported(name: str) -> Any:
    """What "module:attribute" names."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def lazy_callback(name: str, file: str = "") -> Callable[..., Any]:
    """A command's callback whose module ("module:attribute") is imported when it runs: help needs the options only.
    What `file` has `refused` is checked first."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if file:
            imported("dsrun.refusals:Refusals")(__file__, file).check("refused", **kwargs)
        return imported(name)(*args, **kwargs)

    return call


class _Format(click.Choice[str]):
    """Takes "table" for "text", its name for commands that print tables until dsrun 0.1."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert("text" if value == "table" else value, param, ctx)


def format_option(function: Declared) -> Declared:
    """Declare --format, passed as `form`, and --debug."""
    shown = click.option(
        "--format", "form", type=_Format(["text", "json"]), default="text", show_default=True,
        help="format of the output",
    )  # fmt: skip
    return shown(DEBUG(function))


def _handed_to(name: str) -> Callable[..., Any]:
    """A callback that leaves what is given as it is, once "module:function" has got it, which may raise UsageError."""

    def call(_ctx: click.Context, _param: click.Parameter, value: Any) -> Any:
        if value:
            imported(name)(value)
        return value

    return call


class _Context(click.Context):
    """Measures the terminal as click does, without shutil, which brings every compression: a tenth of `--help`."""

    def make_formatter(self) -> click.HelpFormatter:
        from dsrun.system.terminal.display import columns_of  # for --help alone

        return self.formatter_class(width=max(min(columns_of(sys.__stdout__), 80) - 2, 50))


class Command(click.Command):
    """A command whose --help is described as every other option is: lower case, no full stop. Its options are shown
    under the `titles` of their names, where it has any."""

    context_class = _Context

    def __init__(self, *args: Any, titles: Mapping[str, str] | None = None, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.titles = titles or {}

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        option = super().get_help_option(ctx)
        if option:
            option.help = "show this message and exit"
        return option

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # for completion alone
            imported("dsrun.cli.completion:set_types")(self)
        else:
            _refuse_two_values(self.params, args)
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem[str]]":
        found: list[CompletionItem[str]] = imported("dsrun.cli.completion:offered")(self, ctx, incomplete)
        return found

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.titles:
            write_grouped_options(self, ctx, formatter, self.titles)
        else:
            super().format_options(ctx, formatter)


def _refuse_two_values(params: Sequence[click.Parameter], args: Sequence[str]) -> None:
    """Raise UsageError where an option has other values under other of its names. Under one name the last holds, by
    which scripts put a user's flags behind their own."""
    words = list(takewhile(lambda word: word != "--", args))
    pairs = [(*word.partition("="), after) for word, after in zip(words, [*words[1:], ""], strict=False)]
    for each in params:
        if not isinstance(each, click.Option) or each.is_flag or each.multiple or len(each.opts) < 2:
            continue
        given = {name: value if sign else after for name, sign, value, after in pairs if name in each.opts}
        if len(set(given.values())) > 1:
            what = " and ".join(f"{name} {value}" for name, value in given.items())
            raise UsageError(f"{what} are one option with two values", fix="remove one of them")


def declared_in(file: str) -> Command:
    """The command that a TOML file below this folder declares: what `declaration` takes, and its `callback` and `class`
    as "module:attribute"; `shared` options are "format" or "debug"; `refused` are rows of dsrun/refusals.py over the
    values of the options; the `commands` of a group are files like this."""
    content = toml_beside(__file__, file)
    attributes = declaration(content)
    if "callback" in content:
        attributes["callback"] = lazy_callback(content["callback"], file if "refused" in content else "")
    if "commands" in attributes:
        attributes["commands"] = [declared_in(each) for each in attributes["commands"]]
    made: Command = imported(content.get("class", "dsrun.cli.options:Command"))(**attributes)
    for name in content.get("shared", ()):
        {"format": format_option, "debug": DEBUG}[name](made)
    return made


def declaration(content: Mapping[str, Any]) -> dict[str, Any]:
    """What the content of a TOML file declares, as Command takes it.

    Arguments and options are as click takes them, but for a `path`, the bounds of an `int` or a `float`, `choices`, the
    "module:function" a value is `accepted_by`, and the `group` of an option in help. A `type`, `callback`, `default` or
    `choices` may be "module:attribute". With `underscores`, options may be written with these too."""
    titles: dict[str, str] = {}
    params: list[click.Parameter] = []
    for kind, made in (("arguments", click.Argument), ("options", click.Option)):
        for row in content.get(kind, ()):
            title = row.pop("group", None)
            params.append(made(**_as_click_takes(row)))
            titles |= {params[-1].name or "": title} if title else {}
    settings = HYPHENS if content.get("underscores") else {}
    return {"context_settings": settings, "params": params, "titles": titles, **content["command"]}


def _as_click_takes(row: dict[str, Any]) -> dict[str, Any]:
    for key in ("type", "callback", "default", "choices"):
        if ":" in str(row.get(key)):
            row[key] = imported(row[key])
    if "/" in row["param_decls"][0]:
        row.setdefault("default", None)  # neither on nor off, which TOML cannot say
    if "choices" in row:
        row["type"] = click.Choice(row.pop("choices"), case_sensitive=row.pop("case_sensitive", True))
    if "path" in row:
        from pathlib import Path  # slow, and few commands have one

        row["type"] = click.Path(path_type=Path, **row.pop("path"))
    if "accepted_by" in row:
        row["callback"] = _handed_to(row.pop("accepted_by"))
    for kind, bounded in (("int", click.IntRange), ("float", FiniteRange)):
        if kind in row:
            row["type"] = bounded(**row.pop(kind))
    return row


class FiniteRange(click.FloatRange):
    """Rejects NaN, which click's comparison with the limits does not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


class OptionGroup(Command, click.Group):
    command_class = Command


class LazyGroup(OptionGroup):
    """A group that knows its commands as name -> (file or "module:attribute", summary), and loads only the one that
    runs."""

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        place = self.lazy[cmd_name][0]
        command: click.Command = imported(place) if ":" in place else declared_in(place)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.lazy and not args[0].startswith("-"):
            near = nearest(args[0], self.lazy)
            hint = f"did you mean `{ctx.command_path} {near}`?" if near else f"commands: {', '.join(self.lazy)}"
            raise click.UsageError(f"there is no command {args[0]!r} ({hint})")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self.lazy.items()])


def field_option(each: "Field[Any]", types: Mapping[str, Any]) -> click.Option:
    """The command-line option of a field that `dsrun.options.described` has filled. `types` maps kinds of values to
    click's types; other values stay strings."""
    from dsrun.options import flag_of, value_kind

    meta, kind, flag = each.metadata, value_kind(each), flag_of(each)
    if kind == "bool":
        return click.Option([f"{flag}/--no-{flag[2:]}", each.name], default=each.default, help=meta["help"])
    several = kind == "tuple[str, ...]"
    shown = each.default not in (None, (), "none")
    return click.Option(
        [
            *([f"-{meta['short']}"] if "short" in meta else []),
            *(f"--{name.replace('_', '-')}" for name in (flag[2:], *meta["aliases"])),
            each.name,
        ],
        type=click.Choice(meta["choices"]) if meta["choices"] else types.get(kind, click.STRING),
        default=each.default if shown else None,
        show_default=shown,
        metavar=meta["metavar"] or _METAVARS.get(kind),
        multiple=several,
        nargs=2 if kind == "tuple[float, ...]" else 1,
        help=meta["help"] + ("; may be repeated" if several else ""),
    )


def write_grouped_options(
    command: click.Command, ctx: click.Context, formatter: click.HelpFormatter, titles: Mapping[str, str]
) -> None:
    """Write the options under the headings that `titles` gives to their names, then the others under "Output"."""
    groups: dict[str, list[tuple[str, str]]] = {title: [] for title in (*titles.values(), "Output")}
    for each in command.get_params(ctx):
        if record := each.get_help_record(ctx):
            groups[titles.get(each.name or "", "Output")].append(record)
    for title, records in groups.items():
        with formatter.section(title):
            formatter.write_dl(records)


class RenderCommand(Command):
    """A command with the options of one dataclass, and after `--` the program of a job: its words become `ctx.obj`, as
    click would drop the `--`."""

    def __init__(self, *, spec: str, noun: str, section: str, params: list[click.Parameter], **attributes: Any) -> None:
        """`spec` is the dataclass as "module:attribute", `noun` what it writes, `section` the part of run.yaml with
        these options; `refused` are patterns of words before `--` that are none, each with `message` and `fix`."""
        from dsrun.options import by_group

        self.refused: Sequence[Mapping[str, str]] = attributes.pop("refused", ())
        groups = by_group(imported(spec))
        own = [
            *(field_option(each, {}) for found in groups.values() for each in found),
            click.Option(
                ["-o", "--output"],
                metavar="FILE",
                # As kubectl and others write it: a file of that name would leave the other end of a pipe empty.
                callback=lambda _ctx, _param, name: None if name == "-" else name,
                help=f"write the {noun} into this file instead of stdout",
            ),
            click.Option(["--config"], metavar="FILE", help=f"run.yaml to run, and whose {section} section applies"),
        ]
        super().__init__(params=[*own, *params], **attributes)
        self.titles = {each.name: title for title, found in groups.items() for each in found}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, program = (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, [])
        ctx.obj = program
        for word, row in ((word, row) for word in own for row in self.refused):
            if re.fullmatch(row["pattern"], word):
                raise UsageError(f"{word}: {row['message']}", fix=row["fix"])
        try:
            return super().parse_args(ctx, list(own))  # which click empties
        except click.UsageError as error:
            if "unexpected extra argument" not in error.message and "train" not in own:
                raise self._of_training(error) from None
            raise UsageError("write the program after --", fix=f"dsrun {self.name} --nodes 4 -- train …") from None

    def _of_training(self, error: click.UsageError) -> Exception:
        """Where a flag of training goes, if the option that there is not is one; else the error as it is."""
        from dsrun.recipe.compat.removed import vocabulary  # for a wrong option only

        flag = error.option_name if isinstance(error, click.NoSuchOption) else ""
        if flag.lstrip("-").replace("-", "_") not in vocabulary():
            return error
        return UsageError(f"{flag} is a flag of dsrun train", fix=f"write it after --: -- train {flag} …")
