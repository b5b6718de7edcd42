"""check(): everything that is the matter with a DeepSpeed config, at once; refuse_errors(): the same before a run."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dsrun.findings.finding import Finding, errors_in
from dsrun.findings.texts import finding_of, text_of
from dsrun.zero.lint.advice import check_advice
from dsrun.zero.lint.batch import check_batch
from dsrun.zero.lint.codes import ConfigFindings
from dsrun.zero.lint.optimizer import check_optimizer, check_scheduler
from dsrun.zero.lint.source import PATTERNS, JsonSource, NotJsonError, dotted, read
from dsrun.zero.lint.structure import check_reading, check_structure, leaves
from dsrun.zero.lint.table import checks_of
from dsrun.zero.lint.trainer import check_against, check_auto
from dsrun.zero.rules import broken
from dsrun.zero.schema import shown
from dsrun.zero.view import ConfigTarget, ConfigView, TrainingFlags, find_target

if TYPE_CHECKING:
    from dsrun.hardware.gpu_facts import GpuModel

CHECKS = (
    check_structure,
    check_auto,
    check_batch,
    check_reading,
    checks_of("reading"),
    checks_of("engine"),
    check_optimizer,
    checks_of("optimizer"),
    check_scheduler,
    checks_of("scheduler"),
    checks_of("trainer"),
    checks_of("advice"),
    check_advice,
    checks_of("defaults"),
    check_against,
)
WORDS = {"True": "true", "False": "false", "None": "null"}
HJSON = ("comment", "trailing_comma", "mark")
# What trains on wrong rows without an error is not tried all the same.
_NEVER_FORCED = ("parallelism",)


def check(
    text: str,
    *,
    file: str = "ds.json",
    target: ConfigTarget | None = None,
    world_size: int | None = None,
    against: TrainingFlags | None = None,
    model_type: str | None = None,
    gpu: "GpuModel | None" = None,
    added: Mapping[str, Any] | None = None,
) -> list[Finding]:
    """Everything that is the matter with a DeepSpeed config, in the order of the file.

    `text` is the JSON and `file` its name in the findings. `target` says who reads it: "trainer" (the HF Trainer,
    which fills "auto") or "deepspeed" (DeepSpeed itself, in Hjson); None finds out: a file with an "auto" that the
    Trainer fills is the Trainer's, and any other is held to what DeepSpeed refuses, with warnings for what the
    Trainer does. `world_size` counts ranks; `against` are the training flags in force, `model_type` is that of the
    model's config.json, `gpu` a row of build/gpus.toml. `added` are values by their keys, blocks joined by dots, that
    the run puts into the file. Raises nothing: text that is not JSON is a finding.
    """
    if against is not None:
        target = "trainer"
    try:
        source = read(text)
    except NotJsonError as error:
        report = ConfigFindings(JsonSource(None), file)
        report.add("not_json", (), position=error.position, fix=error.fix, message=error.message)
        return report.findings()
    report = ConfigFindings(source, file)
    _check_text(source, target, report)
    if not isinstance(source.value, dict):
        value = text_of("expected.list") if isinstance(source.value, list) else shown(source.value)
        report.add("not_an_object.file", (), value=value)
        return report.findings()
    config = _with_added(source.value, added or {})
    view = ConfigView(config, find_target(config, target), target is not None, world_size, against, model_type, gpu)
    for each in CHECKS:
        each(view, report)
    for rule, message, fix in broken(view):
        report.put(Finding(level=rule.level, code=rule.code, message=message, fix=fix), tuple(rule.key.split(".")))
    _name_placeholders(source.value, report)
    return report.findings()


def _with_added(config: dict[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """The config with what is added; a value that stands in the file holds, and so does its lack of a block."""
    config = dict(config)
    for dotted_key, value in added.items():
        block, _, key = dotted_key.rpartition(".")
        if not block:
            config.setdefault(key, value)
        elif isinstance(config.get(block), dict):
            config[block] = {key: value, **config[block]}
    return config


def _check_text(source: JsonSource, target: ConfigTarget | None, report: ConfigFindings) -> None:
    for issue in source.issues:
        first = issue.text.splitlines()[0] if issue.kind == "comment" else issue.text
        tolerated = issue.kind == "number_word" or (target == "deepspeed" and issue.kind in HJSON)
        report.add(
            f"json_extension.{issue.kind}",
            (),
            position=issue.position,
            level="warning" if tolerated else "error",
            text=first if len(first) <= 40 or issue.kind != "comment" else first[:37] + "…",
            lower=WORDS.get(issue.text),
            problem=text_of("json_extension.comment.problem"),
        )
    for duplicate in source.duplicates:
        report.add("duplicate_key", duplicate.path, position=duplicate.position, line=duplicate.first.line)


def _name_placeholders(config: dict[str, Any], report: ConfigFindings) -> None:
    """Call the placeholders of a config what they are, where an error complains about one; warn of the others."""
    for path, value in leaves(config):
        if not isinstance(value, str) or not PATTERNS["placeholder"].fullmatch(value.strip()):
            continue
        place, wrong = f"{dotted(path)} (", False
        named = finding_of("placeholder", key=path[-1], value=shown(value))
        for index, (position, finding) in enumerate(report.rows):
            if finding.level == "error" and finding.where.startswith(place):
                report.rows[index] = (position, replace(finding, message=named.message, fix=named.fix))
                wrong = True
        if not wrong:
            report.put(named, path)


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
    from dsrun.findings.show import in_english, refusal  # few files have any

    flags = TrainingFlags(dict(values), frozenset(places), dict(places))
    found = check(text, file=file, world_size=world_size, against=flags, model_type=model_type, added=added)
    errors = [each for each in errors_in(found) if not force or each.code in _NEVER_FORCED]
    for each in found:
        if each.level in ("warning", "error") and each not in errors:
            notify(f"--deepspeed: {in_english(each).line}")
    if errors:
        raise refusal(errors, before="--deepspeed: ")
