"""`dsrun config`: its options, which are those of ZeroSpec, and errors about them. What it does is in generate.py."""

import re
from itertools import takewhile

import click

from dsrun.cli.options import LazyGroup, declaration, field_option, lazy_callback, write_grouped_options
from dsrun.datafiles import toml_beside
from dsrun.errors import UsageError, nearest
from dsrun.options import by_group
from dsrun.zero.generate.spec import ZeroSpec, options

_TABLE = toml_beside(__file__)
LARGEST = 2**63


def whole(value: str) -> int:
    """A whole number, also as 5e8 or 500_000_000."""
    try:
        number: float = int(value)
    except ValueError:
        try:
            number = float(value)
        except ValueError:
            number = 0.5
    if number % 1 or not abs(number) < LARGEST:
        raise click.BadParameter(f"{value!r} is not a whole number below 2^63")
    return int(number)


_DEFAULT = click.core.ParameterSource.DEFAULT
TYPES = {"int": whole, "float": click.FLOAT, "tuple[float, ...]": click.FLOAT}


class ConfigGroup(LazyGroup):
    """Writes a configuration when called without a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            unknown = self._unknown(ctx, given)
            if not unknown:  # one letter of several, as in -ox
                raise UsageError(f"unknown flag {error.option_name}") from None
            raise _unknown_flags(unknown, self._flags(ctx)) from None

    def _flags(self, ctx: click.Context) -> set[str]:
        """Every flag, those that turn a switch off too."""
        return {flag for each in self.get_params(ctx) for flag in (*each.opts, *each.secondary_opts)}

    def _unknown(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The flags of a command line that the group does not have."""
        words = takewhile(lambda word: word not in self.lazy, args)
        names = [word.partition("=")[0] for word in words if re.match(r"--?[A-Za-z]", word)]
        return list(dict.fromkeys(name for name in names if name.replace("_", "-") not in self._flags(ctx)))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        found = super().resolve_command(ctx, args)
        given = [each for each in ctx.params if ctx.get_parameter_source(each) is not _DEFAULT]
        if given:
            name = next(each for each in self.params if each.name == given[0]).opts[0]
            raise UsageError(
                f"{name} does not go with `dsrun config {args[0]}`", fix=f"write flags of {args[0]} after its name"
            )
        return found

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options under the headings of the spec, then those of the command itself."""
        titles = {each.name: title for title, found in by_group(ZeroSpec).items() for each in found}
        titles |= {"offload": "Offload", "bf16": "Precision", "fp16": "Precision"}
        write_grouped_options(self, ctx, formatter, titles)
        self.format_commands(ctx, formatter)


def _unknown_flags(names: list[str], known: set[str]) -> UsageError:
    """The error for unknown flags, with the flag or the key that was meant by each."""
    hints = {name: _meant(name, known) for name in names}
    if len(names) == 1:
        return UsageError(f"unknown flag {names[0]}", fix=hints[names[0]] or "`dsrun config --help` lists all flags")
    return UsageError(
        "unknown flags " + ", ".join(f"{name} ({hint})" if hint else name for name, hint in hints.items())
    )


def _meant(name: str, known: set[str]) -> str | None:
    """What to write for an unknown flag; None where nothing is like it."""
    if once := _TABLE["instead"].get(name.replace("_", "-")):
        return f"use {once}"
    if match := nearest(name, known):
        return f"did you mean {match}?"
    from dsrun.zero.generate.config import nearest_key  # the whole generator, for a wrong flag only

    key = nearest_key(name.lstrip("-").replace("-", "_"))
    return f"--set {key}=VALUE" if key else None


_declared = declaration(_TABLE)
_declared["params"][:0] = [field_option(each, TYPES) for each in options().values()]
command = ConfigGroup(callback=lazy_callback("dsrun.cli.config.generate:run"), lazy=_TABLE["commands"], **_declared)
