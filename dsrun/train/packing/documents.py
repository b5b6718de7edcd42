"""Attention within each document of a packed row, in place of one over the row with a block mask: it costs the squares
of the documents' lengths, not of the row's. Flash attention does the same, where it is installed."""

from __future__ import annotations

from typing import Any

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

# Of torch's own flash kernel, see torch.nn.attention.varlen.
KERNEL_DTYPES = (torch.float16, torch.bfloat16)
_DROPOUTS = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")


class DocumentAttention:
    """Transformers' `sdpa` attention, which looks within documents where a batch comes with their borders.

    `windowed` are the layers that named a sliding window, None where nobody asks: no mask brings it to the others.
    """

    windowed: set[int] | None = None

    def __call__(
        self, module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, **given: Any
    ) -> tuple[torch.Tensor, None]:
        """Query, key and value [rows, heads, tokens, width]; with `cu_seq_lens_q`, int32 [documents + 1], a single row.
        Returns [rows, tokens, heads, width]."""
        ends = given.pop("cu_seq_lens_q", None)
        if ends is None:
            return sdpa_attention_forward(module, query, key, value, attention_mask, **given)
        if given.get("position_bias") is not None or key.shape[2] != query.shape[2]:
            raise ValueError("its attention is not that of tokens on their own document")
        window = given.get("sliding_window")
        if window and self.windowed is not None:
            self.windowed.add(id(module))
        query, key, value = _of_autocast(query, key, value)
        if query.is_cuda and query.dtype in KERNEL_DTYPES and not given.get("dropout"):
            return _by_kernel(module, query, key, value, ends, **given), None
        return _one_by_one(module, query, key, value, ends, **given), None


ATTENTION = DocumentAttention()


def _of_autocast(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """In the dtype of autocast, which casts for sdpa but knows nothing of torch's kernel for documents."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    return tuple(tensor.to(torch.get_autocast_dtype(kind)) for tensor in tensors)


def _by_kernel(module: Any, query: Any, key: Any, value: Any, ends: Any, **given: Any) -> torch.Tensor:
    from torch.nn.attention.varlen import varlen_attn

    causal = given.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    window = given.get("sliding_window")
    longest = given["max_length_q"]
    found = varlen_attn(
        *(tensor[0].transpose(0, 1) for tensor in (query, key, value)),
        ends,
        ends,
        longest,
        longest,
        scale=given.get("scaling"),
        # Tokens to the left and to the right; transformers counts the token itself, too.
        window_size=(window - 1 if window else -1, 0 if causal else -1),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return found[None]


# Compiled, it would be traced again for each set of lengths.
@torch.compiler.disable
def _one_by_one(module: Any, query: Any, key: Any, value: Any, ends: Any, **given: Any) -> torch.Tensor:
    lengths = ends.diff().tolist()
    window = given.get("sliding_window")
    parts = (tensor.split(lengths, dim=2) for tensor in (query, key, value))
    found = [
        sdpa_attention_forward(module, *document, _window_mask(document[0], window), **given)[0]
        for document in zip(*parts, strict=True)
    ]
    return torch.cat(found, dim=1)


def _window_mask(document: torch.Tensor, window: int | None) -> torch.Tensor | None:
    """True where a token of a document longer than the window may look; None for shorter ones."""
    length = document.shape[2]
    if not window or length <= window:
        return None
    seen = torch.ones(length, length, dtype=torch.bool, device=document.device)
    return seen.tril().triu(1 - window)


def use_document_attention(model: Any, autocast: torch.dtype | None) -> bool:
    """Whether it is worth trying; it takes the place of transformers' own `sdpa` then. Models for flash attention tell
    their attention all that a mask would; on GPUs a call a document is slow where there is no kernel."""
    config = model.config.get_text_config()
    if getattr(model.config, "_attn_implementation", None) != "sdpa" or not model._supports_flash_attn:
        return False
    if getattr(config, "attention_chunk_size", None):
        return False  # it is nowhere but in the mask
    if model.device.type == "cuda" and not has_kernel(config, autocast or model.dtype):
        return False
    ALL_ATTENTION_FUNCTIONS.register("sdpa", ATTENTION)
    ATTENTION.windowed = set()
    return True


def has_kernel(config: Any, dtype: torch.dtype) -> bool:
    """Whether torch's own takes the place of a call a document: it knows 16 bits alone, and no dropout."""
    return dtype in KERNEL_DTYPES and not any(getattr(config, name, 0) for name in _DROPOUTS)


def refuse_lost_window(model: Any) -> None:
    """After a forward: raises ValueError where a layer has a sliding window but did not name it. The documents of a
    probe are too short to show it."""
    named, ATTENTION.windowed = ATTENTION.windowed or set(), None
    config = model.config.get_text_config()
    if not getattr(config, "sliding_window", None):
        return
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    if len(named) < kinds.count("sliding_attention"):
        raise ValueError("its attention is not told the sliding window")
