"""Attention within each document of a packed row, in place of one over the row with a block mask: it costs the squares
of the documents' lengths, not of the row's. Flash attention does the same, where it is installed."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from dsrun.train.base.refusals import reason_of

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:
    varlen_attn = None


def arguments_of(kernel: Callable[..., Any] | None) -> frozenset[str]:
    return frozenset(inspect.signature(kernel).parameters) if kernel else frozenset()


# Of torch's own flash kernel: torch 2.10 has it, 2.11 gave it `scale` and `window_size`, 2.12 `enable_gqa`.
KERNEL_ARGUMENTS = arguments_of(varlen_attn)
KERNEL_DTYPES = (torch.float16, torch.bfloat16)
_DROPOUTS = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")


class DocumentAttention:
    """Transformers' `sdpa` attention, which looks within documents where a batch comes with their borders.

    `windowed` are the layers that named a sliding window, None where nobody asks: no mask brings it to the others.
    What follows from the last borders stays for the other layers and for recomputation, which get the same tensor."""

    windowed: set[int] | None = None
    _ends: torch.Tensor | None = None
    _lengths: list[int]
    _masks: dict[tuple[int, torch.dtype], torch.Tensor]

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
        return self._one_by_one(module, query, key, value, ends, **given), None

    # Compiled, it would be traced again for each set of lengths.
    @torch.compiler.disable
    def _one_by_one(self, module: Any, query: Any, key: Any, value: Any, ends: Any, **given: Any) -> torch.Tensor:
        if ends is not self._ends:
            self._ends, self._lengths, self._masks = ends, ends.diff().tolist(), {}
        parts = (tensor.split(self._lengths, dim=2) for tensor in (query, key, value))
        window = given.get("sliding_window")
        found = [
            sdpa_attention_forward(module, *document, self._window_mask(document[0], window), **given)[0]
            for document in zip(*parts, strict=True)
        ]
        return torch.cat(found, dim=1)

    def _window_mask(self, document: torch.Tensor, window: int | None) -> torch.Tensor | None:
        """What is added to the scores of a document longer than the window; None for shorter ones. It is a corner of
        that of the longest document."""
        length = document.shape[2]
        if not window or length <= window:
            return None
        key = window, document.dtype
        if key not in self._masks:
            seen = document.new_ones([max(self._lengths)] * 2, dtype=torch.bool).tril().triu(1 - window)
            self._masks[key] = document.new_zeros(seen.shape).masked_fill(~seen, -torch.inf)
        return self._masks[key][:length, :length]


ATTENTION = DocumentAttention()


def _of_autocast(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """In the dtype of autocast, which casts for sdpa but knows nothing of torch's kernel for documents."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    return tuple(tensor.to(torch.get_autocast_dtype(kind)) for tensor in tensors)


def _by_kernel(module: Any, query: Any, key: Any, value: Any, ends: Any, **given: Any) -> torch.Tensor:
    causal = given.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    window, scale = given.get("sliding_window"), given.get("scaling")
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    longest = given["max_length_q"]
    options: dict[str, Any] = {}
    if key.shape[1] != query.shape[1]:
        if "enable_gqa" in KERNEL_ARGUMENTS:
            options["enable_gqa"] = True
        else:
            key, value = (each.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for each in (key, value))
    if "window_size" in KERNEL_ARGUMENTS:
        # Tokens to the left and to the right; transformers counts the token itself, too.
        options |= {"window_size": (window - 1 if window else -1, 0 if causal else -1), "scale": scale}
    elif window:
        raise ValueError(f"torch {torch.__version__} has no sliding window in its kernel (2.11 has)")
    else:
        options["is_causal"] = causal
        query = query if scale is None else query * (scale * query.shape[-1] ** 0.5)
    return varlen_attn(query, key, value, ends, ends, longest, longest, **options)[None]


def use_document_attention(model: Any, autocast: torch.dtype | None) -> str | None:
    """Let it take the place of transformers' own `sdpa`, or why it is not worth trying. Models for flash attention tell
    their attention all that a mask would; on GPUs a call a document is slow where there is no kernel."""
    config, attention = model.config.get_text_config(), getattr(model.config, "_attn_implementation", None)
    chunk = getattr(config, "attention_chunk_size", None)
    why = reason_of(
        "attention", attention=attention, is_told=getattr(model, "_supports_flash_attn", False), chunk=chunk
    )
    if not why and model.device.type == "cuda":
        why = lacks_kernel(config, autocast or model.dtype)
    if why:
        return why
    ALL_ATTENTION_FUNCTIONS.register("sdpa", ATTENTION)
    ATTENTION.windowed = set()
    return None


def lacks_kernel(config: Any, dtype: torch.dtype) -> str | None:
    """Why torch's own cannot take the place of a call a document."""
    dropout = next((name for name in _DROPOUTS if getattr(config, name, 0)), None)
    given = {"dtype": str(dtype).removeprefix("torch."), "is_taken": dtype in KERNEL_DTYPES, "dropout": dropout}
    return reason_of("kernel", arguments=KERNEL_ARGUMENTS, version=torch.__version__, **given)


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
