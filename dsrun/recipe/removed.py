"""Flags that Transformers 5 no longer has, and what becomes of each.

A row is a translation into a flag of today, a reason why leaving it out changes nothing, or a refusal that
names the replacement. The rows come from comparing the TrainingArguments of Transformers 4 and 5.23 and the
arguments of older releases of the example scripts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from dsrun.errors import UsageError
from dsrun.recipe.flags import SECRETS, Flag, Kind, by_spelling
from dsrun.recipe.parsed_value import ParsedValue, Rejected, check_choice, shown_value

SAME = object()


@dataclass(frozen=True)
class Becomes:
    """The flag that takes over, with the same value or a fixed one; weak: gives way to that flag."""

    flag: str
    value: Any = SAME
    weak: bool = False


@dataclass(frozen=True)
class Ignored:
    """Leaving the flag out changes nothing, and why."""

    reason: str


@dataclass(frozen=True)
class Refused:
    """There is no equivalent: why, and what to write instead."""

    reason: str
    fix: str

    @property
    def advice(self) -> str:
        """The fix as a sentence."""
        return f"write {self.fix}" if self.fix.startswith("--") else self.fix


@dataclass(frozen=True)
class When:
    """A case of a value: its name for the reference (empty: every other value), and the test."""

    label: str
    test: Callable[[Any], bool]


def equal(value: Any) -> When:
    """The case of exactly this value."""
    return When(shown_value("", value), lambda given: given == value)


Outcome = Becomes | Ignored | Refused
ANY = When("", lambda _: True)
WAS_DEFAULT = Ignored("that was its default")


@dataclass(frozen=True)
class Removed:
    """One row: the old flag, what it took, and the cases of its value in the order they are tried."""

    name: str
    kind: Kind
    cases: tuple[tuple[When, Outcome], ...]

    def outcome(self, value: Any) -> Outcome:
        """What becomes of this value."""
        return next(outcome for when, outcome in self.cases if when.test(value))


def renamed(name: str, kind: Kind, flag: str) -> Removed:
    """The old name of a flag that takes the same values."""
    return Removed(name, kind, ((ANY, Becomes(flag)),))


def either(name: str, kind: Kind, when: When, outcome: Outcome, otherwise: Outcome) -> Removed:
    """One outcome for a case of its values, another for the rest."""
    return Removed(name, kind, ((when, outcome), (ANY, otherwise)))


def switch(name: str, on_true: Outcome) -> Removed:
    """A boolean that was off by default."""
    return either(name, "bool", equal(True), on_true, WAS_DEFAULT)


def ignored(name: str, kind: Kind, reason: str) -> Removed:
    """A flag without an effect on a training run here, whatever its value."""
    return Removed(name, kind, ((ANY, Ignored(reason)),))


def refused(name: str, kind: Kind, reason: str, fix: str) -> Removed:
    """A flag with an effect that cannot be had by another flag alone."""
    return Removed(name, kind, ((ANY, Refused(reason, fix)),))


AUTOCAST = Ignored("PyTorch's autocast is the only backend")
SAFETENSORS = "weights are always saved as safetensors"
APEX = Refused("NVIDIA Apex is no longer used", "--bf16, or --fp16")
FSDP_INSTEAD = "--zero 3, or for FSDP itself"

ROWS = (
    # Weak: the example scripts resumed from an explicit --resume_from_checkpoint even with this flag.
    switch("overwrite_output_dir", Becomes("resume", "never", weak=True)),
    renamed("evaluation_strategy", "str", "eval_strategy"),
    switch("evaluate_during_training", Becomes("eval_strategy", "steps")),
    # TrainingArguments.get_warmup_steps takes a value below 1 as a ratio of all steps, so 1.0 would be one
    # step. Weak: Transformers 4 used warmup_steps when both were given.
    either(
        "warmup_ratio",
        "float",
        When("0 ≤ R < 1", lambda ratio: 0 <= ratio < 1),
        Becomes("warmup_steps", weak=True),
        Refused("--warmup_steps takes a ratio from 0 to below 1", "--warmup_steps N with N in steps"),
    ),
    renamed("logging_dir", "str", "tensorboard_dir"),
    switch("group_by_length", Becomes("train_sampling_strategy", "group_by_length")),
    switch("no_cuda", Becomes("use_cpu", True)),
    ignored("use_mps_device", "bool", "the device is found without it"),
    renamed("xpu_backend", "str", "ddp_backend"),
    renamed("per_gpu_train_batch_size", "int", "per_device_train_batch_size"),
    renamed("per_gpu_eval_batch_size", "int", "per_device_eval_batch_size"),
    switch("adafactor", Becomes("optim", "adafactor")),
    either("fp16_backend", "str", equal("apex"), APEX, AUTOCAST),
    either("half_precision_backend", "str", equal("apex"), APEX, AUTOCAST),
    ignored("fp16_opt_level", "str", "it was a setting of NVIDIA Apex"),
    either(
        "save_safetensors",
        "bool",
        equal(False),
        Refused(SAFETENSORS, "drop it; pickled weights are no longer written"),
        Ignored(SAFETENSORS),
    ),
    switch("include_inputs_for_metrics", Becomes("include_for_metrics", ["inputs"])),
    ignored("include_tokens_per_second", "bool", "tokens per second are always logged"),
    renamed("push_to_hub_token", "str", "hub_token"),
    renamed("push_to_hub_model_id", "str", "hub_model_id"),
    refused("push_to_hub_organization", "str", "a Hub repository has one name", "--hub_model_id ORGANISATION/NAME"),
    either(
        "use_auth_token",
        "bool|str",
        When("true or false", lambda value: isinstance(value, bool)),
        Ignored("the stored login is used anyway"),
        Becomes("token"),
    ),
    ignored("low_cpu_mem_usage", "bool", "weights are always loaded that way"),
    ignored("use_legacy_prediction_loop", "bool", "there is one prediction loop"),
    ignored("ray_scope", "str", "it was a setting of hyperparameter searches"),
    renamed("torchdynamo", "str", "torch_compile_backend"),
    switch("jit_mode_eval", Refused("TorchScript is no longer used", "--torch_compile")),
    ignored("use_ipex", "bool", "its kernels are part of PyTorch"),
    either(
        "past_index",
        "int",
        When("below 0", lambda value: value < 0),
        WAS_DEFAULT,
        Refused("the Trainer no longer carries a memory from batch to batch", "drop it"),
    ),
    refused("tpu_num_cores", "int", "dsrun trains on GPUs and CPUs", "--nproc N for N workers"),
    switch("tpu_metrics_debug", Refused("dsrun trains on GPUs and CPUs", "drop it")),
    either(
        "mp_parameters",
        "str",
        When("empty", lambda value: not value),
        WAS_DEFAULT,
        Refused("SageMaker model parallelism is gone", "--zero 3"),
    ),
    refused("sharded_ddp", "str", "FairScale is gone", "--zero 2 for simple and zero_dp_2, --zero 3 for zero_dp_3"),
    refused(
        "fsdp_min_num_params",
        "int",
        "it is a key of --fsdp_config",
        f"{FSDP_INSTEAD} --fsdp_config '{{\"min_num_params\": N}}'",
    ),
    refused(
        "fsdp_transformer_layer_cls_to_wrap",
        "str",
        "it is a key of --fsdp_config",
        f'{FSDP_INSTEAD} --fsdp_config \'{{"transformer_layer_cls_to_wrap": ["NAME"]}}\'',
    ),
    refused(
        "dispatch_batches",
        "bool",
        "it is a key of --accelerator_config",
        "--accelerator_config '{\"dispatch_batches\": true}'",
    ),
    refused(
        "split_batches",
        "bool",
        "it is a key of --accelerator_config",
        "--accelerator_config '{\"split_batches\": true}'",
    ),
    # Older releases of the example scripts.
    renamed("max_val_samples", "int", "max_eval_samples"),
    renamed("max_test_samples", "int", "max_predict_samples"),
    renamed("eval_beams", "int", "num_beams"),
    renamed("src_lang", "str", "source_lang"),
    renamed("tgt_lang", "str", "target_lang"),
    renamed("train_data_file", "str", "train_file"),
    renamed("eval_data_file", "str", "validation_file"),
)


@cache
def table() -> dict[str, Removed]:
    """The rows by the name of the old flag."""
    return {row.name: row for row in ROWS}


@cache
def vocabulary() -> dict[str, Flag]:
    """Every spelling that is understood: the flags of today and, as flags of their own, the removed ones."""
    old = {
        row.name: Flag(name=row.name, owner="hf", key=row.name, kind=row.kind, default=None, optional=True)
        for row in ROWS
    }
    return old | by_spelling()


def translate(given: ParsedValue, present: Collection[str]) -> tuple[ParsedValue | None, str | None]:
    """What a given value means today, and the notice that says so.

    `present` names the flags given beside it. A flag of today comes back as it is. Raises UsageError for a
    value without an equivalent.
    """
    row = table().get(given.name)
    if row is None:
        return given, None
    opening = f"{given.where} is no longer a flag"
    outcome = row.outcome(given.value)
    if isinstance(outcome, Refused):
        raise UsageError(f"{opening}: {outcome.reason}", fix=outcome.advice)
    if isinstance(outcome, Ignored):
        return None, f"{opening}: ignored, {outcome.reason}"
    flag = by_spelling()[outcome.flag]
    if outcome.weak and flag.name in present:
        return None, f"{opening}: gives way to {flag.shown}"
    return _taken_over(given, flag, outcome, opening)


def _taken_over(given: ParsedValue, flag: Flag, outcome: Becomes, opening: str) -> tuple[ParsedValue, str]:
    value = given.value if outcome.value is SAME else outcome.value
    shown = "" if flag.name in SECRETS else f" {shown_value(flag.name, value)}"
    if flag.choices is not None:
        try:
            check_choice(value, flag.choices)
        except Rejected as error:
            raise UsageError(f"{given.where}: {error}") from None
    taken = replace(given, name=flag.name, value=value, where=f"{given.where} (taken as {flag.shown})")
    return taken, f"{opening}: taken as {flag.shown}{shown}"
