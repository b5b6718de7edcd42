"""What the loss holds at its peak, in bytes, by who computes it: dsrun, the stock Trainer, TRL or liger-kernel.

The peak is the beginning of the backward pass: everything that was kept, and the gradient of the logits."""

from math import ceil
from typing import Literal, NamedTuple

TrainerName = Literal["dsrun", "hf", "trl"]

FP32 = 4
LOSS_CHUNK = 1 << 23
"""Logits that dsrun's cross entropy turns into fp32 at a time: 32 MiB, which is much for one kernel of a GPU; glibc
maps and clears larger blocks anew each time."""
STOCK_COPIES = 3
"""Of the logits in fp32 under the Trainer's own loss: log-probabilities, their gradient and that of the logits (torch's
log_softmax and nll_loss; measured on an H200 with torch 2.11, docs/benchmarks.md)."""
TILE_TOKENS, TILE_VOCABULARY = 4096, 32_768
"""Of one tile of TRL 1.16's loss (trl/kernels/chunked_logprob.py, trl/trainer/utils.py)."""


class LossBytes(NamedTuple):
    """Bytes at the peak, of which `cast` more are a gap: the logits in 16 bits, freed when they are in fp32, and too
    small a place for anything as large that comes later."""

    peak: int
    cast: int = 0


class LogitShape(NamedTuple):
    """Logits of `tokens` × `vocabulary`, each of `width` bytes, from `hidden` elements a token."""

    tokens: int
    vocabulary: int
    hidden: int
    width: int

    @property
    def elements(self) -> int:
        return self.tokens * self.vocabulary

    @property
    def head(self) -> int:
        """Elements of the output embedding."""
        return self.vocabulary * self.hidden


def dsrun_loss(logits: LogitShape, *, copied: bool, routed: bool) -> LossBytes:
    """The logits, whose gradient takes their place, and two fp32 copies of a chunk (dsrun/train/loss/cross_entropy.py).

    `copied`: under autocast accelerate turns a model's outputs into fp32. `routed`: router losses keep the logits from
    being overwritten; not all mixtures of experts have them (DeepSeek-V3 has none)."""
    each = logits.width + (FP32 if copied else 0) + (logits.width if routed else 0)
    return LossBytes(each * logits.elements + 2 * FP32 * min(logits.elements, LOSS_CHUNK))


def stock_loss(logits: LogitShape, *, upcast: bool) -> LossBytes:
    """All logits at a time. `upcast`: in fp32, as causal language models have it (transformers 5.23,
    loss/loss_utils.py, ForCausalLMLoss), and autocast for all; T5's is in the dtype of its logits."""
    width = FP32 if upcast else logits.width
    return LossBytes(
        STOCK_COPIES * width * logits.elements, logits.width * logits.elements if width > logits.width else 0
    )


def trl_loss(logits: LogitShape, *, head_trains: bool) -> LossBytes:
    """Tiles of tokens and vocabulary; gradients of the hidden states and of the output embedding are summed in fp32,
    and then cast."""
    tile = min(logits.tokens, TILE_TOKENS) * TILE_VOCABULARY
    gradients = logits.tokens * logits.hidden + (logits.head if head_trains else 0)
    return LossBytes(logits.width * tile + (FP32 + logits.width) * gradients)


def liger_loss(logits: LogitShape, *, head_trains: bool) -> LossBytes:
    """liger-kernel 0.8.5 (ops/fused_linear_cross_entropy.py): logits of one chunk of tokens, of about as many bytes as
    the hidden states; the gradients of these, and of the output embedding twice, as each chunk's is added."""
    chunk = min(logits.tokens, 1 << (ceil(logits.tokens / ceil(logits.vocabulary / logits.hidden)) - 1).bit_length())
    head = 2 * logits.head if head_trains else 0
    return LossBytes(logits.width * (chunk * logits.vocabulary + logits.tokens * logits.hidden + head))
