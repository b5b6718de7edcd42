"""Parameter groups with learning rates of their own: lower ones in lower layers, --lr-for, and LoRA+."""

from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Self

from torch import nn
from transformers import Trainer

from dsrun.errors import UsageError, did_you_mean
from dsrun.recipe.parsed_value import pattern_and_rate
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.base.refusals import refusal

# What peft puts before the names of a model's modules.
_PEFT = "base_model.model."
_LORA_B = ".lora_B."
# The identity of a run in which all parameters have the learning rate.
ONE_RATE = "one"


@dataclass(frozen=True)
class ParameterGroup:
    """Names of trained parameters that share a learning rate, in the model's order; `decays`: with weight decay."""

    rate: float
    decays: bool
    names: list[str]


@dataclass(frozen=True)
class LearningRates:
    """Which trained parameters have another learning rate than --learning-rate.

    `layer_decay`: layer i of a stack of n has the rate times decay^(n - i), the embeddings below them decay^(n + 1),
    and what comes after the layers, the final norm and the head, the whole rate: as BEiT (Bao et al. 2021,
    get_num_layer_for_vit in its optim_factory.py) does it, following ELECTRA (Clark et al. 2020). Encoder and decoder
    of a seq2seq model are two stacks, each counted from its own top. `loraplus_ratio`: LoRA's B matrices have the rate
    times this (LoRA+, Hayou et al. 2024). `named`: patterns and the rates that they set, the last that matches a name.
    """

    layer_decay: float | None = None
    named: tuple[tuple[str, float], ...] = ()
    loraplus_ratio: float | None = None

    @classmethod
    def of(cls, spec: TrainSpec) -> Self:
        return cls(spec.layer_lr_decay, tuple(map(pattern_and_rate, spec.lr_for)), spec.loraplus_lr_ratio)

    def __bool__(self) -> bool:
        return bool(self.layer_decay is not None or self.named or self.loraplus_ratio is not None)

    @property
    def identity(self) -> str:
        """The settings by which a checkpoint's parameters are grouped, in words."""
        words = [] if self.layer_decay is None else [f"{self.layer_decay:g} per layer"]
        words += [f"{rate:g} for {pattern}" for pattern, rate in self.named]
        words += [] if self.loraplus_ratio is None else [f"LoRA+ {self.loraplus_ratio:g}"]
        return ", ".join(words) or ONE_RATE

    def groups(self, model: Any, rate: float) -> list[ParameterGroup]:
        """The trained parameters of `model` by learning rate and weight decay: those of `rate` first, which is the one
        in the log, then from the highest to the lowest. The order follows from the settings and the names alone.

        Raises UsageError for a pattern that matches no trained parameter, and for a model without layers."""
        trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        for pattern, _ in self.named:
            matching(trained, "--lr-for", pattern, "trained parameter", "modules that are trained:")
        depths = _depths(model, trained) if self.layer_decay is not None else {}
        # The method looks at the model alone.
        decayed = set(Trainer.get_decay_parameter_names(None, model))
        members: dict[tuple[float, bool], list[str]] = {}
        for name in trained:
            members.setdefault((self._rate(name, rate, depths), name in decayed), []).append(name)
        ordered = sorted(members, key=lambda each: (each[0] != rate, -each[0], not each[1]))
        return [ParameterGroup(*key, members[key]) for key in ordered]

    def optimizer_groups(self, model: Any, rate: float, weight_decay: float) -> list[dict[str, Any]]:
        """`groups` as torch's and DeepSpeed's optimizers take them."""
        parameters, decay = dict(model.named_parameters()), {True: weight_decay, False: 0.0}
        return [
            {"params": [parameters[name] for name in each.names], "lr": each.rate, "weight_decay": decay[each.decays]}
            for each in self.groups(model, rate)
        ]

    def describe(self, model: Any, rate: float) -> str:
        """The rates that come of it, in a sentence."""
        rates = {group.rate for group in self.groups(model, rate)}
        stacks = _stacks(model) if self.layer_decay is not None else {}
        layers = "".join(f", by {self.layer_decay:g} per layer of {name} ({n})" for name, n in stacks.items())
        return f"learning rates from {min(rates):.3g} to {max(rates):.3g}{layers}"

    def _rate(self, name: str, rate: float, depths: dict[str, int]) -> float:
        for pattern, own in reversed(self.named):
            if _matches(name, pattern):
                return own
        if self.layer_decay is not None:
            rate *= self.layer_decay ** depths[name]
        return rate * self.loraplus_ratio if self.loraplus_ratio is not None and _LORA_B in name else rate


def matching(names: Collection[str], flag: str, pattern: str, what: str, modules: str) -> list[str]:
    """Those of the parameters' names that a pattern of a flag matches, under an adapter by the names of the model below
    it: it is the name of a module or of a parameter, with `*`, `?` and `[…]` as in file names. Raises UsageError where
    there is none, which calls the parameters `what`, and their modules `modules`."""
    if found := [name for name in names if _matches(name, pattern)]:
        return found
    known = sorted({name.removeprefix(_PEFT).rpartition(".")[0] for name in names})
    fix = did_you_mean(pattern, known, f"{modules} {', '.join(known[:8])} …")
    raise UsageError(f"{flag} {pattern}: no {what} of this model has such a name", fix=fix)


def _matches(name: str, pattern: str) -> bool:
    names = (name, name.removeprefix(_PEFT))
    return any(fnmatchcase(each, pattern) or fnmatchcase(each, f"{pattern}.*") for each in names)


def _stacks(model: Any) -> dict[str, int]:
    """The stacks of layers by name, with their numbers of layers: lists of modules that are in no other list. Lists of
    single linear layers, as of several heads, are none."""
    found: dict[str, int] = {}
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{stack}.") for stack in found)
        if isinstance(module, nn.ModuleList) and not inside and any(list(layer.children()) for layer in module):
            found[name] = len(module)
    return found


def _depths(model: Any, names: list[str]) -> dict[str, int]:
    """How many layers each parameter lies below what follows the layers."""
    stacks = _stacks(model)
    if not stacks:
        raise refusal("model.no_layers", kind=type(model).__name__)
    # By what they are or are called: BART's norm of the embeddings comes after the layers in the list of its modules.
    embeddings = {name for name, module in model.named_modules() if isinstance(module, nn.Embedding)}
    depths = {}
    for name in names:
        stack = next((each for each in stacks if name.startswith(f"{each}.")), None)
        module = name.rpartition(".")[0]
        if stack is not None:
            depths[name] = stacks[stack] - int(name.removeprefix(f"{stack}.").partition(".")[0])
        else:
            depths[name] = max(stacks.values()) + 1 if module in embeddings or "embed" in module else 0
    return depths
