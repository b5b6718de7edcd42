"""The blocks of the configuration, each value with the reason for it.

A flat mapping holds them: the key's path, blocks joined by dots, to a `ReasonedValue`. Most are rows of blocks.toml.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from dsrun.datafiles import SubjectNames, evaluate, toml_beside
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
