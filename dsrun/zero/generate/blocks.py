"""The blocks of the configuration, each value with the reason for it.

A flat mapping holds them: the key's path, blocks joined by dots, to a `ReasonedValue`. Most are rows of blocks.toml."""

from math import sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

from dsrun.datafiles import SubjectNames, evaluate, toml_beside
from dsrun.engine_options import EngineOptions
from dsrun.models.families import family_of
from dsrun.zero.generate import presets
from dsrun.zero.generate.presets import PRESETS, SpeedPreset
from dsrun.zero.generate.spec import ZeroSpec
from dsrun.zero.view import AUTO, FILLED, ZERO

if TYPE_CHECKING:
    from dsrun.hardware.gpu_facts import GpuModel

TABLES = toml_beside(__file__)
MOVED: dict[str, str] = TABLES["moved"]
"""Keys whose defaults have changed in DeepSpeed, and where."""


class ReasonedValue(NamedTuple):
    """A value and why it is this one."""

    value: Any
    why: str


FlatConfig = dict[str, ReasonedValue]


class HardwareFacts(NamedTuple):
    """What is known about the model and the GPU.

    `hidden_size` is the model's width, `largest` its largest parameter, `parameters` all of them, in elements."""

    hidden_size: int | None = None
    largest: int | None = None
    parameters: int | None = None
    model_type: str | None = None
    gpu: "GpuModel | None" = None


class ConfigContext(NamedTuple):
    """One configuration to write."""

    spec: ZeroSpec
    facts: HardwareFacts

    @property
    def trainer(self) -> bool:
        """Whether the Hugging Face Trainer will fill "auto"."""
        return self.spec.target == "trainer"

    @property
    def preset(self) -> SpeedPreset:
        return PRESETS[self.spec.preset]


def fixed(name: str) -> FlatConfig:
    """Keys whose values and reasons are always the same."""
    return {key: ReasonedValue(*row) for key, row in TABLES["keys"][name].items()}


def written(table: str, case: ConfigContext, **names: Any) -> FlatConfig:
    """The keys of a table whose conditions hold, with their values and reasons."""
    more = {"speed": case.preset, "trainer": case.trainer, "moved": MOVED, "fills": FILLED, **names}
    known = SubjectNames(case.spec, {}, **more)
    flat: FlatConfig = {}
    for row in TABLES[table]:
        key = row["key"].format_map(known)
        if evaluate(row.get("when", "True"), known):
            value = ReasonedValue(evaluate(row["value"], known), row["why"].format_map(known))
            flat[key] = filled(key) if evaluate(row.get("auto", "False"), known) else value
    return flat


def filled(path: str) -> ReasonedValue:
    """An "auto" that the Trainer fills."""
    return ReasonedValue(AUTO, f"the Trainer fills it from {FILLED[path]}")


def precision_of(case: ConfigContext) -> ReasonedValue:
    """The format of weights and activations: auto only where the Trainer decides."""
    gpu, kind = case.facts.gpu, case.facts.model_type
    more = {"gpu": gpu, "model_type": kind, "overflows": family_of(kind).overflows_in_fp16, "trainer": case.trainer}
    names = SubjectNames(case.spec, {}, **more)
    row = next(row for row in TABLES["formats"] if evaluate(row["when"], names))
    return ReasonedValue(evaluate(row["value"], names), row["why"].format_map(names))


def precision(case: ConfigContext) -> FlatConfig:
    """bf16, fp16 and torch_autocast."""
    chosen, why = precision_of(case)
    flat = written("precision", case, chosen=chosen, why=why)
    flat |= fixed("fp16") if flat["fp16.enabled"].value else {}
    autocast = {"bf16": "bfloat16", "fp16": "float16"}.get(case.spec.torch_autocast)
    return flat | written("torch_autocast", case, dtype=autocast)


def zero(case: ConfigContext) -> FlatConfig:
    spec, facts, stage = case.spec, case.facts, case.spec.stage
    flat = {f"{ZERO}.stage": ReasonedValue(stage, f"asked by --zero {stage}")}
    if stage == 0:
        return flat
    width = facts.hidden_size
    basis = f"the model's width {width}" if width else f"a width of {presets.USUAL_WIDTH}, no --model was given"
    if width is None and not case.trainer:
        width = presets.USUAL_WIDTH
    memory = f"{presets.memory_of(facts.gpu)} GiB of GPU memory"
    sizes = presets.sizes(spec.preset, width or presets.USUAL_WIDTH, facts.gpu)
    sized = f"preset {spec.preset}, {basis}, {memory}"
    largest = presets.LARGEST_BUCKET
    return (
        flat
        | written("zero", case, width=width, memory=memory, sizes=sizes, sized=sized, largest=largest)
        | _offload(case)
    )


def _offload(case: ConfigContext) -> FlatConfig:
    spec, flat = case.spec, FlatConfig()
    for part in ("offload_optimizer", "offload_param"):
        flat |= written("offload", case, place=getattr(spec, part), part=part, flag=part.replace("_", "-"))
    size = presets.nvme_buffer(case.facts.largest or 0, spec.gpus or 1)
    if spec.offload_param == "nvme" and size > presets.NVME_PARAM_BUFFER:
        why = "a rank's share of the model's largest parameter has to fit"
        flat[f"{ZERO}.offload_param.buffer_size"] = ReasonedValue(size, f"{why}; DeepSpeed's default is 1e8")
    return flat


# Beside ZeRO: batch, optimizer, scheduler, offload's helpers and what other switches bring along.

# An orthogonal update times 0.2 · sqrt(width) moves weights as far as Adam's (Moonlight, arXiv 2502.16982, 2.2).
MUON_SCALE = 0.2
WARMUP_STEPS = 100
WARMUP_SHARE = 0.03
SCHEDULERS = {"warmup": "WarmupLR", "linear": "WarmupDecayLR", "cosine": "WarmupCosineLR"}


def steps_of(spec: ZeroSpec) -> int | None:
    """Accumulation steps: as given, or as the batch sizes and the GPUs make them; None where they are not known."""
    sizes = (spec.global_batch_size, spec.micro_batch_size, spec.gpus)
    if spec.accumulation is not None or None in sizes:
        return spec.accumulation
    total, micro, gpus = (size or 1 for size in sizes)
    return total * spec.autotp * spec.sequence_parallel // (micro * gpus)


def sums_exactly(options: EngineOptions, stage: int, offload_optimizer: str, steps: int) -> bool:
    """Whether bf16 gradients of so many accumulation steps are summed in fp32 unless it is said how."""
    # With these, gradients take other ways through DeepSpeed, which have not been measured.
    other = options.bf16_master_weights or options.qgz or options.zenflow or options.super_offload
    able = steps >= presets.FROM_STEPS and presets.takes_fp32_sum(stage, offload_optimizer)
    return able and not other and options.grad_accum_dtype == "auto" and options.preset != "conservative"


def accumulation(case: ConfigContext) -> FlatConfig:
    """data_types.grad_accum_dtype."""
    spec, path = case.spec, "data_types.grad_accum_dtype"
    steps, chosen = steps_of(spec) or 1, precision_of(case).value
    if spec.grad_accum_dtype == "fp32":
        return {path: ReasonedValue("fp32", "asked by --grad-accum-dtype fp32")}
    other = spec.deepcompile or spec.optimizer == "muon" or spec.autotp > 1 or spec.autoep > 1
    sums = sums_exactly(spec, spec.stage, spec.offload_optimizer, steps)
    if other or not sums or chosen not in ("bf16", AUTO):
        return {}
    memory = presets.memory_of_sum(case.facts.parameters, spec.gpus, spec.offload_optimizer)
    error = presets.error_after(steps)
    why = f"{steps} gradients are summed, and a bf16 sum is off by {error} (measured); takes {memory}"
    return {path: ReasonedValue("fp32", why)}


def optimizer_of(case: ConfigContext) -> str | None:
    """The optimizer that the file names, or None for the program's own."""
    spec = case.spec
    if spec.optimizer == "client":
        return None
    if spec.optimizer is None and case.trainer and spec.offload_optimizer == "none":
        return None
    return spec.optimizer or "adamw"


def optimizer(case: ConfigContext) -> FlatConfig:
    """The optimizer block and what belongs to it."""
    spec, kind = case.spec, optimizer_of(case)
    row = TABLES["optimizers"].get(kind, {})
    width = case.facts.hidden_size or presets.USUAL_WIDTH
    rate = float(f"{(spec.lr or usual('muon', 'lr')) * MUON_SCALE * sqrt(width):.1e}")
    names = {"kind": kind, "row": row, "offloaded": spec.offload_optimizer != "none", "width": width, "rate": rate}
    settings = {f"optimizer.params.{key}": _setting(case, kind or "", key) for key in row.get("settings", ())}
    return written("optimizer", case, **names) | settings | written("beside_settings", case, **names)


def _setting(case: ConfigContext, kind: str, key: str) -> ReasonedValue:
    value = getattr(case.spec, key)
    if value is not None:
        value = list(value) if isinstance(value, tuple) else value
        return ReasonedValue(value, f"asked by --{key.replace('_', '-')}")
    if case.trainer:
        return filled(f"optimizer.params.{key}")
    return ReasonedValue(usual(kind, key), "the optimizer's usual value")


def usual(kind: str | None, key: str) -> Any:
    """The number for a setting that is neither given nor filled by the Trainer."""
    return TABLES["optimizers"].get(kind or "", TABLES["optimizers"]["adamw"])["settings"][key]


def scheduler(case: ConfigContext) -> FlatConfig:
    spec = case.spec
    kind, steps = spec.scheduler, spec.warmup_steps
    if kind is None and not case.trainer:
        kind = "linear" if spec.total_steps else "warmup"
    if kind in (None, "none") or spec.optimizer == "client":
        return {}
    if steps is None and not case.trainer:
        steps = max(1, round(spec.total_steps * WARMUP_SHARE)) if spec.total_steps else WARMUP_STEPS
    rate = usual(spec.optimizer, "lr") if spec.lr is None else spec.lr
    names = {"kind": kind, "type": SCHEDULERS[kind or ""], "steps": steps, "rate": rate}
    return written("scheduler", case, **names) | fixed("warmup_type")


def extras(case: ConfigContext) -> FlatConfig:
    """Blocks that other switches bring along."""
    flat = fixed("zenflow") if case.spec.zenflow else FlatConfig()
    flat |= fixed("aio") if "nvme" in (case.spec.offload_optimizer, case.spec.offload_param) else {}
    return flat | written("extras", case)
