"""The linter before a training run: errors stop it in one line, warnings are notes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dsrun.findings.finding import errors_in
from dsrun.findings.show import in_english, refusal
from dsrun.zero.lint.check import check
from dsrun.zero.view import Flags

# What trains on wrong rows without an error is not tried all the same.
_NEVER_FORCED = ("parallelism",)


def refuse_errors(
    text: str,
    file: str,
    *,
    notify: Callable[[str], None],
    added: Mapping[str, Any],
    values: Mapping[str, Any],
    places: Mapping[str, str],
    world_size: int | None,
    model_type: str | None,
    force: bool = False,
) -> None:
    """Check the DeepSpeed JSON `text` of `file` for a run with these training arguments (`dsrun.recipe.deepspeed_file`
    says what the parameters are); `notify` gets the warnings and the errors that `force` waives. Raises UsageError.
    """
    flags = Flags(dict(values), frozenset(places), dict(places))
    found = check(text, file=file, world_size=world_size, against=flags, model_type=model_type, added=added)
    errors = [each for each in errors_in(found) if not force or each.code in _NEVER_FORCED]
    for each in found:
        if each.level in ("warning", "error") and each not in errors:
            notify(f"--deepspeed: {in_english(each).line}")
    if errors:
        raise refusal(errors, before="--deepspeed: ")
