"""Activations: what a forward pass keeps for the backward pass, in bytes.

The count follows Korthikanti et al. 2022 (https://arxiv.org/abs/2205.05198, equations 1 and 2), operator by operator,
for what transformers 5.23 runs instead of Megatron: bf16 or fp32, fused attention that keeps no score matrix (Dao et
al. 2022), RMS norms computed in fp32, gated feed-forward parts. Each function names the tensors it counts; a test
holds the sums against the tensors that autograd really saves.

Widths are elements per token; B tokens of bf16 take 2 × B bytes per element, fp32 4 × B."""

from collections.abc import Set
from typing import Literal, NamedTuple

from dsrun.zero.memory.model.architecture import LayerWidths, ModelShapes, NormKind
from dsrun.zero.memory.rank.loss import (
    FP32,
    LogitShape,
    LossBytes,
    TrainerName,
    dsrun_loss,
    liger_loss,
    stock_loss,
    trl_loss,
)

AttentionKernel = Literal["sdpa", "flash", "eager"]
"""torch's scaled_dot_product_attention; flash_attention_2 and the like; eager, which keeps scores and probabilities."""

LigerPart = Literal["loss", "norms", "swiglu"]
LIGER: frozenset[LigerPart] = frozenset({"loss", "norms", "swiglu"})
"""What liger-kernel replaces in a model: the loss, RMS norms, gated feed-forward parts."""

INT64 = 8
MASK_BYTES = 1
"""Per element that dropout looks at: CUDA's native_dropout keeps a bool."""


class TokenBatch(NamedTuple):
    """One rank's micro batch: samples, and tokens per sample (of a seq2seq model: of sources and of targets).

    `width` is the bytes of one activation; `autocast` says that weights are cast as they are used (plain DDP), and
    `residual` that the embedding's are fp32, so that what layers hand on is, too.
    `adapters` is the LoRA rank. `trainer` computes the loss, and `liger` are the parts that are liger-kernel's.
    `padded`: the rows of a micro batch differ in length, as they do unless samples are packed."""

    micro_batch: int
    length: int
    source_length: int = 0
    width: int = 2
    checkpointing: bool = False
    attention: AttentionKernel = "sdpa"
    autocast: bool = False
    residual: bool = False
    adapters: int | None = None
    trainer: TrainerName = "dsrun"
    liger: Set[LigerPart] = frozenset()
    padded: bool = True
    dropout: bool = True

    @property
    def masked(self) -> bool:
        """Whether attention is given a mask of tokens × tokens for padding. A single row has none, and transformers
        drops a mask that masks nothing (masking_utils.py, _ignore_causal_mask_sdpa); flash attention takes lengths."""
        return self.padded and self.micro_batch > 1 and self.attention != "flash"


class ActivationBytes(NamedTuple):
    """Bytes of one micro batch.

    `kept` live from forward to backward; `working` is the largest extra need at a time while the backward pass runs
    through one layer; `logits` that of the loss. The two do not meet: the peak is kept + max(working, logits). `cast`
    is the gap that whole logits leave (LossBytes)."""

    kept: int
    working: int
    logits: int
    cast: int = 0

    @property
    def peak(self) -> int:
        return self.kept + max(self.working, self.logits)


def activations(model: ModelShapes, work: TokenBatch) -> ActivationBytes:
    """What `work` keeps of `model`."""
    samples, width, d = work.micro_batch, work.width, model.hidden
    kept = working = 0
    for stack, length, other in _sides(model, work):
        layer = layer_bytes(model, stack, work, length, other)
        # Liger writes the gradients of both projections over them (ops/swiglu.py, swiglu_backward).
        extra = samples * length * width * ((1 if _fuses(model, stack, work) else 3) * stack.ffn + 4 * d)
        if work.adapters and work.autocast:  # peft casts what it is given to the fp32 of its adapters, for a while
            extra += samples * length * FP32 * stack.ffn
        if work.checkpointing:
            # Only the layer's input stays; the layer is run again right before its backward pass.
            kept += stack.layers * samples * length * (FP32 if work.residual else width) * d
            working = max(working, layer + extra)
        else:
            kept += stack.layers * layer
            working = max(working, extra)
        kept += samples * length * (_norm(model.norm, d, work) + 8)
        if model.dropout and work.dropout:
            kept += 2 * samples * length * d * MASK_BYTES
    kept += shared_bytes(model, work)
    loss = loss_bytes(model, work)
    return ActivationBytes(kept=kept, working=working, logits=loss.peak, cast=loss.cast)


def loss_bytes(model: ModelShapes, work: TokenBatch) -> LossBytes:
    """What the loss of `work` holds."""
    logits = LogitShape(work.micro_batch * work.length, model.vocabulary, model.hidden, work.width)
    if work.trainer == "trl" and model.encoder is None:  # with Liger's layers, too
        return trl_loss(logits, head_trains=not work.adapters)
    if "loss" in work.liger:
        return liger_loss(logits, head_trains=not work.adapters)
    if work.trainer != "dsrun":
        return stock_loss(logits, upcast=work.autocast or model.encoder is None)
    return dsrun_loss(logits, copied=work.autocast, routed=bool(model.decoder.experts))


def _sides(model: ModelShapes, work: TokenBatch) -> list[tuple[LayerWidths, int, int]]:
    """Each stack with its own length and that of what it attends across to, in tokens."""
    if model.encoder is None:
        return [(model.decoder, work.length, 0)]
    return [(model.encoder, work.source_length, 0), (model.decoder, work.length, work.source_length)]


def layer_bytes(model: ModelShapes, stack: LayerWidths, work: TokenBatch, length: int, other: int) -> int:
    """Everything one layer keeps of a micro batch of `length` tokens per sample."""
    tokens = work.micro_batch * length
    total = tokens * stack.norms * _norm(model.norm, model.hidden, work)
    total += _self_attention(model, stack, work, length)
    if stack.cross:
        total += _cross_attention(model, stack, work, length, other)
    total += tokens * _feed_forward(model, stack, work)
    if model.dropout and work.dropout:
        sites = (3 if stack.cross else 2) * model.hidden + (stack.ffn if model.norm == "t5" else 0)
        total += tokens * sites * MASK_BYTES
    if work.adapters:
        matrices = 4 + (4 if stack.cross else 0) + (3 if stack.gated else 2)
        total += tokens * matrices * work.adapters * work.width
        if work.autocast:  # of that cast (see `activations`) autocast keeps its own in 16 bits; norms count theirs
            total += tokens * (stack.ffn + stack.queries) * work.width
    return total


def shared_bytes(model: ModelShapes, work: TokenBatch) -> int:
    """Kept once, not per layer: the bucket of each pair of positions (T5, int64), or the padding mask (bool)."""
    lengths = [work.length] + ([work.source_length] if model.encoder else [])
    cells = sum(length * length for length in lengths)
    if model.relative_bias:
        return INT64 * cells
    return work.micro_batch * cells if work.masked else 0


def _norm(kind: NormKind, width: int, work: TokenBatch) -> int:
    """Per token: what a norm keeps, its output included, as the linear layers behind it keep that.

    rms: x in fp32, the normed x, which the weight's gradient needs, and the output. t5: the same, but in bf16 both x
    and its fp32 copy. layer: x and the output. Under autocast all is fp32, and each linear layer casts its own input.
    """
    b = work.width
    if work.autocast:
        copies = 1 if kind == "layer" or (kind == "rms" and "norms" in work.liger) else 2
        return copies * FP32 * width + 3 * b * width
    if kind == "rms" and "norms" in work.liger:  # computed again from x (ops/rms_norm.py)
        return 2 * b * width + FP32
    trained = 0 if work.adapters else b * width
    if kind == "layer":
        return 2 * b * width + 8
    copy = b * width if kind == "t5" and b < FP32 else 0
    return FP32 * width + copy + trained + b * width + FP32


def _self_attention(model: ModelShapes, stack: LayerWidths, work: TokenBatch, length: int) -> int:
    """Queries, keys, values and output; scores only where the kernel keeps them.

    A padding mask keeps sdpa from grouped keys, so they are repeated for every head (integrations/sdpa_attention.py).
    """
    b, tokens = work.width, work.micro_batch * length
    keys = stack.queries if work.masked else stack.keys
    total = tokens * (b * (2 * stack.queries + 2 * keys) + FP32 * stack.heads)
    if stack.query_norms:
        total += tokens * (stack.queries + stack.keys) * (FP32 + b)
        total += tokens * FP32 * (stack.queries + stack.keys) * stack.heads // stack.queries
    if model.family == "gpt_neox":
        # Values are a view into the fused projection, so all of that stays beside the rotated queries and keys.
        total += tokens * 2 * b * stack.queries
    return total + _scores(model, stack, work, length, length)


def _cross_attention(model: ModelShapes, stack: LayerWidths, work: TokenBatch, length: int, other: int) -> int:
    """Queries and output of the decoder's tokens, keys and values of the encoder's."""
    b = work.width
    own = work.micro_batch * length * (2 * b * stack.queries + FP32 * stack.heads)
    return own + work.micro_batch * other * 2 * b * stack.keys + _scores(model, stack, work, length, other)


def _scores(model: ModelShapes, stack: LayerWidths, work: TokenBatch, rows: int, columns: int) -> int:
    """Matrices of rows × columns per sample and head.

    T5 adds a bias to the scores, so even fused attention is given a full matrix of them; a padding mask is turned into
    a bias that all heads share (torch's convert_boolean_attn_mask, once per layer). Eager attention keeps the
    probabilities in fp32 and in the activation's type, and dropout's mask."""
    cells = work.micro_batch * rows * columns
    if work.attention != "eager":
        if model.relative_bias:
            return cells * stack.heads * work.width
        return cells * work.width if work.masked else 0
    probabilities = work.width + (FP32 if work.width < FP32 else 0)
    dropped = MASK_BYTES + work.width if model.attention_dropout and work.dropout else 0
    return cells * stack.heads * (probabilities + dropped)


def _feed_forward(model: ModelShapes, stack: LayerWidths, work: TokenBatch) -> int:
    """Per token: gated: both projections, the activation and the product; else the activation's input and output.

    gelu_new (gated T5, GPT-2) is written out in Python and keeps three more; T5's relu keeps only its output. Of a
    mixture of experts also what router and dispatch copy: the hidden state per expert a token goes to, and the outputs.
    """
    b = work.width
    if stack.gated:
        tensors = 7 if model.norm == "t5" else 3 if _fuses(model, stack, work) else 4
    else:
        tensors = 5 if model.family == "gpt2" else 1 if model.norm == "t5" else 2
    total = tensors * b * stack.ffn
    if stack.experts:
        total += 3 * b * stack.experts_per_token * model.hidden + FP32 * 2 * stack.experts
    return total


def _fuses(model: ModelShapes, stack: LayerWidths, work: TokenBatch) -> bool:
    """Whether a gated feed-forward part is Liger's, which computes the activation again from both projections."""
    return "swiglu" in work.liger and stack.gated and not stack.experts and model.norm == "rms"
