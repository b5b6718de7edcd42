"""The blocks of the configuration, each value with the reason for it.

A flat mapping holds them: the key's path, blocks joined by dots, to a `ReasonedValue`.
"""

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from dsrun.datafiles import SubjectNames, evaluate, toml_beside
from dsrun.models.families import family_of
from dsrun.zero.generate import presets
from dsrun.zero.generate.presets import PRESETS, SpeedPreset
from dsrun.zero.generate.spec import ZeroSpec
from dsrun.zero.view import AUTO, FILLED, ZERO

if TYPE_CHECKING:
    from dsrun.hardware.gpu_facts import GpuModel

# What changed, and where: written out so that a file means the same under every release.
MOVED = {
    "gradient_clipping": "0 before DeepSpeed 0.19.3, 1.0 since",
    "bf16.check_grad_overflow": "false before DeepSpeed 0.19.3, true since",
    f"{ZERO}.offload_optimizer.pin_memory": "false before DeepSpeed 0.19.5, true since",
    f"{ZERO}.offload_param.pin_memory": "false before DeepSpeed 0.19.5, true since",
}


class ReasonedValue(NamedTuple):
    """A value and why it is this one."""

    value: Any
    why: str


FlatConfig = dict[str, ReasonedValue]


class HardwareFacts(NamedTuple):
    """What is known about the model and the GPU.

    `hidden_size` is the model's width, `largest` its largest parameter, `parameters` all of them, in elements.
    """

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

    def offloads(self, place: str) -> bool:
        """Whether anything is offloaded to `place`."""
        return place in (self.spec.offload_optimizer, self.spec.offload_param)


@cache
def tables() -> dict[str, Any]:
    return toml_beside(__file__)


def fixed(name: str) -> FlatConfig:
    """Keys whose values and reasons are always the same."""
    return {key: ReasonedValue(*row) for key, row in tables()["keys"][name].items()}


def written(table: str, case: ConfigContext, **names: Any) -> FlatConfig:
    """The keys of a table whose conditions hold, with their values and reasons."""
    known = SubjectNames(case.spec, {}, speed=case.preset, trainer=case.trainer, **names)
    flat: FlatConfig = {}
    for row in tables()[table]:
        key = row["key"]
        if evaluate(row.get("when", "True"), known):
            value = ReasonedValue(evaluate(row["value"], known), row["why"].format_map(known))
            flat[key] = filled(key) if evaluate(row.get("auto", "False"), known) else value
    return flat


def filled(path: str) -> ReasonedValue:
    """An "auto" that the Trainer fills."""
    return ReasonedValue(AUTO, f"the Trainer fills it from {FILLED[path]}")


def moved(path: str, why: str) -> str:
    """The reason, with the history of a default that moved."""
    return f"{why}; written out because the default was {MOVED[path]}"


def precision_of(case: ConfigContext) -> ReasonedValue:
    """The format of weights and activations: auto only where the Trainer decides."""
    spec, gpu = case.spec, case.facts.gpu
    requested = _requested_precision(spec)
    if requested is not None:
        return requested
    if gpu is not None:
        return _precision_on(gpu, case.facts.model_type)
    if case.trainer:
        return ReasonedValue(AUTO, "the Trainer fills it from --bf16 and --fp16")
    return ReasonedValue("bf16", "every GPU since Ampere computes in bf16, with the range of fp32")


def _requested_precision(spec: ZeroSpec) -> ReasonedValue | None:
    if spec.precision != AUTO:
        return ReasonedValue(spec.precision, f"asked by --precision {spec.precision}")
    if spec.torch_autocast != "none":
        return ReasonedValue("fp32", "--torch-autocast keeps the weights in fp32")
    if spec.bf16_master_weights:
        return ReasonedValue("bf16", "--bf16-master-weights means bf16")
    return None


def _precision_on(gpu: "GpuModel", model_type: str | None) -> ReasonedValue:
    capability = ".".join(map(str, gpu.capability))
    if gpu.has_bf16:
        return ReasonedValue("bf16", f"{gpu.name} computes in bf16 (capability {capability})")
    if family_of(model_type).overflows_in_fp16:
        return ReasonedValue("fp32", f"{gpu.name} has no bf16, and {model_type} models overflow in fp16")
    return ReasonedValue("fp16", f"{gpu.name} (capability {capability}) has fp16 but no bf16")


def precision(case: ConfigContext) -> FlatConfig:
    """bf16, fp16 and torch_autocast."""
    chosen, why = precision_of(case)
    enabled = {each: AUTO if chosen == AUTO else chosen == each for each in ("bf16", "fp16")}
    flat = {"bf16.enabled": ReasonedValue(enabled["bf16"], why)}
    if enabled["bf16"]:
        overflow = "bf16.check_grad_overflow"
        flat[overflow] = ReasonedValue(True, moved(overflow, "an infinite gradient must not reach the weights"))
    flat["fp16.enabled"] = ReasonedValue(enabled["fp16"], why)
    if enabled["fp16"]:
        flat |= fixed("fp16")
    if case.spec.torch_autocast != "none":
        flat |= {
            "torch_autocast.enabled": ReasonedValue(True, "asked by --torch-autocast"),
            "torch_autocast.dtype": ReasonedValue(
                {"bf16": "bfloat16", "fp16": "float16"}[case.spec.torch_autocast],
                "asked by --torch-autocast; without it autocast would choose",
            ),
        }
    return flat


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
    flat: FlatConfig = {}
    for name, place, buffers in (
        ("offload_optimizer", case.spec.offload_optimizer, 4),
        ("offload_param", case.spec.offload_param, 5),
    ):
        if place == "none":
            continue
        pinned = f"{ZERO}.{name}.pin_memory"
        flat |= {
            f"{ZERO}.{name}.device": ReasonedValue(place, f"asked by --{name.replace('_', '-')} {place}"),
            pinned: _pinned(case, pinned),
        }
        if place == "nvme":
            flat |= {
                f"{ZERO}.{name}.nvme_path": ReasonedValue(case.spec.nvme_path, "asked by --nvme-path"),
                f"{ZERO}.{name}.buffer_count": ReasonedValue(
                    buffers,
                    "Adam keeps four tensors a parameter: weight, gradient and two moments"
                    if name == "offload_optimizer"
                    else "DeepSpeed's own default, written out",
                ),
            }
    if case.spec.offload_param == "nvme" and case.facts.largest:
        size = presets.nvme_buffer(case.facts.largest, case.spec.gpus or 1)
        if size > presets.NVME_PARAM_BUFFER:
            why = "a rank's share of the model's largest parameter has to fit"
            flat[f"{ZERO}.offload_param.buffer_size"] = ReasonedValue(size, f"{why}; DeepSpeed's default is 1e8")
    return flat


def _pinned(case: ConfigContext, path: str) -> ReasonedValue:
    pinned = case.spec.pin_memory
    if pinned is not None:
        return ReasonedValue(pinned, "asked by --pin-memory" if pinned else "asked by --no-pin-memory")
    word = "copies overlap with computing" if case.preset.pin_memory else "the host may swap it out when it must"
    return ReasonedValue(case.preset.pin_memory, moved(path, f"preset {case.spec.preset}: {word}"))
