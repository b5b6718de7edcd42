"""What the Trainer, evaluation and checkpoints ask of a loss, whatever it is computed from; and the models that losses
read and that are not trained: the reference of DPO, and the teacher of a distillation."""

from collections.abc import Sequence
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import TrainerCallback

from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.base.distributed import my_rank
from dsrun.train.model.load import evaluating

PreferenceInputs = dict[str, Any]
STATE_FILE = "reference.safetensors"
"""In a checkpoint, if a loss has anything to keep: the weights of a reference that has moved."""


class Loss(Protocol):
    """Computes what a micro batch contributes to the loss of an optimizer step: a mean over all items of the global
    batch, target tokens or samples or pairs, so that neither micro batches nor ranks change it."""

    kind: str
    """Where it comes from: see `model_loss.LossKind`; "plugin" for one of the user's."""
    shifted: bool
    """Whether label i is the target of position i - 1 (causal LM)."""
    rows: int = 1
    """Rows of a batch that are one sample."""
    window: torch.Tensor | None = None
    """What goes into the next log line beside the loss, summed since the last one."""
    no_logits: str | None = None
    """Why the loss of each set of a mixture cannot be told from the logits of a micro batch; None where it can."""
    ids: Sequence[int] = ()
    """The samples of the micro batch to be computed."""
    spans: Sequence[tuple[int, int, int]] = ()
    """Where their labels are: row, first position, and the one behind the last."""

    def items(self, labels: torch.Tensor) -> torch.Tensor:
        """What the loss is a mean over, counted in the labels of a micro batch; of several terms, one for each."""
        ...

    def __call__(self, model: Any, inputs: PreferenceInputs, items: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The loss, a scalar, and the model's outputs, whose logits the backward pass may overwrite; `items` are those
        of the whole global batch."""
        ...

    def sums(self, model: Any, inputs: PreferenceInputs) -> torch.Tensor:
        """For evaluation: sums over a batch, fp64, which are added up over batches and ranks."""
        ...

    def metrics(self, sums: torch.Tensor) -> dict[str, float]:
        """What the `sums` of all batches on all ranks, added up, say."""
        ...

    def logged(self, window: torch.Tensor) -> dict[str, float]:
        """What goes into the log line beside the loss, from the `window` of all ranks, added up."""
        return {}

    def tensors(self) -> dict[str, torch.Tensor]:
        """On rank 0, what a checkpoint has to keep of it, in STATE_FILE. A collective."""
        return {}

    def restore(self, checkpoint: Path) -> None:
        """Take what a checkpoint has kept. A collective."""
        return


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
