"""Settings of a DeepSpeed configuration that exclude each other, or of which one makes the other useless.

The same rules hold for a file (`dsrun config check`) and for what flags ask (`dsrun config`): they look at the JSON
that DeepSpeed will read. What each rule says is in rules.toml, when it holds in `WHEN`, under one name.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

from dsrun.datafiles import toml_beside
from dsrun.findings.finding import Level
from dsrun.messages import PLACEHOLDER, Message
from dsrun.zero.schema import shown
from dsrun.zero.view import ZERO, ConfigView

OPTIMIZER = f"{ZERO}.offload_optimizer"
RATIO = f"{OPTIMIZER}.ratio"
SUPER = f"{OPTIMIZER}.super_offload"
ZENFLOW = f"{ZERO}.zenflow"
QGZ = f"{ZERO}.zero_quantized_gradients"
HPZ = f"{ZERO}.zero_hpz_partition_size"
BF16_MASTER = "bf16.bf16_master_weights_and_grads"
FP16_MASTER = "fp16.fp16_master_weights_and_grads"
TENSOR = "tensor_parallel.autotp_size"
EXPERT = "expert_parallel.autoep_size"
SEQUENCE = "sequence_parallel_size"

RuleCondition = Callable[[ConfigView], bool]


class ConfigRule(NamedTuple):
    """`when` the settings meet, a finding at `key`: an error where DeepSpeed stops, a warning where it ignores one.

    With `in_train` it is `dsrun train` that cannot do it: an error in a file for the Trainer, nothing in one for
    DeepSpeed alone, and a warning where it is not known whose it is.
    """

    when: RuleCondition
    key: str
    message: str
    fix: str
    source: str
    level: Level = "error"
    code: str = "conflict"
    in_train: bool = False

    def level_in(self, view: ConfigView) -> Level | None:
        """How serious it is in this configuration; None where the rule does not hold for its reader."""
        if not self.in_train or view.for_trainer:
            return self.level
        return None if view.is_target_given else "warning"

    def formatted(self, text: str, view: ConfigView) -> Message:
        """`text` with the values of the keys in braces."""
        return Message(text, **{found[1]: shown(view.value(found[1])) for found in PLACEHOLDER.finditer(text)})


@cache
def read_rules(table: str) -> dict[str, dict[str, Any]]:
    """The rules of a table of rules.toml by their names: "config" or "flags"."""
    found: dict[str, dict[str, Any]] = toml_beside(__file__)[table]
    return found


@cache
def rules() -> tuple[ConfigRule, ...]:
    return tuple(ConfigRule(when=WHEN[name], **rule) for name, rule in read_rules("config").items())


def broken(view: ConfigView) -> Iterator[tuple[ConfigRule, str, str]]:
    """The rules that the configuration breaks, each with its message and fix."""
    for rule in rules():
        level = rule.level_in(view) if rule.when(view) else None
        if level:
            yield rule._replace(level=level), rule.formatted(rule.message, view), rule.formatted(rule.fix, view)


def _is_on(view: ConfigView, key: str) -> bool:
    return view.value(key) is True


def _is_true(view: ConfigView, key: str) -> bool:
    """Whether DeepSpeed takes for true what stands at a key that it does not convert: every number but 0 is, and every
    text, "false" too."""
    return bool(view.value(key))


def _number(view: ConfigView, key: str, default: float = 0) -> float:
    """A number, or `default` where it is not one or cannot be known."""
    found: Any = view.value(key)
    return found if isinstance(found, int | float) and not isinstance(found, bool) else default


def _offloads_optimizer(view: ConfigView) -> bool:
    return view.offload("offload_optimizer") in ("cpu", "nvme")


def _not_in_host_memory(view: ConfigView) -> bool:
    return view.stage == 3 and view.offload("offload_optimizer") in ("none", "nvme")


def _optimizer(view: ConfigView) -> str | None:
    """The optimizer's name in lower case, None where the file names none."""
    name = view.raw("optimizer", "type")
    return name.lower() if isinstance(name, str) else None


def _is_adam(view: ConfigView) -> bool:
    """Whether DeepSpeed makes an Adam, or the file leaves the optimizer to the program."""
    return _optimizer(view) in (None, "adam", "adamw", "auto")


def _is_own_adam(view: ConfigView) -> bool:
    """Whether the Adam is DeepSpeed's own, not PyTorch's."""
    return _is_adam(view) and view.raw("optimizer", "params", "torch_adam") is not True


def _has_zenflow(view: ConfigView) -> bool:
    return view.is_block(ZENFLOW)


def _uses_cpu_adam(view: ConfigView) -> bool:
    return _offloads_optimizer(view) and _is_own_adam(view) and not _has_zenflow(view)


def _precision(view: ConfigView) -> str | None:
    """bf16, fp16 or fp32, None where the Trainer decides."""
    fp16, bf16 = view.precision("fp16"), view.precision("bf16")
    if fp16 or bf16:
        return "fp16" if fp16 else "bf16"
    return None if fp16 is None or bf16 is None else "fp32"


def _sums_half_in_fp32(view: ConfigView, *precisions: str) -> bool:
    return _precision(view) in (precisions or ("bf16", "fp16")) and view.raw("data_types", "grad_accum_dtype") == "fp32"


def _bf16_master_needs_cpu_adam(view: ConfigView) -> bool:
    on_gpu = _is_on(view, "bf16.bf16_optimizer_states") and not _offloads_optimizer(view)
    return _is_on(view, BF16_MASTER) and bool(view.stage) and not on_gpu and not _uses_cpu_adam(view)


def _splits(view: ConfigView) -> bool:
    return _number(view, RATIO, 1) < 1


def _zenflow_interval(view: ConfigView, strategies: tuple[str, ...], kind: type) -> bool:
    """Whether ZenFlow selects by one of these strategies and its select_interval is of this type."""
    strategy, interval = (view.value(f"{ZENFLOW}.{key}") for key in ("select_strategy", "select_interval"))
    return _has_zenflow(view) and strategy in strategies and isinstance(interval, kind)


def _selects_too_often(view: ConfigView) -> bool:
    select, update = (view.value(f"{ZENFLOW}.{key}") for key in ("select_interval", "update_interval"))
    return _zenflow_interval(view, ("step",), int) and isinstance(update, int) and select != 0 and select < update


def _does_not_overlap(view: ConfigView) -> bool:
    overlap = view.value(f"{ZERO}.overlap_comm")
    return overlap is False or (overlap is None and view.stage in (1, 2))


def _scatters(view: ConfigView) -> bool:
    """Whether gradients are averaged as they are scattered."""
    operation = view.raw("gradient_allreduce_op")
    sums = isinstance(operation, str) and operation.lower() == "sum"
    return view.stage in (2, 3) and not sums and view.value(f"{ZERO}.reduce_scatter") is not False


def _skips_grad_norm(view: ConfigView) -> bool:
    return view.stage in (1, 2) and view.value(f"{ZERO}.compute_grad_norm") is False


def _hpz_does_not_divide(view: ConfigView) -> bool:
    size, world = _number(view, HPZ, 1), view.world_size
    return view.stage == 3 and size > 1 and world is not None and world % min(size, world) != 0


def _does_not_divide(view: ConfigView, ranks: float) -> bool:
    """Whether the number of GPUs is known and no multiple of `ranks`."""
    return view.world_size is not None and view.world_size % ranks != 0


def _has_experts(view: ConfigView) -> bool:
    return _is_on(view, "expert_parallel.enabled") and _number(view, EXPERT, 1) > 1


def _compiles(view: ConfigView) -> bool:
    return _is_on(view, "compile.deepcompile")


def _passes(view: ConfigView, *names: str) -> bool:
    listed = view.raw("compile", "passes")
    return _compiles(view) and isinstance(listed, list) and any(name in listed for name in names)


def _compiled_offloads(view: ConfigView) -> int:
    """How many passes move something; the engine turns that of parameters on where ZeRO offloads both to the CPU."""
    both = view.offload("offload_param") == view.offload("offload_optimizer") == "cpu"
    moves_parameters = _is_on(view, "compile.offload_parameters") or both
    return _is_on(view, "compile.offload_activation") + _is_on(view, "compile.offload_opt_states") + moves_parameters


def _optimizer_without_nvme(key: str) -> RuleCondition:
    return lambda v: _is_on(v, f"{OPTIMIZER}.{key}") and v.offload("offload_optimizer") != "nvme"


def _parameters_without_nvme(key: str) -> RuleCondition:
    return lambda v: v.has(ZERO, "offload_param", key) and v.offload("offload_param") != "nvme"


def _compiled_offload(key: str) -> RuleCondition:
    return lambda v: _compiles(v) and _is_on(v, f"compile.{key}") and v.stage in (0, 1, 2)


WHEN: dict[str, RuleCondition] = {
    "ratio_without_cpu": lambda v: _splits(v) and _not_in_host_memory(v),
    "ratio_needs_cpu_adam": lambda v: _splits(v) and v.stage == 3 and (not _is_own_adam(v) or _has_zenflow(v)),
    "super_offload_without_cpu": lambda v: _is_on(v, SUPER) and _not_in_host_memory(v),
    "super_offload_needs_adam": lambda v: _is_on(v, SUPER) and v.stage == 3 and not _is_adam(v),
    "super_offload_and_zenflow": lambda v: _is_on(v, SUPER) and _has_zenflow(v),
    "super_offload_and_ratio": lambda v: _is_on(v, SUPER) and _splits(v),
    "lamb_on_cpu": lambda v: bool(v.stage) and _offloads_optimizer(v) and _optimizer(v) == "lamb",
    "torch_adam_on_cpu": lambda v: (
        bool(v.stage) and _offloads_optimizer(v) and v.raw("optimizer", "params", "torch_adam") is True
    ),
    **{f"{key}_without_nvme": _optimizer_without_nvme(key) for key in ("pipeline_read", "pipeline_write", "fast_init")},
    **{f"{key}_without_nvme": _parameters_without_nvme(key) for key in ("max_in_cpu", "buffer_size", "buffer_count")},
    "aio_without_nvme": lambda v: (
        v.is_block("aio") and "nvme" not in (v.offload("offload_optimizer"), v.offload("offload_param"))
    ),
    "zenflow_without_cpu": lambda v: _has_zenflow(v) and _not_in_host_memory(v),
    "zenflow_needs_adamw": lambda v: (
        _has_zenflow(v) and bool(v.stage) and _offloads_optimizer(v) and not _is_own_adam(v)
    ),
    "zenflow_and_accumulation": lambda v: _has_zenflow(v) and _number(v, "gradient_accumulation_steps", 1) > 1,
    "zenflow_interval_beside_auto": lambda v: _zenflow_interval(v, ("auto",), int),
    "zenflow_interval_missing": lambda v: _zenflow_interval(v, ("step", "epoch"), str),
    "zenflow_counts_epochs": lambda v: (
        _has_zenflow(v) and v.for_trainer and v.value(f"{ZENFLOW}.select_strategy") in ("auto", "epoch")
    ),
    "zenflow_selects_too_often": _selects_too_often,
    "zenflow_offload_without_overlap": lambda v: (
        _has_zenflow(v) and _is_on(v, f"{ZENFLOW}.offload") and _does_not_overlap(v)
    ),
    "qwz_and_autocast": lambda v: _is_on(v, f"{ZERO}.zero_quantized_weights") and _is_on(v, "torch_autocast.enabled"),
    "qgz_without_reduce_scatter": lambda v: (
        v.stage == 3 and _is_on(v, QGZ) and v.value(f"{ZERO}.reduce_scatter") is False
    ),
    "qgz_and_muon": lambda v: v.stage == 3 and _is_on(v, QGZ) and _optimizer(v) == "muon",
    "quantized_frozen_without_fp16": lambda v: (
        _is_on(v, f"{ZERO}.zero_quantized_nontrainable_weights") and _precision(v) in ("bf16", "fp32")
    ),
    "hpz_does_not_divide": _hpz_does_not_divide,
    "bf16_and_fp16_master": lambda v: _is_on(v, BF16_MASTER) and _is_on(v, FP16_MASTER),
    "bf16_master_without_bf16": lambda v: _is_on(v, BF16_MASTER) and _precision(v) in ("fp16", "fp32"),
    "fp16_master_without_fp16": lambda v: _is_on(v, FP16_MASTER) and _precision(v) in ("bf16", "fp32"),
    "bf16_master_needs_cpu_adam": _bf16_master_needs_cpu_adam,
    "fp16_master_needs_cpu_adam": lambda v: _is_on(v, FP16_MASTER) and bool(v.stage) and not _uses_cpu_adam(v),
    "autocast_and_half": lambda v: _is_on(v, "torch_autocast.enabled") and _precision(v) in ("bf16", "fp16"),
    "muon_and_reduce_scatter": lambda v: (
        _optimizer(v) == "muon" and v.stage == 3 and v.value(f"{ZERO}.reduce_scatter") is not False
    ),
    "lamb_static_loss_scale": lambda v: _optimizer(v) == "lamb" and _number(v, "fp16.loss_scale") > 0,
    "no_grad_norm_and_offload": lambda v: _skips_grad_norm(v) and _offloads_optimizer(v),
    "no_grad_norm_and_zenflow": lambda v: _skips_grad_norm(v) and _has_zenflow(v),
    "no_grad_norm_and_fp32_accumulation": lambda v: (
        _skips_grad_norm(v) and v.stage == 1 and _sums_half_in_fp32(v, "bf16") and not _offloads_optimizer(v)
    ),
    "prescale_and_reduce_scatter": lambda v: _scatters(v) and _is_true(v, "prescale_gradients"),
    "predivide_and_reduce_scatter": lambda v: _scatters(v) and _number(v, "gradient_predivide_factor", 1) != 1,
    "fp32_sum_and_offload": lambda v: v.stage == 2 and _sums_half_in_fp32(v) and _offloads_optimizer(v),
    "negative_clipping": lambda v: _number(v, "gradient_clipping") < 0,
    "odd_allgather_bucket": lambda v: v.stage in (1, 2) and _number(v, f"{ZERO}.allgather_bucket_size") % 2 == 1,
    "autotp_in_train": lambda v: _number(v, TENSOR, 1) > 1,
    "autoep_in_train": lambda v: _is_true(v, "expert_parallel.enabled"),
    "sequence_parallel_in_train": lambda v: _number(v, SEQUENCE, 1) > 1,
    "pipeline_without_engine": lambda v: v.for_trainer and bool(v.value("pipeline")),
    "autotp_and_sequence_parallel": lambda v: _number(v, TENSOR, 1) > 1 and _number(v, SEQUENCE, 1) > 1,
    "autotp_does_not_divide": lambda v: _does_not_divide(v, max(1, _number(v, TENSOR, 1))),
    "sequence_parallel_does_not_divide": lambda v: _does_not_divide(v, max(1, _number(v, SEQUENCE, 1))),
    "tp_size_differs": lambda v: (
        _number(v, TENSOR, 1) > 1 and _number(v, "tensor_parallel.tp.tp_size", 1) not in (1, _number(v, TENSOR, 1))
    ),
    "tp_size_alone": lambda v: _number(v, TENSOR, 1) <= 1 and _number(v, "tensor_parallel.tp.tp_size", 1) > 1,
    "autoep_does_not_divide": lambda v: _has_experts(v) and _does_not_divide(v, _number(v, EXPERT, 1)),
    "autoep_and_zeropp": lambda v: _has_experts(v) and v.stage == 3 and (_is_on(v, QGZ) or _number(v, HPZ, 1) > 1),
    "autoep_and_sequence_parallel": lambda v: _has_experts(v) and v.stage == 3 and _number(v, SEQUENCE, 1) > 1,
    "autoep_autotp_and_offload": lambda v: (
        _has_experts(v)
        and _number(v, TENSOR, 1) > 1
        and (_offloads_optimizer(v) or v.offload("offload_param") in ("cpu", "nvme") or _compiles(v))
    ),
    "deepcompile_without_zero": lambda v: _compiles(v) and v.stage == 0 and not _passes(v, "autosp", "autotp"),
    "autosp_at_stage_2_or_3": lambda v: _passes(v, "autosp") and v.stage in (2, 3),
    "autotp_pass_without_autotp": lambda v: _passes(v, "autotp") and _number(v, TENSOR, 1) <= 1,
    "autotp_pass_and_others": lambda v: _passes(v, "autotp") and _passes(v, "autosp", "z1", "z3"),
    **{
        f"compiled_{key}_below_3": _compiled_offload(key)
        for key in ("offload_activation", "offload_opt_states", "offload_parameters")
    },
    "compiled_and_zero_offload": lambda v: (
        _compiles(v) and v.stage == 3 and _is_on(v, "compile.offload_opt_states") and _offloads_optimizer(v)
    ),
    "compiled_offloads_exclude": lambda v: _compiles(v) and v.stage == 3 and _compiled_offloads(v) > 1,
    "deepcompile_and_zenflow": lambda v: _compiles(v) and _has_zenflow(v),
}
