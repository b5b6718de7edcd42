"""Models that are read and not trained: the reference of DPO, and the teacher of a distillation."""

from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.base.distributed import my_rank
from dsrun.train.loss.protocol import STATE_FILE, PreferenceInputs
from dsrun.train.model.load import evaluating


class AdaptersOff:
    """The reference of a LoRA run: the model without its adapters, which has no state of its own."""

    def __init__(self, adapted: Any) -> None:
        self.adapted = adapted

    @torch.no_grad()
    def logits(self, trained: Any, inputs: PreferenceInputs) -> torch.Tensor:
        """[rows, length, vocabulary]; `trained` is the model that is trained, as the Trainer wraps it."""
        # Not by way of `trained`: the hooks of ZeRO-3 are on the modules, and DDP has nothing to do without gradients.
        with evaluating(self.adapted), self.adapted.disable_adapter():
            logits: torch.Tensor = self.adapted(**inputs)["logits"]
        return logits


class FrozenModel:
    """A second model, sharded like the first under ZeRO-3. A `reference` takes the dtype of the trained model, so that
    until the first step both compute the same; a teacher keeps its own."""

    def __init__(self, model: Any, *, sharded: bool, reference: bool = True) -> None:
        self.model = model.eval().requires_grad_(False)
        self.sharded = sharded
        self.reference = reference
        self.has_moved = False
        self._engine: Any = None

    @torch.no_grad()
    def logits(self, trained: Any, inputs: PreferenceInputs) -> torch.Tensor:
        if self._engine is None:
            self._prepare(trained)
        logits: torch.Tensor = self._engine(**inputs)["logits"]
        return logits

    def _prepare(self, trained: Any) -> None:
        """Bring the model to where the trained one is by now. A collective under ZeRO-3."""
        if self.sharded:
            import deepspeed
            from transformers.integrations.deepspeed import deepspeed_config

            self._engine, *_ = deepspeed.initialize(model=self.model, config=inference_config(deepspeed_config()))
            self._engine.eval()
            return
        like = next(trained.parameters())
        self._engine = self.model.to(device=like.device, dtype=like.dtype if self.reference else None)

    @torch.no_grad()
    def move(self, trained: Any, share: float) -> None:
        """Go `share` of the way to the weights of `trained`, the bare model (TR-DPO, Gorbatovski et al. 2024). A
        collective under ZeRO-3."""
        self.has_moved = True
        for mine, new in zip(self.model.parameters(), trained.parameters(), strict=True):
            with self._whole(new), self._whole(mine, changed=True):
                mine.lerp_(new.to(mine), share)

    def _whole(self, parameter: Any, *, changed: bool = False) -> Any:
        """One parameter at a time, where it is sharded: a whole model may not fit on a GPU."""
        if not self.sharded:
            return nullcontext()
        import deepspeed

        return deepspeed.zero.GatheredParameters(parameter, modifier_rank=0 if changed else None)

    def tensors(self) -> dict[str, torch.Tensor]:
        """On rank 0 the weights, if they have moved. A collective under ZeRO-3."""
        weights = {}
        for name, parameter in self.model.named_parameters() if self.has_moved else ():
            with self._whole(parameter):
                if my_rank() == 0:
                    weights[name] = parameter.detach().to("cpu", copy=True) if self.sharded else parameter.detach()
        return weights

    @torch.no_grad()
    def restore(self, checkpoint: Path) -> None:
        """Take the weights that `checkpoint` has, if they had moved by then. A collective under ZeRO-3."""
        file = checkpoint / STATE_FILE
        if not file.is_file():
            return
        from safetensors import safe_open  # few runs move their reference

        self.has_moved = True
        with safe_open(file, "pt") as weights:
            for name, parameter in self.model.named_parameters():
                with self._whole(parameter, changed=True):
                    if not self.sharded:
                        parameter.data = weights.get_tensor(name)
                    elif my_rank() == 0:
                        parameter.copy_(weights.get_tensor(name))


class ReferenceSync(TrainerCallback):
    """Moves the reference, a FrozenModel, towards the model."""

    def __init__(self, reference: Any, spec: TrainSpec) -> None:
        self.reference = reference
        self.spec = spec

    def on_step_end(self, args: Any, state: Any, control: Any, *, model: Any, **kwargs: Any) -> None:
        if state.global_step % self.spec.ref_model_sync_steps == 0:
            self.reference.move(model, self.spec.ref_model_mixup_alpha)


def inference_config(config: dict[str, Any]) -> dict[str, Any]:
    """DeepSpeed's configuration of a model that is only read, from that of the one that is trained."""
    kept = {name: deepcopy(value) for name, value in config.items() if name not in ("optimizer", "scheduler")}
    kept["zero_optimization"].pop("offload_optimizer", None)
    return kept
