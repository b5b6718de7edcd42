"""Cross entropy without an fp32 copy of all logits: both passes turn a few positions into fp32 at a time.

`F.cross_entropy(logits.float())` keeps fp32 log-probabilities for the backward pass, and there makes two more tensors
of that size. Here the logits are kept as they are, and their gradient is written in their own dtype, to which autograd
would round it anyway. DeepSpeed 0.19.8 (runtime/chunked_cross_entropy.py) does the same without label smoothing."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from dsrun.train.base.labels import IGNORED, shifted_targets
from dsrun.zero.memory.rank.loss import LOSS_CHUNK


def token_cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, smoothing: float = 0.0, *, overwrite: bool = False
) -> torch.Tensor:
    """Cross entropy in nats at each position, fp32 of the shape of `targets`, 0 where the target is IGNORED. `logits`
    are [*targets.shape, vocabulary]; `smoothing` as in Szegedy et al. 2016.

    With `overwrite`, for logits that nothing reads in or after the backward pass, that writes their gradient where they
    are. A graph that needs them all the same fails in its backward pass, as does a second backward pass."""
    rows, flat = logits.reshape(-1, logits.size(-1)), targets.reshape(-1).to(logits.device)
    if torch.compiler.is_compiling():
        # The compiler fuses these by itself, and would unroll the chunks.
        each = F.cross_entropy(rows.float(), flat, ignore_index=IGNORED, reduction="none", label_smoothing=smoothing)
    else:
        each = _CrossEntropy.apply(rows, flat, smoothing, overwrite and not are_kept(logits))
    return each.view(targets.shape)


def causal_lm_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    vocab_size: int | None = None,
    num_items_in_batch: torch.Tensor | None = None,
    shift_labels: torch.Tensor | None = None,
    *,
    smoothing: float = 0.0,
    overwrite: bool = False,
    **kwargs: Any,
) -> torch.Tensor:
    """What models call as `self.loss_function`, with the arguments of transformers' ForCausalLMLoss: the mean over
    target tokens, or the sum divided by `num_items_in_batch`."""
    targets = shifted_targets(labels) if shift_labels is None else shift_labels
    total = token_cross_entropy(logits, targets, smoothing, overwrite=overwrite).sum()
    items = targets.ne(IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
    return total / torch.as_tensor(items, device=total.device)


def are_kept(logits: torch.Tensor) -> bool:
    """Whether a backward pass up to the `logits` needs them, as that of tanh needs its result, or they are a leaf."""
    node = logits.grad_fn
    if node is None:
        return True
    # Below views, and whatever DeepSpeed puts around a model's outputs.
    while node is not None and not hasattr(type(node), "_saved_result"):
        node = node.next_functions[0][0] if len(node.next_functions) == 1 else None
    return node is not None


class _CrossEntropy(torch.autograd.Function):
    """`logits` [tokens, vocabulary], `targets` [tokens]; gives [tokens] in fp32."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, targets: torch.Tensor, smoothing: float, overwrite: bool
    ) -> torch.Tensor:
        ctx.save_for_backward(logits, targets)
        ctx.smoothing, ctx.overwrite = smoothing, overwrite
        each = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
        for part in chunks(logits):
            each[part] = F.cross_entropy(
                logits[part].float(), targets[part], ignore_index=IGNORED, reduction="none", label_smoothing=smoothing
            )
        return each

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """d loss / d logits = softmax - target distribution, at each position times the gradient of its loss."""
        logits, targets = ctx.saved_tensors
        learned = targets.ne(IGNORED)
        weights = gradients[0].where(learned, 0.0).unsqueeze(1)
        # An ignored target is no index.
        index = targets.where(learned, 0).unsqueeze(1)
        found = logits.detach() if ctx.overwrite else torch.empty_like(logits)
        for part in chunks(logits):
            difference = torch.softmax(logits[part], 1, dtype=torch.float32)
            if ctx.smoothing:
                difference -= ctx.smoothing / logits.size(1)
            at = index[part]
            difference.scatter_(1, at, difference.gather(1, at) - (1 - ctx.smoothing))
            torch.mul(difference, weights[part], out=found[part])
            # Or it is still there while the next chunk's is made.
            del difference
        return found, None, None, None


def chunks(logits: torch.Tensor) -> Iterator[slice]:
    """Runs of the rows of `logits`, of about LOSS_CHUNK logits together."""
    step = max(1, LOSS_CHUNK // logits.size(1))
    return (slice(start, start + step) for start in range(0, len(logits), step))
