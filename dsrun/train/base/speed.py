"""What makes a run faster: what --speed chose of it, why, and the flag that refuses each choice.

A training argument that the user gave is kept; --speed decides only what is left open."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from transformers.utils import is_liger_kernel_available

from dsrun.datafiles import evaluate, toml_beside
from dsrun.hardware.gpu_facts import AMPERE
from dsrun.train.base.console import Internal
from dsrun.train.base.plan import TrainingPlan
from dsrun.train.base.refusals import refuse
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


SpeedChoice = dict[str, Any]
"""One way to be faster, as run.json has it: its `name`, whether it is `applied`, and the `reason`; `refuse`, the flag
against it; and `values`, the training arguments that it sets."""


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
    """Every choice of speed.toml, in its order. Raises UsageError for a compilation that would not work."""
    names = vars(facts) | {
        "deepspeed": facts.deepspeed or {},
        "compiles": compiles(facts.given, facts.deepspeed),
        "deep": deep_compiles(facts.deepspeed),
        "AMPERE": AMPERE,
    }
    flag = next((each for each in COMPILE_FLAGS if facts.given.get(each)), None)
    refuse("compile", **names, flag=flag, stage=stage_of(dict(names["deepspeed"])))
    return tuple(_chosen(each, names) for each in toml_beside(__file__)["choices"])


def values(facts: SpeedFacts) -> dict[str, Any]:
    """The training arguments that the choices set; none that the user gave."""
    made = [item for each in choices(facts) for item in each["values"].items()]
    return {name: value for name, value in made if name not in facts.given}


def environment(facts: SpeedFacts) -> dict[str, str]:
    """What accelerate reads of a compilation: one by regions, except DeepCompile's, which is of the whole model."""
    if not compiles(facts.given, facts.deepspeed):
        return {}
    return {REGIONAL: "false" if deep_compiles(facts.deepspeed) else "true"}


def lines(made: tuple[SpeedChoice, ...]) -> list[str]:
    """The applied choices, and why each choice was made."""
    names = ", ".join(each["name"] for each in made if each["applied"])
    reasons = "; ".join(f"{'' if each['applied'] else 'no '}{each['name']}: {each['reason']}" for each in made)
    return [names or "nothing applied", Internal(reasons)]


def compiles(given: Mapping[str, Any], deepspeed: Mapping[str, Any] | None) -> bool:
    """Whether the model is compiled: as asked, or because the JSON's DeepCompile begins at that call alone. A backend
    or a mode switches the Trainer's compilation on, whatever --torch_compile says."""
    if any(given.get(name) for name in COMPILE_FLAGS):
        return True
    return deep_compiles(deepspeed) and given.get("torch_compile") is None


def deep_compiles(deepspeed: Mapping[str, Any] | None) -> bool:
    block = (deepspeed or {}).get("compile")
    return isinstance(block, dict) and bool(block.get("deepcompile"))


def _chosen(choice: dict[str, Any], names: Mapping[str, Any]) -> SpeedChoice:
    rule = next(each for each in choice["rules"] if evaluate(each["when"], names))
    applied = bool(evaluate(rule.get("applied", "False"), names))
    known = {"name": rule.get("name", choice["name"]), "applied": applied, "reason": rule["reason"]}
    return known | {"refuse": choice["refuse"], "values": rule.get("values", {})}
