"""`dsrun config check` and `dsrun config upgrade`: find and replace what is wrong or outdated in a DeepSpeed JSON."""

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from dsrun.cli.output import print_findings, print_json, write_output
from dsrun.errors import EXIT_FINDINGS, UsageError
from dsrun.findings.finding import Finding, errors_in, has_errors
from dsrun.hardware.gpu_facts import require_gpu
from dsrun.models.families import model_type_of
from dsrun.recipe.batch import trainer_values
from dsrun.recipe.compat.upgrade import upgrade_run_file
from dsrun.recipe.resolve import given_values
from dsrun.system.terminal.stderr import print_error, print_note
from dsrun.zero.lint.accelerate import KEYS, AccelerateFile, read_accelerate
from dsrun.zero.lint.codes import printable
from dsrun.zero.lint.config_check import check
from dsrun.zero.lint.upgrade import upgrade
from dsrun.zero.view import TrainingFlags

STDIN = "-"
YAML = (".yaml", ".yml")
LARGEST_FILE = 8 * 2**20


def check_file(*, file: str, flags: tuple[str, ...], against: str | None, form: str, **given: Any) -> int:
    target, world_size = given["target"], given["world_size"]
    text, name = read_text(file)
    shown = printable(name)
    known = _training_flags(flags, against, world_size)
    values = known.values if known else {}
    found = read_accelerate(text, shown) if file.endswith(YAML) else None
    if found is not None:
        text = read_text(found.named)[0] if found.named else json.dumps(found.config)
        target, world_size = "trainer", world_size or found.processes
    findings = check(
        text,
        file=printable(found.named) if found and found.named else shown,
        target=target,
        world_size=world_size or values.get("nproc"),
        against=known,
        model_type=model_type_of(values.get("model")),
        gpu=require_gpu(given["gpu"]) if given["gpu"] else None,
    )
    if found is not None:
        # Remarks are about keys that the YAML cannot have.
        made = findings if found.named else [found.placed(each) for each in findings if each.level != "info"]
        findings = [*found.findings, *made]
    if form == "json":
        print_json({"file": shown, "findings": findings})
    else:
        print_findings(findings, total=shown)
    return EXIT_FINDINGS if has_errors(findings) else 0


def read_text(file: str, what: str = "a DeepSpeed JSON file") -> tuple[str, str]:
    """The text of a file or of standard input, and the name it goes by. Raises UsageError when it cannot be read.

    `what` is expected there."""
    if file == STDIN and sys.stdin is None:
        raise UsageError("<stdin> is closed", fix=f"name {what}")
    shown = "<stdin>" if file == STDIN else file
    try:
        with nullcontext(sys.stdin.buffer) if file == STDIN else Path(file).open("rb") as opened:
            # A file of weights, or an endless device, is rejected before it fills the memory.
            content = opened.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            size = f"{LARGEST_FILE // 2**20} MiB"
            raise UsageError(f"{shown}: larger than {size}, so not a configuration", fix=f"name {what}")
        return content.decode("utf-8"), shown
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}", fix=f"name {what}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file}: not text in UTF-8", fix=f"name {what}, or save it as UTF-8") from None


def _training_flags(argv: tuple[str, ...], run_file: str | None, world_size: int | None) -> TrainingFlags | None:
    if not argv and run_file is None:
        return None
    given = given_values(argv, Path.cwd(), [], run_file)
    own = {name: each.value for name, each in given.items()}
    names = {"micro_batch_size": "per_device_train_batch_size", "global_batch_size": "train_batch_size"}
    places = {names.get(name, name): each.where for name, each in given.items()}
    return TrainingFlags(own | trainer_values(own, world_size or own.get("nproc")), frozenset(places), places)


def upgrade_file(file: str, output: str | None, in_place: bool, force: bool) -> int:
    accelerate = read_accelerate(*read_text(file)) if file.endswith(YAML) else None
    if accelerate is not None:
        if in_place:
            raise UsageError("--in-place: accelerate's YAML becomes a DeepSpeed JSON", fix="-o ds.json")
        upgraded, changes, left = _accelerate_file(accelerate, output)
    elif file.endswith(YAML):
        upgraded, changes, left = upgrade_run_file(Path(file), file)
    else:
        upgraded, changes, left = _deepspeed_config(file, output)
    if changes or not in_place:
        write_output(upgraded, file if in_place else output, force=force or in_place)
    for change in changes:
        print_note(change)
    for each in left:
        print_error(each)
    if not changes and not left:
        print_note(f"{file}: nothing to upgrade")
    return EXIT_FINDINGS if left else 0


def _accelerate_file(found: AccelerateFile, output: str | None) -> tuple[str, list[str], list[str]]:
    """The DeepSpeed JSON of accelerate's YAML, what became of its keys, and the errors that are left."""
    if found.named:
        raise UsageError(f"{found.file} names {found.named}", fix=f"dsrun config upgrade {found.named}")
    changes = [f"{found.place(name)}: is now {key}" for name, key in KEYS.items() if name in found.lines]
    if found.precision != "no":
        changes.append(f"{found.place('mixed_precision')}: start training with --{found.precision}")
    if found.processes:
        changes.append(f"{found.place('num_processes')}: start training with --nproc {found.processes} on one machine")
    text = json.dumps(found.meant, indent=2) + "\n"
    findings = check(text, file=output or found.file, target="trainer", world_size=found.processes)
    return text, changes, _left(findings)


def _deepspeed_config(file: str, output: str | None) -> tuple[str, list[str], list[str]]:
    text, shown = read_text(file)
    found = upgrade(text, file=shown)
    findings = check(found.text, file=output or shown)  # in the new text, lines are others
    return found.text, [str(each) for each in found.changes], _left(findings)


def _left(findings: list[Finding]) -> list[str]:
    """The errors that an upgrade leaves."""
    from dsrun.findings.show import in_english  # `dsrun config` imports this module, too

    return [in_english(each).line for each in errors_in(findings)]
