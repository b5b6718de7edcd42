"""A command whose options are those of one dataclass, and which takes the program of a job after `--`."""

from __future__ import annotations

from typing import Any

import click

from dsrun.cli.options import HYPHENS, Command, field_option, lazy_callback, write_grouped_options
from dsrun.errors import UsageError
from dsrun.options import by_group


class RenderCommand(Command):
    """`dsrun NAME [OPTIONS] -- PROGRAM`; the words after `--` become `ctx.obj`, as click would drop the `--`."""

    def __init__(self, *, spec: type, callback: str, params: list[click.Parameter], **attributes: Any) -> None:
        own = [field_option(each, {}) for found in by_group(spec).values() for each in found]
        super().__init__(
            params=[*own, *params], callback=lazy_callback(callback), context_settings=HYPHENS, **attributes
        )
        self.titles = {each.name: title for title, found in by_group(spec).items() for each in found}

    def translated(self, own: list[str]) -> list[str]:
        """The words before `--` in this command's own options."""
        return list(own)  # click empties it

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, program = (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, [])
        ctx.obj = program
        try:
            return super().parse_args(ctx, self.translated(own))
        except click.UsageError as error:
            if "unexpected extra argument" not in error.message and "train" not in own:
                raise
            raise UsageError("write the program after --", fix=f"dsrun {self.name} --nodes 4 -- train …") from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_grouped_options(self, ctx, formatter, self.titles)
