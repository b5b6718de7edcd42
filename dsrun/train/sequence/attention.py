"""Ulysses attention (Jacobs et al. 2023, https://arxiv.org/abs/2309.14509) between the ranks that share a row.

DeepSpeed's own, without its process groups for the engine: ZeRO shards over all ranks and averages their gradients
either way, and checkpoints keep the layout that they have without sequence parallelism.
"""

from typing import Any

import torch

from dsrun.train.base.refusals import refuse


class UlyssesAttention:
    """Stands in for the attention of a model while `is_on`. Rows are then shards, [batch, heads, local, head size], of
    sequences without padding on the left: DeepSpeed drops the mask, and causal attention needs none."""

    def __init__(self, model: Any, group: Any, length: int) -> None:
        from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        config = model.config
        kind = config._attn_implementation
        refuse_attention(kind, model, length)
        self.is_on = False
        found = ALL_ATTENTION_FUNCTIONS[kind]
        # An earlier run of this process may have put its own there.
        self.kernel: Any = found.kernel if isinstance(found, UlyssesAttention) else found
        self.ulysses = UlyssesSPAttentionHF(
            attn=self.kernel,
            batch_size=1,
            attn_head_count=config.num_attention_heads,
            attn_head_size=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            kv_head_count=config.num_key_value_heads,
            num_hidden_layers=config.num_hidden_layers,
            process_group=group,
            seq_length_is_variable=True,
        )
        self.ulysses.core_attn_implementation = kind
        # By the name that the model asks for, as transformers prepares masks by that name.
        ALL_ATTENTION_FUNCTIONS[kind] = self

    def __call__(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, Any]:
        if not self.is_on:
            return self.kernel(module, query, key, value, attention_mask, **kwargs)
        ulysses = self.ulysses
        if ulysses.batch_size != len(query):
            # DeepSpeed fixes the batch when it is built; evaluation may have another.
            ulysses.batch_size = len(query)
            for name in ("required_query_shape", "required_key_value_shape", "required_context_shape"):
                length, _, *rest = getattr(ulysses, name)
                setattr(ulysses, name, torch.Size([length, len(query), *rest]))
        return ulysses(module, query, key, value, None, **kwargs)


def refuse_attention(kind: str, model: Any, length: int) -> None:
    """Raise UsageError for attention of rows of `length` tokens that is wrong without a mask: eager, and sdpa with a
    sliding window."""
    windows = sorted(each.sliding_window for each in model.modules() if getattr(each, "sliding_window", None))
    refuse("long_attention", kind=kind, windows=windows, length=length, model=model.config.model_type)
