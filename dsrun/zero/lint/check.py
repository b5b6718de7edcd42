"""check(): everything that is the matter with a DeepSpeed config, at once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dsrun.findings.finding import Finding, Level
from dsrun.messages import Message
from dsrun.zero.lint.advice import check_advice
from dsrun.zero.lint.batch import check_batch
from dsrun.zero.lint.codes import Findings
from dsrun.zero.lint.engine import check_engine
from dsrun.zero.lint.optimizer import check_optimizer, check_scheduler
from dsrun.zero.lint.reading import check_reading
from dsrun.zero.lint.source import NotJsonError, Source, SyntaxIssue, dotted, read
from dsrun.zero.lint.structure import check_structure, leaves
from dsrun.zero.lint.trainer import check_against, check_auto, check_trainer
from dsrun.zero.rules import broken
from dsrun.zero.schema import shown
from dsrun.zero.view import ConfigView, Flags, Target, find_target

if TYPE_CHECKING:
    from dsrun.hardware.gpus import GpuModel

CHECKS = (
    check_structure,
    check_auto,
    check_batch,
    check_reading,
    check_engine,
    check_optimizer,
    check_scheduler,
    check_trainer,
    check_advice,
    check_against,
)
ISSUES = {
    "comment": (Message("comments are not JSON"), Message("remove it")),
    "trailing_comma": (Message("a comma after the last member is not JSON"), Message("remove the comma")),
    "python_word": (Message("{text} is Python, not JSON"), Message("write {lower}")),
    "number_word": (
        Message("{text} is not JSON: Python reads it, DeepSpeed's own reader takes it for a text"),
        Message("write a number"),
    ),
    "mark": (
        Message("the file begins with a byte order mark, which is not JSON"),
        Message("save it as UTF-8 without BOM"),
    ),
    "single_quotes": (Message("single quotes are not JSON"), Message('write {text} with double quotes, "…"')),
}
# Of a template that nobody has filled in: "<batch size>", {{ lr }}, ${MICRO}, YOUR_TEAM, /path/to/nvme.
REPLACE = Message("replace it with a value")
PLACEHOLDER_TEXT = re.compile(
    r"<[^<>]+>|\{\{.*\}\}|\$\{?\w+\}?|%\(?\w+\)?[sd]?|\.\.\.|…|__[A-Za-z]\w*__"
    r"|(TODO|FIXME|TBD|XXX+|CHANGE_?ME|REPLACE_?ME)\b.*|(?i:your)[_ -].*|MY_[A-Z_]+|.*\bpath/to/.*",
    re.DOTALL,
)
WORDS = {"True": "true", "False": "false", "None": "null"}
HJSON = ("comment", "trailing_comma", "mark")


def check(
    text: str,
    *,
    file: str = "ds.json",
    target: Target | None = None,
    world_size: int | None = None,
    against: Flags | None = None,
    model_type: str | None = None,
    gpu: GpuModel | None = None,
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
        report = Findings(Source(None), file)
        report.at(error.position, "error", "not_json", Message("not JSON: {message}", message=error.message), error.fix)
        return report.findings()
    report = Findings(source, file)
    _check_text(source, target, report)
    if not isinstance(source.value, dict):
        report.error(
            "not_an_object", (), Message("the file contains {value}, not an object {…}", value=_noun(source.value))
        )
        return report.findings()
    config = _with_added(source.value, added or {})
    view = ConfigView(config, find_target(config, target), target is not None, world_size, against, model_type, gpu)
    for each in CHECKS:
        each(view, report)
    for rule, message, fix in broken(view):
        report.add(rule.level, rule.code, tuple(rule.key.split(".")), message, fix)
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


def _noun(value: Any) -> str:
    return Message("a list") if isinstance(value, list) else shown(value)


def _check_text(source: Source, target: Target | None, report: Findings) -> None:
    for issue in source.issues:
        message, fix = ISSUES[issue.kind]
        tolerated = issue.kind == "number_word" or (target == "deepspeed" and issue.kind in HJSON)
        level: Level = "warning" if tolerated else "error"
        fields = {"text": issue.text, "lower": WORDS.get(issue.text, "")}
        report.at(
            issue.position, level, "json_extension", _cut(message, fields, issue), Message(fix.template, **fields)
        )
    for duplicate in source.duplicates:
        name = dotted(duplicate.path)
        report.at(
            duplicate.position,
            "error",
            "duplicate_key",
            Message(
                "{key} is given twice, first in line {line}: DeepSpeed rejects the file, and the Trainer takes "
                "the last",
                key=duplicate.path[-1],
                line=duplicate.first.line,
            ),
            Message("remove one of the two"),
            name=name,
        )


def _cut(message: Message, fields: Mapping[str, str], issue: SyntaxIssue) -> Message:
    """What is wrong, with the beginning of a comment."""
    if issue.kind != "comment":
        return Message(message.template, **fields)
    first = issue.text.splitlines()[0]
    return Message("{problem}: {text}", problem=message, text=first if len(first) <= 40 else first[:37] + "…")


def _is_placeholder(value: Any) -> bool:
    """Whether a value stands for one that is still to be written."""
    return isinstance(value, str) and PLACEHOLDER_TEXT.fullmatch(value.strip()) is not None


def _name_placeholders(config: dict[str, Any], report: Findings) -> None:
    """Call the placeholders of a config what they are, where an error complains about one; warn of the others."""
    for path, value in leaves(config):
        if not _is_placeholder(value):
            continue
        place, wrong = f"{dotted(path)} (", False
        message = Message("{key} is {value}, a placeholder", key=path[-1], value=shown(value))
        for index, (position, finding) in enumerate(report.rows):
            if finding.level == "error" and finding.where.startswith(place):
                report.rows[index] = (position, replace(finding, message=message, fix=REPLACE))
                wrong = True
        if not wrong:
            report.warning("placeholder", path, message, REPLACE)
