"""Distillation: the model comes to give each target token's place the probabilities that a teacher gives it.

The teacher is loaded as its files have it, and compared with the model that learns from it."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from dsrun.recipe.preflight.files import of_teacher
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.system.terminal.display import NotePrinter
from dsrun.train.base.labels import IGNORED, shifted_targets
from dsrun.train.base.plan import TrainingPlan
from dsrun.train.base.refusals import refusal, refuse
from dsrun.train.data.encoding.tokenizer import load_tokenizer
from dsrun.train.loss.cross_entropy import are_kept, chunks, token_cross_entropy
from dsrun.train.loss.model_loss import ModelLoss, perplexity, summed_cross_entropy
from dsrun.train.loss.protocol import FrozenModel, PreferenceInputs
from dsrun.train.model.build_model import build
from dsrun.train.model.load import load_config

METRICS = ("divergence", "cross_entropy", "perplexity")
"""What evaluation yields beside the loss."""


def _kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """KL(P ‖ Q) in nats of log probabilities [..., vocabulary]."""
    return (p.exp() * (p - q)).sum(-1)


def _jsd(student: torch.Tensor, teacher: torch.Tensor, beta: float) -> torch.Tensor:
    """Generalised Jensen-Shannon divergence (Agarwal et al. 2024, section 2): of each to a mixture with a share of
    `beta` of the teacher."""
    mixture = torch.logaddexp(teacher + math.log(beta), student + math.log1p(-beta))
    return beta * _kl(teacher, mixture) + (1 - beta) * _kl(student, mixture)


DIVERGENCES: dict[str, Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]] = {
    "forward": lambda student, teacher, _: _kl(teacher, student),
    "reverse": lambda student, teacher, _: _kl(student, teacher),
    "jsd": _jsd,
}
"""Of log probabilities by student and teacher, and β, at each position."""

TokenLoss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Of fp32 logits by student and teacher [tokens, vocabulary] and targets [tokens]: the loss of each token."""


def in_chunks(loss: TokenLoss, student: torch.Tensor, teacher: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The summed loss of the tokens whose target is not IGNORED, in fp32, without an fp32 copy of the logits of either
    model, [*targets.shape, vocabulary]. The backward pass writes over the student's, unless others need them."""
    rows, theirs = (each.reshape(-1, each.size(-1)) for each in (student, teacher))
    flat = targets.reshape(-1).to(student.device)
    total: torch.Tensor = _Chunked.apply(loss, rows, theirs, flat)
    return total


class _Chunked(torch.autograd.Function):
    """Both passes compute a few positions in fp32 at a time, the backward pass its gradient along with them."""

    @staticmethod
    def forward(
        ctx: Any, loss: TokenLoss, student: torch.Tensor, teacher: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(student, teacher, targets)
        ctx.loss, ctx.overwrite = loss, not are_kept(student)
        total = torch.zeros((), device=student.device)
        for part in chunks(student):
            each = loss(student[part].float(), teacher[part].float(), targets[part])
            total += each.where(targets[part].ne(IGNORED), 0.0).sum()
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, torch.Tensor, None, None]:
        student, teacher, targets = ctx.saved_tensors
        found = student.detach() if ctx.overwrite else torch.empty_like(student)
        for part in chunks(student):
            with torch.enable_grad():
                # A copy also of fp32 logits, which may be written to below.
                logits = student[part].detach().to(torch.float32, copy=True).requires_grad_()
                each = ctx.loss(logits, teacher[part].float(), targets[part])
                total = each.where(targets[part].ne(IGNORED), 0.0).sum()
            found[part] = torch.autograd.grad(total, logits, gradients[0])[0]
            del logits, each, total
        return None, found, None, None


class DistillLoss(ModelLoss):
    """(1 - alpha) T² D(student, teacher) + alpha × cross entropy, as a mean over target tokens; D is one of the
    DIVERGENCES of probabilities at temperature T (Hinton et al. 2015), over the vocabulary that both models have.
    Router losses of a mixture of experts are left out."""

    no_logits = "the loss of --task distill also depends on its teacher"

    def __init__(self, teacher: FrozenModel, spec: TrainSpec, *, shifted: bool, smoothing: float = 0.0) -> None:
        super().__init__("logits", shifted, smoothing)
        self.teacher = teacher
        self.spec = spec

    def divergence(self, student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        """T² D at each position, of logits."""
        common = min(student.size(-1), teacher.size(-1))
        heat, of_positions = self.spec.distill_temperature, DIVERGENCES[self.spec.distill_loss]
        mine, other = ((each[:, :common] / heat).log_softmax(-1) for each in (student, teacher))
        return heat**2 * of_positions(mine, other, self.spec.distill_beta)

    def __call__(self, model: Any, inputs: PreferenceInputs, items: torch.Tensor) -> tuple[torch.Tensor, Any]:
        outputs, teacher, targets = self._run(model, inputs)
        alpha = self.spec.distill_alpha

        def loss(student: torch.Tensor, teacher: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            if not alpha:
                return self.divergence(student, teacher)
            entropy = token_cross_entropy(student, targets, self.smoothing)
            return (1 - alpha) * self.divergence(student, teacher) + alpha * entropy

        return in_chunks(loss, outputs["logits"], teacher, targets) / items, outputs

    @torch.no_grad()
    def sums(self, model: Any, inputs: PreferenceInputs) -> torch.Tensor:
        """Summed cross entropy, divergence, and target tokens [3]."""
        outputs, teacher, targets = self._run(model, inputs)
        entropy = summed_cross_entropy(outputs["logits"], targets, shifted=False)
        apart = in_chunks(lambda *logits: self.divergence(*logits[:2]), outputs["logits"], teacher, targets)
        return torch.stack([entropy, apart, targets.ne(IGNORED).sum().to(entropy)]).double()

    def metrics(self, sums: torch.Tensor) -> dict[str, float]:
        entropy, apart = (sums[:2] / sums[2].clamp(min=1)).tolist()
        loss = (1 - self.spec.distill_alpha) * apart + self.spec.distill_alpha * entropy
        return {"loss": loss, "divergence": apart, "cross_entropy": entropy, "perplexity": perplexity(entropy)}

    def _run(self, model: Any, inputs: PreferenceInputs) -> tuple[Any, torch.Tensor, torch.Tensor]:
        """The model's outputs, the teacher's logits, and the target of each position."""
        labels = inputs["labels"]
        read = {name: value for name, value in inputs.items() if name != "labels"}
        # First, so that ZeRO-3 has the trained model's parameters at hand for the backward pass.
        teacher = self.teacher.logits(model, read)
        outputs = model(**read)
        return outputs, teacher, shifted_targets(labels) if self.shifted else labels


def load_teacher(plan: TrainingPlan, tokenizer: Any, student: Any, *, notify: NotePrinter) -> Any:
    """The teacher in the dtype of its files. Raises UsageError where token ids mean something else to it, or it reads
    other inputs. All ranks call this together."""
    spec = of_teacher(plan.recipe.spec)
    config = load_config(spec)
    if bool(config.is_encoder_decoder) != (plan.task == "seq2seq"):
        raise refusal("teacher.kind", name=spec.model)
    rows, own = (each.get_text_config().vocab_size for each in (config, student.config))
    theirs = {number: token for token, number in load_tokenizer(spec).get_vocab().items()}
    others = [token for token, number in tokenizer.get_vocab().items() if theirs.get(number, token) != token]
    names = {"name": spec.model, "others": others, "count": len(others), "rows": rows, "tokens": len(tokenizer)}
    refuse("teacher_tokenizer", **names)
    if rows != own:
        notify(f"the models' vocabularies have {own:,} and {rows:,} rows: the first {min(rows, own):,} are compared")
    return build(spec, config, plan.task, device=plan.world.device)
