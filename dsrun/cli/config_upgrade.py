"""`dsrun config upgrade`: today's keys for a DeepSpeed JSON or a run.yaml of yesterday."""

from __future__ import annotations

from pathlib import Path

import click

from dsrun.cli.config_check import STDIN, read_text
from dsrun.cli.output import print_error, print_note, write_file
from dsrun.errors import EXIT_FINDINGS, UsageError

YAML = (".yaml", ".yml")


@click.command(name="upgrade", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file")
@click.option("-o", "--output", metavar="OUT", help="Write to this file instead of standard output.")
@click.option("--in-place", is_flag=True, help="Write to FILE itself.")
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
def command(file: str, output: str | None, in_place: bool, force: bool) -> int:
    """Rewrite the old keys of a DeepSpeed JSON (FILE, or -), or the Transformers 4 flags of a run.yaml.

    The new text goes to standard output, what changed and why to standard error. Exit code 3 when something that
    does not work is left.
    """
    if in_place and (output or file == STDIN):
        raise UsageError("--in-place goes with a file and without --output", fix="leave one of them out")
    upgraded, changes, left = _run_file(file) if file.endswith(YAML) else _deepspeed_config(file, output)
    target = file if in_place else output
    if target is None:
        click.echo(upgraded, nl=False)
    elif changes or not in_place:
        write_file(Path(target), upgraded.encode("utf-8"), force=force or in_place)
    for change in changes:
        print_note(change)
    for each in left:
        print_error(each)
    if not changes and not left:
        print_note(f"{file}: nothing to upgrade")
    return EXIT_FINDINGS if left else 0


def _run_file(file: str) -> tuple[str, list[str], list[str]]:
    from dsrun.recipe.runfile import upgrade_run_file

    found = upgrade_run_file(Path(file), file)
    return found.text, list(found.changes), list(found.left)


def _deepspeed_config(file: str, output: str | None) -> tuple[str, list[str], list[str]]:
    from dsrun.zero.lint.check import check
    from dsrun.zero.lint.upgrade import upgrade

    text, shown = read_text(file)
    found = upgrade(text, file=shown)
    findings = check(found.text, file=output or shown)  # in the new text, lines are others
    left = [f"{each.where}: {each.message}" for each in findings if each.level == "error"]
    return found.text, [str(each) for each in found.changes], left
