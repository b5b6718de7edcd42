"""`dsrun`: argv in, text out. Commands are imported when they are called, so that `--help` is fast."""

import os
import sys

import click

from dsrun import __version__
from dsrun.cli.options import LazyGroup
from dsrun.datafiles import toml_beside
from dsrun.errors import EXIT_INTERRUPTED, EXIT_USAGE, DsrunError, UsageError, nearest_names

COMPLETION_VARIABLE = "_DSRUN_COMPLETE"
"""In which a shell's completion says what it asks."""

COMMANDS: dict[str, tuple[str, str]] = toml_beside(__file__)
"""name -> (its file or "module:attribute", one line for --help)"""


def _show_version(ctx: click.Context, _param: click.Parameter, shown: bool) -> None:
    """Called after --format wherever that stands, which is eager."""
    form = ctx.meta["format"]
    if ctx.resilient_parsing or not (shown or form):
        return
    if not shown:
        raise UsageError(f"--format {form} without --version", fix="a command's own --format follows its name")
    if form == "json":
        from dsrun.cli.output import print_json
        from dsrun.system.host import VERSIONED, versions

        installed = versions()
        own = {"dsrun": __version__, "python": installed["python"]}
        system = os.uname()
        packages = {name: installed.get(name) for name in VERSIONED if name != "dsrun"}
        print_json({**own, "platform": f"{system.sysname} {system.release} {system.machine}", "packages": packages})
    else:
        click.echo(f"dsrun, version {__version__}")
    ctx.exit()


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), is_eager=True, expose_value=False,
    callback=lambda ctx, _, form: ctx.meta.update(format=form), help="format of --version",
)  # fmt: skip
@click.option("--version", is_flag=True, expose_value=False, callback=_show_version, help="show the version and exit")
def cli() -> None:
    """From a bare GPU node to a finished Hugging Face model under DeepSpeed."""


def main() -> None:
    """The console script. Every error is one line on stderr and the exit code its kind has."""
    if os.getpid() == 1:
        from dsrun.system.process.init import leave_init_behind

        leave_init_behind()
    debug = "--debug" in sys.argv
    _check_language(os.environ.get("DSRUN_LANG"))
    try:
        if asked := os.environ.get(COMPLETION_VARIABLE):
            from dsrun.cli.completion import complete  # a shell asks at each press of the Tab key

            sys.exit(complete(cli, COMPLETION_VARIABLE, asked))
        code = cli.main(sys.argv[1:] or ["--help"], prog_name="dsrun", standalone_mode=False)
    except DsrunError as error:
        if debug:
            raise
        _print_error(str(error))
        code = error.exit_code
    except click.ClickException as error:
        _print_click_error(error)
        code = EXIT_USAGE
    except OSError as error:
        from dsrun.system.files import DISK_FULL  # help is shown without it

        if debug or not (error.errno in DISK_FULL or (isinstance(error, PermissionError) and error.filename)):
            raise
        if error.errno in DISK_FULL:  # mostly behind `>`
            _print_error(f"writing failed: {error.strerror} (make room there, or write elsewhere)")
            # What is left in the buffer would fail again when Python ends, with a traceback.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        else:
            _print_error(f"{os.fsdecode(error.filename)}: permission denied (ask its owner for it)")
        code = EXIT_USAGE
    except (KeyboardInterrupt, click.Abort):
        code = _interrupted()
    except Exception as error:
        # What an import makes of Ctrl-C: a RuntimeError of Python's __set_name__, an ImportError of a library.
        if not _comes_of_ctrl_c(error):
            raise
        code = _interrupted()
    sys.exit(code if isinstance(code, int) else 0)


def _interrupted() -> int:
    _print_error("interrupted")
    return EXIT_INTERRUPTED


def _comes_of_ctrl_c(error: BaseException | None) -> bool:
    """Whether an exception was raised from KeyboardInterrupt, or while that was handled."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _check_language(name: str | None) -> None:
    if not name:
        return
    from dsrun.findings.translation import LANGUAGES, language_named
    from dsrun.system.terminal.stderr import print_note

    if language_named(name) is None:
        print_note(f"DSRUN_LANG={name} is not a language of dsrun: English is used ({' or '.join(LANGUAGES)})")


def _print_click_error(error: click.ClickException) -> None:
    """In one line what is wrong, and how the command is called where something is missing; help as it is."""
    if isinstance(error, click.NoSuchOption):
        near = nearest_names(error.option_name, error.possibilities or (), 1)
        error = click.NoSuchOption(error.option_name, possibilities=near, ctx=error.ctx)
    message, ctx = error.format_message(), getattr(error, "ctx", None)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(message, err=True)
        return
    if isinstance(error, click.MissingParameter) and ctx:
        usage = " ".join(ctx.get_usage().split()[1:])
        about = getattr(error.param, "help", None)
        message = f"{message.rstrip('.')}{f', {about}' if about else ''} (usage: {usage}; {ctx.command_path} --help)"
    _print_error(message)


def _print_error(message: str) -> None:
    from dsrun.system.terminal.stderr import print_error

    print_error(message)
