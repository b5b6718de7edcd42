"""check(): everything that is the matter with a DeepSpeed config, at once; refuse_errors(): the same before a run."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dsrun.findings.finding import Finding, errors_in, finding_of, text_of
from dsrun.messages import Message
from dsrun.models.families import family_of, overflow_in_fp16
from dsrun.zero.generate.presets import FROM_STEPS, error_after, memory_of_sum, takes_fp32_sum
from dsrun.zero.lint.batch import check_batch
from dsrun.zero.lint.codes import ConfigFindings, checks_of
from dsrun.zero.lint.optimizer import check_optimizer, check_scheduler
from dsrun.zero.lint.source import PATTERNS, JsonSource, NotJsonError, dotted, read
from dsrun.zero.lint.structure import check_reading, check_structure, leaves
from dsrun.zero.lint.trainer import check_against, check_auto
from dsrun.zero.rules import broken
from dsrun.zero.schema import blocks, shown
from dsrun.zero.view import AUTO, MISSING, ZERO, ConfigTarget, ConfigView, TrainingFlags, find_target

if TYPE_CHECKING:
    from dsrun.hardware.gpu_facts import GpuModel

WORDS = {"True": "true", "False": "false", "None": "null"}
HJSON = ("comment", "trailing_comma", "mark")
# What trains on wrong rows without an error is not tried all the same.
_NEVER_FORCED = ("parallelism",)


# What runs, but not as it is meant, beyond checks.toml: switches of stage 3, fp16's overflow, sums in bf16.
QUANTIZED = ("zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights")
HPZ = "zero_hpz_partition_size"
SUPER = "super_offload"


def _stage_3_only(view: ConfigView, report: ConfigFindings) -> None:
    zero = view.raw(ZERO)
    if not isinstance(zero, dict) or view.stage in (3, None):
        return
    for key in zero:
        name = blocks()[ZERO].spellings.get(key)
        if name is None or "deprecated" in blocks()[ZERO].keys[name]:
            continue
        if name.startswith("stage3_"):
            report.add("no_effect", (ZERO, key), stage=view.stage)
        elif (name in QUANTIZED and view.taken(ZERO, name) is True) or (
            name == HPZ and view.taken(ZERO, name) not in (0, 1)
        ):
            report.add("needs_stage", (ZERO, key), stage=view.stage)
    if isinstance(zero.get("offload_optimizer"), dict) and view.taken(f"{ZERO}.offload_optimizer", SUPER) is True:
        report.add("needs_stage", (ZERO, "offload_optimizer", SUPER), stage=view.stage)


def _half(view: ConfigView, report: ConfigFindings) -> None:
    if _is_on(view, "fp16") and view.model_type and family_of(view.model_type).overflows_in_fp16:
        overflow = Message(overflow_in_fp16("{family}"), family=view.model_type)
        found = Finding(level="warning", code="t5_fp16", message=overflow, fix=text_of("t5_fp16.bf16"))
        report.put(found, ("fp16", "enabled"))
    if _is_on(view, "bf16") and view.gpu is not None and not view.gpu.has_bf16:
        report.add("bf16_needs_ampere", ("bf16", "enabled"), name=view.gpu.name)


def _sums(view: ConfigView, report: ConfigFindings) -> None:
    """Gradients of many accumulation steps, summed in bf16."""
    steps = view.raw("gradient_accumulation_steps")
    if steps in (MISSING, AUTO) and view.flags is not None:
        steps = view.flags.values.get("gradient_accumulation_steps")
    place = view.offload("offload_optimizer") or "none"
    many = isinstance(steps, int) and steps >= FROM_STEPS
    unset = view.raw("data_types", "grad_accum_dtype") in (MISSING, None)
    if many and unset and _is_on(view, "bf16") and takes_fp32_sum(view.stage or 0, place):
        memory, path = memory_of_sum(None, None, place), ("gradient_accumulation_steps",)
        report.add("bf16_sum", path, steps=steps, error=error_after(steps), memory=memory)


def _is_on(view: ConfigView, name: str) -> bool:
    """Whether the file, or the flag behind its "auto" or missing block, switches the precision on."""
    if view.flags is not None and (view.is_auto(name, "enabled") or not view.has(name)):
        return bool(view.flags.values.get(name))
    return bool(view.precision(name))


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
    _stage_3_only,
    _half,
    _sums,
    checks_of("defaults"),
    check_against,
    checks_of("flags"),
)


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
    the run puts into the file. Raises nothing: text that is not JSON is a finding."""
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
    says what the parameters are); `notify` gets the warnings and the errors that `force` waives. Raises UsageError."""
    from dsrun.findings.show import in_english, refusal  # few files have any

    flags = TrainingFlags(dict(values), frozenset(places), dict(places))
    found = check(text, file=file, world_size=world_size, against=flags, model_type=model_type, added=added)
    errors = [each for each in errors_in(found) if not force or each.code in _NEVER_FORCED]
    for each in found:
        if each.level in ("warning", "error") and each not in errors:
            notify(f"--deepspeed: {in_english(each).line}")
    if errors:
        raise refusal(errors, before="--deepspeed: ")
