"""NaN and infinite losses and gradients: noticed in the step in which they occur, on all ranks alike.

The global gradient norm shows it: it is one number on all ranks, known before weights change. A loss that is not finite
while its gradients are (a target whose logit is -inf) is made to count by a factor that turns them into NaN, so that no
further exchange between ranks is needed. DeepSpeed does not apply a step with such a norm (ZeRO-1 and 2 in bf16 since
0.19.3, where `bf16.check_grad_overflow` is true); without DeepSpeed the gradients are dropped here."""

import math
from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import torch

from dsrun.errors import DsrunError
from dsrun.recipe.recipe import Recipe
from dsrun.runs.records import write_json_atomic
from dsrun.system.files import parse_json
from dsrun.train.base.distributed import all_gather_object, all_ready
from dsrun.train.base.refusals import notice_of, refusal
from dsrun.train.model.quantization import is_packed

# torch's GradScaler knows no minimum; below this the loss itself is what overflows. DeepSpeed's own minimum is 1 too.
SMALLEST_SCALE = 1.0

MOST_IN_A_ROW = 10
# Batches of skipped steps kept for inspection.
MOST_SAVED = 20
FOLDER = "nan"
SKIP_FILE = "skip-steps.json"
MOST_SKIPPED_STEPS = 10


def expected_overflow(trainer: Any, optimizer: Any) -> bool:
    """Whether a norm that is not finite only means that the loss scale is still too large; `optimizer` is DeepSpeed's.
    The scaler has then left the step out and lowered the scale."""
    if optimizer is not None:
        return bool(getattr(optimizer, "dynamic_loss_scale", False)) and trainer.args.fp16
    scaler = trainer.accelerator.scaler
    if scaler is None or not scaler.is_enabled():
        return False
    if scaler.get_scale() < SMALLEST_SCALE:
        raise refusal("loss.scale", least=SMALLEST_SCALE)
    return True


class NanLossError(DsrunError):
    """Training met a NaN or an infinity. `rollback`: the run wants to go on from the last checkpoint."""

    def __init__(self, message: str, *, rollback: bool = False) -> None:
        super().__init__(message, fix=notice_of("nan.fix"), cause="nan_loss")
        self.rollback = rollback


@dataclass(eq=False)
class NanGuard:
    """Watches every step of one rank's training. `policy` is --on-nan; `skipped_steps` are never applied.
    `on_skip` (step, reason) is called for every step that is not applied."""

    policy: str
    run: Path
    _: KW_ONLY
    rank: int
    skipped_steps: Collection[int] = ()
    on_skip: Callable[[int, str], None] = lambda _step, _reason: None

    def __post_init__(self) -> None:
        self.folder = self.run / FOLDER
        self._in_a_row = self._saved = 0
        self._steps_since_log = self._skipped_since_log = 0
        self.begin(0, [], None)

    def begin(self, step: int, batches: list[Any], total: torch.Tensor | None, samples: Any = None) -> None:
        """Optimizer step `step` (from 1) begins with these micro batches; `total` is the sum of losses to be logged."""
        self.step = step
        self._batches = batches
        self._samples = samples
        self._losses: list[torch.Tensor] = []
        self._total_before = None if total is None else total.clone()

    def check_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """`loss` of a micro batch, such that its gradients are NaN where it is not finite itself."""
        self._losses.append(loss.detach())
        if self.step in self.skipped_steps:
            return loss * math.nan
        # Multiplying by 1 changes no bit of a healthy step.
        return loss * torch.where(torch.isfinite(loss.detach()), 1.0, math.nan)

    def check_norm(self, trainer: Any, norm: Any) -> Any:
        """Look at the gradient norm of a step before its weights are used; returns it. Raises NanLossError, on all
        ranks, where training cannot go on. Reading the norm waits for the device once a step, as DeepSpeed itself
        does."""
        self._steps_since_log += 1
        optimizer = trainer.model_wrapped.optimizer if trainer.is_deepspeed_enabled else None
        if (norm is None or math.isfinite(float(norm))) and not getattr(optimizer, "overflow", False):
            self._in_a_row = 0
            return norm
        bad = self._bad_losses()
        if self.step not in self.skipped_steps and not bad and expected_overflow(trainer, optimizer):
            return norm
        self._handle(trainer, norm, bad, optimizer)
        return norm

    def _handle(self, trainer: Any, norm: Any, bad: dict[int, float], optimizer: Any) -> None:
        reason = "its batch led to a NaN before and was skipped"
        if self.step not in self.skipped_steps:
            reason = f"the gradient norm is {float(norm) if norm is not None else 'not finite'}"
            if bad:
                ranks = f"rank{'' if len(bad) == 1 else 's'} {', '.join(map(str, bad))}"
                reason = f"the loss is {next(iter(bad.values()))} on {ranks}"
            self._in_a_row += 1
            self._save()
            self._decide(reason, applied=trainer.is_deepspeed_enabled and not getattr(optimizer, "overflow", False))
        self._drop(trainer)
        self.on_skip(self.step, reason)

    def _decide(self, reason: str, *, applied: bool) -> None:
        """Raise where the step cannot be left out. All ranks know the same, so all raise or none."""
        where = f"step {self.step}: {reason}; its batch is in {self.folder}"
        if self.policy == "rollback":
            raise NanLossError(where, rollback=self.goes_back(self.step))
        if self.policy == "stop":
            raise NanLossError(where)
        if applied:
            raise NanLossError(f"{where}; DeepSpeed's configuration lets such a step change the weights")
        if self._in_a_row > MOST_IN_A_ROW:
            raise NanLossError(f"{where}; the {MOST_IN_A_ROW} steps before it were no better")

    def goes_back(self, step: int) -> bool:
        """For --on-nan rollback: whether the run may go back for this step, which rank 0 then records. It may not for
        one that was passed over already, nor for ever."""
        if step in self.skipped_steps or len(self.skipped_steps) >= MOST_SKIPPED_STEPS:
            return False
        if self.rank == 0:
            write_json_atomic(self.run / SKIP_FILE, {"version": 1, "steps": sorted({*self.skipped_steps, step})})
        return True

    def _drop(self, trainer: Any) -> None:
        """Leave the step out: weights and optimizer stay, the schedule of the learning rate moves on with the count of
        steps, and the logged loss is that of the other steps."""
        self._skipped_since_log += 1
        if self._total_before is not None:
            trainer._tr_loss.copy_(self._total_before)
        if not trainer.is_deepspeed_enabled:
            # Optimizers pass over parameters without a gradient.
            for parameter in trainer.model.parameters():
                parameter.grad = None
            return
        scheduler = getattr(trainer.model_wrapped, "lr_scheduler", None) or trainer.lr_scheduler
        if scheduler is not None:
            scheduler.step()

    def correct_logs(self, logs: dict[str, float]) -> dict[str, float]:
        """The Trainer's log line with its loss as the mean over the steps that were applied; NaN where none was."""
        if "loss" not in logs:
            return logs
        steps, skipped = self._steps_since_log, self._skipped_since_log
        self._steps_since_log = self._skipped_since_log = 0
        if not skipped:
            return logs
        return {**logs, "loss": logs["loss"] * steps / (steps - skipped) if steps > skipped else math.nan}

    def check_weights(self, model: Any, step: int) -> None:
        """Raise NanLossError, on all ranks, where any rank's share of the weights is not finite: such a checkpoint
        would be worse than none."""
        if not all_ready(_weights_are_finite(model)):
            message = f"step {step}: weights are NaN or infinite, so no checkpoint of them is written"
            raise NanLossError(message, rollback=self.policy == "rollback" and self.goes_back(step))

    def _bad_losses(self) -> dict[int, float]:
        """The first loss that is not finite, by rank, before fp16's scaling; called on all ranks."""
        gathered = all_gather_object([float(loss) for loss in self._losses])
        bad = {rank: [x for x in losses if not math.isfinite(x)] for rank, losses in enumerate(gathered)}
        return {rank: losses[0] for rank, losses in bad.items() if losses}

    def _save(self) -> None:
        if self._saved >= MOST_SAVED:
            return
        self._saved += 1
        self.folder.mkdir(parents=True, exist_ok=True)
        facts = {
            "step": self.step,
            "rank": self.rank,
            "losses": [float(loss) for loss in self._losses],
            # Plain dicts, so that torch.load needs no trust.
            "batches": [dict(batch) for batch in self._batches],
            "samples": self._samples,
        }
        torch.save(facts, self.folder / f"step-{self.step}-rank-{self.rank}.pt")


def _weights_are_finite(model: Any) -> bool:
    # Under ZeRO-3 a parameter's own tensor is empty, and this rank's shard beside it.
    shards = [getattr(p, "ds_tensor", p).detach() for p in model.parameters() if not is_packed(p)]
    shards = [shard for shard in shards if shard.numel() and shard.is_floating_point()]
    norms = torch._foreach_norm(shards, ord=math.inf) if shards else ()
    # One number, so that the device is waited for once; NaN and infinity survive the maximum.
    return not norms or bool(
        torch.isfinite(torch.stack([norm.to(norms[0].device, torch.float32) for norm in norms]).max())
    )


def steps_to_skip(run: Path, recipe: Recipe, notify: Callable[[str], None]) -> frozenset[int]:
    """The optimizer steps, counted from 1, that are not to be applied; none where the file is damaged, which is
    noted."""
    if recipe.spec.resume == "never":
        return frozenset()
    try:
        match parse_json((run / SKIP_FILE).read_text(encoding="utf-8")):
            case {"version": 1, "steps": [*steps]} if all(type(step) is int and step > 0 for step in steps):
                return frozenset(steps)
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError):
        pass
    notify(f"{run / SKIP_FILE} is damaged; steps that it named are not left out, and may fail again")
    return frozenset()
