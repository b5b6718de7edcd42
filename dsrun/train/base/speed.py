"""What makes a run faster: what --speed chose of it, why, and the flag that refuses each choice.

A training argument that the user gave is kept; --speed decides only what is left open.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from transformers.utils import is_liger_kernel_available

from dsrun.errors import UsageError
from dsrun.hardware.gpu_facts import AMPERE
from dsrun.train.base.console import Internal
from dsrun.train.base.plan import TrainingPlan
from dsrun.zero.generate.config import ADAMW_OF_TORCH
from dsrun.zero.ops import stage_of

SpeedMode = Literal["auto", "safe"]
REGIONAL = "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION"
"""accelerate.utils.TorchDynamoPlugin reads it: each repeated block is compiled, once for all that are alike."""
COMPILE_FLAGS = ("torch_compile", "torch_compile_backend", "torch_compile_mode")


@dataclass(frozen=True, kw_only=True)
class SpeedFacts:
    """What the choices depend on. `given` are the user's own training arguments, `capability` that of the GPU."""

    mode: SpeedMode
    device: str
    given: Mapping[str, Any]
    deepspeed: Mapping[str, Any] | None = None
    capability: tuple[int, int] = (0, 0)
    liger: bool = False


@dataclass(frozen=True, kw_only=True)
class SpeedChoice:
    """One way to be faster; `values` are the training arguments that it sets, `refuse` the flag against it."""

    name: str
    applied: bool
    reason: str
    refuse: str
    values: Mapping[str, Any]


def facts_of(plan: TrainingPlan) -> SpeedFacts:
    cuda = plan.world.device == "cuda"
    return SpeedFacts(
        mode="safe" if plan.recipe.spec.speed == "safe" else "auto",
        device=plan.world.device,
        given=plan.recipe.hf,
        deepspeed=plan.deepspeed,
        capability=torch.cuda.get_device_capability() if cuda else (0, 0),
        liger=is_liger_kernel_available(),
    )


def choices(facts: SpeedFacts) -> tuple[SpeedChoice, ...]:
    """Every choice in the order in which it is printed. Raises UsageError for a compilation that would not work."""
    return (_tf32(facts), _liger(facts), _fused_adamw(facts), _compile(facts))


def values(facts: SpeedFacts) -> dict[str, Any]:
    """The training arguments that the choices set; none that the user gave."""
    made: dict[str, Any] = {}
    for each in choices(facts):
        made |= each.values
    return {name: value for name, value in made.items() if name not in facts.given}


def environment(facts: SpeedFacts) -> dict[str, str]:
    """What accelerate reads of a compilation: one by regions, except DeepCompile's, which is of the whole model."""
    if not compiles(facts.given, facts.deepspeed):
        return {}
    return {REGIONAL: "false" if deep_compiles(facts.deepspeed) else "true"}


def lines(made: tuple[SpeedChoice, ...]) -> list[str]:
    """The applied choices, and why each choice was made."""
    names = ", ".join(each.name for each in made if each.applied)
    reasons = "; ".join(f"{'' if each.applied else 'no '}{each.name}: {each.reason}" for each in made)
    return [names or "nothing applied", Internal(reasons)]


def record(made: tuple[SpeedChoice, ...], mode: str) -> dict[str, Any]:
    """The choices for run.json."""
    return {"mode": mode, "choices": [asdict(each) | {"values": dict(each.values)} for each in made]}


def compiles(given: Mapping[str, Any], deepspeed: Mapping[str, Any] | None) -> bool:
    """Whether the model is compiled: as asked, or because the JSON's DeepCompile begins at that call alone. A backend
    or a mode switches the Trainer's compilation on, whatever --torch_compile says."""
    if any(given.get(name) for name in COMPILE_FLAGS):
        return True
    return deep_compiles(deepspeed) and given.get("torch_compile") is None


def deep_compiles(deepspeed: Mapping[str, Any] | None) -> bool:
    block = (deepspeed or {}).get("compile")
    return isinstance(block, dict) and bool(block.get("deepcompile"))


def _tf32(facts: SpeedFacts) -> SpeedChoice:
    refuse, able = "--tf32 false", facts.capability >= AMPERE
    if "tf32" in facts.given:
        on = bool(facts.given["tf32"])
        return SpeedChoice(name="TF32", applied=on, reason="as --tf32 says", refuse=refuse, values={})
    if facts.device != "cuda":
        return SpeedChoice(name="TF32", applied=False, reason="no GPU", refuse=refuse, values={})
    on = able and facts.mode == "auto"
    why = "fp32 products on Ampere and newer" if on else _why_not(facts, "the GPU is older than Ampere")
    return SpeedChoice(name="TF32", applied=on, reason=why, refuse=refuse, values={"tf32": on})


def _liger(facts: SpeedFacts) -> SpeedChoice:
    name, refuse = "Liger kernels", "--use_liger_kernel false"
    if "use_liger_kernel" in facts.given:
        on = bool(facts.given["use_liger_kernel"])
        return SpeedChoice(name=name, applied=on, reason="as --use_liger_kernel says", refuse=refuse, values={})
    if facts.device != "cuda":
        return SpeedChoice(name=name, applied=False, reason="no GPU", refuse=refuse, values={})
    smoothed = bool(facts.given.get("label_smoothing_factor"))
    on = facts.liger and facts.mode == "auto" and not smoothed
    missing = "its fused loss knows no label smoothing" if smoothed else "liger-kernel is not installed"
    why = "fused layers and loss" if on else _why_not(facts, missing)
    return SpeedChoice(name=name, applied=on, reason=why, refuse=refuse, values={"use_liger_kernel": on})


def _fused_adamw(facts: SpeedFacts) -> SpeedChoice:
    plain, fused = ADAMW_OF_TORCH
    name, refuse = "fused AdamW", f"--optim {plain}"
    if (facts.deepspeed or {}).get("optimizer"):
        return SpeedChoice(name=name, applied=False, reason="DeepSpeed's own optimizer steps", refuse=refuse, values={})
    if "optim" in facts.given:
        on = facts.given["optim"] == fused
        return SpeedChoice(name=name, applied=on, reason="as --optim says", refuse=refuse, values={})
    on = facts.mode == "auto"
    why = "one kernel per step" if on else _why_not(facts, "")
    return SpeedChoice(name=name, applied=on, reason=why, refuse=refuse, values={"optim": fused if on else plain})


def _compile(facts: SpeedFacts) -> SpeedChoice:
    name, refuse, deep = "torch.compile", "--torch_compile false", deep_compiles(facts.deepspeed)
    if not compiles(facts.given, facts.deepspeed):
        why = "compiling takes minutes, again for other lengths; --torch_compile true asks for it"
        why = "as --torch_compile says" if facts.given.get("torch_compile") is False else why
        return SpeedChoice(name=name, applied=False, reason=why, refuse=refuse, values={})
    if deep and facts.device != "cuda":
        raise UsageError(
            "compile.deepcompile: DeepSpeed has this operation for CUDA alone, and this run is on CPUs",
            fix="remove the key from the --deepspeed file",
        )
    if deep:
        why = "DeepCompile schedules ZeRO's communication, as the --deepspeed file says"
        return SpeedChoice(name="DeepCompile", applied=True, reason=why, refuse=refuse, values={"torch_compile": True})
    if stage_of(dict(facts.deepspeed or {})) == 3:
        given = next(each for each in COMPILE_FLAGS if facts.given.get(each))
        raise UsageError(
            f"--{given}: torch.compile does not see how ZeRO-3 gathers parameters, and breaks its graphs there",
            fix='use --zero 2, or on GPUs a --deepspeed file with "compile": {"deepcompile": true}',
        )
    return SpeedChoice(name=name, applied=True, reason="each repeated block, as asked", refuse=refuse, values={})


def _why_not(facts: SpeedFacts, otherwise: str) -> str:
    return "--speed safe" if facts.mode == "safe" else otherwise
