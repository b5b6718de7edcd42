"""Packed rows for encoder-decoder models: the tensors, and a forward that keeps the documents of a row apart.

A row holds several pairs of source and target, its documents. The encoder sees a token's own document only, so does the
decoder, and its cross-attention sees the source of the same document. Relative position biases (T5) need no more than
that; learned and sinusoidal positions start again with each document."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from dsrun.train.base.labels import IGNORED
from dsrun.train.model.zero3 import replaced
from dsrun.train.packing.measure import PackingTrial

TokenRows = Sequence[Sequence[Mapping[str, Any]]]

# What tells attention with relative position biases, as T5's, whose layers share those of the first one.
_BIASED = {"mask", "key_value_states", "position_bias", "past_key_values"}

# Tokens of the documents that a model is probed with: (source, target).
PROBED = ((19, 22), (24, 17), (21, 20))


def pair_inputs(
    rows: TokenRows, pad_id: int, decoder_input_ids: Callable[[torch.Tensor], torch.Tensor], multiple_of: int = 1
) -> dict[str, torch.Tensor]:
    """What an installed model is given for rows of samples {"input_ids", "labels"}, int64 each: input_ids [rows,
    source], labels [rows, target] with -100 where there is padding, decoder_input_ids likewise, source_segments [rows,
    source] and target_segments [rows, target], which number the documents of a row from 1 and are 0 in padding.

    `decoder_input_ids` gives what the decoder reads to write labels [documents, target], padded with -100: shifted in a
    packed row, a document would begin with the end of the one before."""
    sources = [[ids_tensor(sample["input_ids"]) for sample in row] for row in rows]
    targets = [[ids_tensor(sample["labels"]) for sample in row] for row in rows]
    documents = [labels for row in targets for labels in row]
    shifted = iter(decoder_input_ids(pad_sequence(documents, batch_first=True, padding_value=IGNORED)))
    read = [[next(shifted)[: len(labels)] for labels in row] for row in targets]
    return {
        "input_ids": _joined(sources, pad_id, multiple_of),
        "source_segments": _joined(_numbered(sources), 0, multiple_of),
        "decoder_input_ids": _joined(read, pad_id, multiple_of),
        "labels": _joined(targets, IGNORED, multiple_of),
        "target_segments": _joined(_numbered(targets), 0, multiple_of),
    }


def ids_tensor(ids: Any) -> torch.Tensor:
    # By way of NumPy, which reads a list of thousands of numbers several times as fast.
    return ids if torch.is_tensor(ids) else torch.from_numpy(np.asarray(ids, dtype=np.int64))


def _numbered(rows: list[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
    return [[torch.full_like(ids, number) for number, ids in enumerate(row, 1)] for row in rows]


def _joined(rows: list[list[torch.Tensor]], fill: int, multiple_of: int) -> torch.Tensor:
    """The documents of each row one after another, [rows, width]."""
    widest = max(sum(map(len, row)) for row in rows)
    joined = torch.full((len(rows), -(-widest // multiple_of) * multiple_of), fill)
    for row, documents in zip(joined, rows, strict=True):
        ids = torch.cat(documents)
        row[: len(ids)] = ids
    return joined


def install(model: Any) -> None:
    """Make an encoder-decoder, which no engine wraps yet, take `source_segments` and `target_segments` beside input_ids
    and decoder_input_ids; calls without these are as before.

    The forward of the instance is replaced, not hooked: a forward pre-hook would run the encoder before DeepSpeed has
    begun the forward that it traces under ZeRO-3, and peft calls `forward` without hooks. Raises ValueError for models
    that a probe with short documents would clear wrongly."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    _refuse_dependent_on_rows(base)
    for stack in (base.get_encoder(), base.get_decoder()):
        # The name in all of transformers' encoder-decoders whose positions are absolute.
        if hasattr(stack, "embed_positions"):
            _replace_forward(stack.embed_positions, _restarting)
        for module in stack.modules():
            if inspect.signature(module.forward).parameters.keys() >= _BIASED:
                _replace_forward(module, _masked_once)
    _replace_forward(base, _packed)


def _refuse_dependent_on_rows(model: Any) -> None:
    for stack in (model.get_encoder(), model.get_decoder()):
        config = getattr(stack, "config", model.config)
        if getattr(config, "attention_type", None) == "block_sparse":
            # BigBird: full attention in short rows, for good once there was one, and no such masks in long ones.
            raise ValueError("block-sparse attention takes no mask of documents")
        if getattr(config, "sliding_window", None):
            # A mask that is given takes the window's place (transformers' masking_utils.py).
            raise ValueError("a mask of documents would replace the sliding window")
        if getattr(config, "expert_capacity", None):
            raise ValueError("an expert takes a limited number of tokens of a row, whichever document they are of")


def _replace_forward(module: Any, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    # A bound method, as accelerate, deepcopy and inspect.signature expect one.
    original = module.forward.__func__
    module.forward = MethodType(functools.wraps(original)(wrap(original)), module)


def _packed(original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: Any, *args: Any, source_segments: Any = None, target_segments: Any = None, **kwargs: Any) -> Any:
        if source_segments is None:
            return original(self, *args, **kwargs)
        encoder, decoder = self.get_encoder(), self.get_decoder()
        with _segments_of(encoder, source_segments), _segments_of(decoder, target_segments):
            own_source = _as_used(same_document(source_segments, source_segments), encoder, self.dtype)
            encoded = encoder(input_ids=kwargs.pop("input_ids"), attention_mask=own_source)
            own_target = same_document(target_segments, target_segments).tril()
            # Padding sees everything: a softmax over nothing is NaN in some kernels, and so are all gradients then.
            seen = same_document(target_segments, source_segments) | target_segments.eq(0)[:, None, :, None]
            kwargs |= {
                "encoder_outputs": encoded,
                "attention_mask": _as_used(seen, decoder, self.dtype),
                "decoder_attention_mask": _as_used(own_target, decoder, self.dtype),
                "use_cache": False,
            }
            return original(self, *args, **kwargs)

    return forward


def _masked_once(original: Callable[..., Any]) -> Callable[..., Any]:
    """Attention whose first layer puts the mask into the position bias that it hands on, so that no other layer does
    so again, nor its recomputation: it is as large as the scores. Cross-attention, which has no biases, gets the mask
    alone, without a copy for each head."""

    def forward(
        self: Any, hidden: Any, mask: Any = None, key_value_states: Any = None, position_bias: Any = None, **kwargs: Any
    ) -> Any:
        if mask is None or not mask.is_floating_point() or kwargs.get("past_key_values") is not None:
            return original(self, hidden, mask, key_value_states, position_bias, **kwargs)
        if position_bias is None:
            position_bias = mask
            if self.has_relative_attention_bias:
                # In the order of memory that sdpa takes, or each layer would copy it.
                position_bias = (self.compute_bias(*mask.shape[-2:], device=mask.device) + mask).contiguous()
        return original(self, hidden, None, key_value_states, position_bias, is_causal=False, **kwargs)

    return forward


def same_document(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """True where both are of the same document: [rows, 1, query, key] of segments [rows, length]."""
    return queries[:, None, :, None] == keys[:, None, None, :]


def _as_used(mask: torch.Tensor, stack: Any, dtype: torch.dtype) -> torch.Tensor:
    """The mask, True where a token may look, as numbers to be added to the scores: sdpa would turn it into these anew
    in each layer."""
    implementation = stack.config._attn_implementation
    if implementation not in ("sdpa", "eager"):
        raise ValueError(f"{implementation} attention takes no mask of documents")
    return additive(mask, dtype)


def additive(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where `mask` is True, else the least number of the dtype, which a row without any True survives, not so inf."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)


def _segments_of(stack: Any, segments: torch.Tensor) -> AbstractContextManager[None]:
    """Tell the positional embedding of `stack`, if it has one, which documents it is called for."""
    embedding = getattr(stack, "embed_positions", None)
    return nullcontext() if embedding is None else replaced(embedding, segments=segments)


def _restarting(original: Callable[..., Any]) -> Callable[..., Any]:
    """A positional embedding, [rows, length, width], whose positions start again with each document. Its weights are
    never read here: under ZeRO-3 they are there only while its own forward runs."""
    takes_positions = "position_ids" in inspect.signature(original).parameters

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        segments = getattr(self, "segments", None)
        if segments is None:
            return original(self, *args, **kwargs)
        if takes_positions:
            # Flat, as the models give one row for all: BART adds a dimension to it, others do not.
            positions = document_positions(segments, torch.ones_like(segments)).flatten()
            return original(self, *args, **kwargs | {"position_ids": positions}).view(*segments.shape, -1)
        # M2M-100 counts the tokens of a row that are not padding; padding in between has a position of zeros.
        counted = args[0].ne(self.padding_idx)
        by_position = original(self, torch.full_like(args[0][:1], self.padding_idx + 1))[0]
        return by_position[document_positions(segments, counted.long())] * counted.unsqueeze(-1)

    return forward


def document_positions(segments: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    """The number of `counted` tokens (1, others 0) before each in its document, 0 in padding; all are int64 [rows,
    length]."""
    before = counted.cumsum(dim=1) - counted
    begins = torch.ones_like(segments)
    begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
    # `before` never falls, so its largest value at a beginning is that of the last one.
    return (before - (before * begins).cummax(dim=1).values) * segments.ne(0)


def trial_of_pairs(model: Any) -> PackingTrial:
    """What shows whether an installed model keeps pairs apart (see measure.py)."""
    # Token ids spread over the vocabulary, none of them padding.
    config = model.config.get_text_config()
    ids = torch.arange(sum(map(sum, PROBED))) * 7919 % max(1, config.vocab_size - 8) + min(8, config.vocab_size - 1)
    ids[ids == config.pad_token_id] -= 1
    parts = iter(ids.split([tokens for pair in PROBED for tokens in pair]))
    documents = [{"input_ids": source, "labels": target} for source, target in zip(parts, parts, strict=True)]
    one, two, three = ({name: ids.flip(0) for name, ids in each.items()} for each in documents)
    rolled = {name: ids.roll(1) for name, ids in three.items()}
    # The second row has another neighbour, and padding on both sides.
    packed = _inputs([documents, [three, documents[1]]], packed=True)
    changed = _inputs([[one, documents[1], three], [rolled, documents[1]]], packed=True)
    width = packed["decoder_input_ids"].shape[1]
    starts = [0, PROBED[0][1], PROBED[0][1] + PROBED[1][1], width + PROBED[2][1]]
    spans = [(n, start, start + PROBED[n][1]) for n, start in zip((0, 1, 2, 1), starts, strict=True)]
    unpacked = [_inputs([[documents[1]], [each]], packed=False) for each in (documents[1], two)]
    alone = [_inputs([[each]], packed=False) for each in documents]
    return PackingTrial(alone, packed, changed, spans, (1, 3), (unpacked[0], unpacked[1]))


def _inputs(rows: TokenRows, *, packed: bool) -> dict[str, torch.Tensor]:
    names = ["input_ids", "decoder_input_ids"] + ["source_segments", "target_segments"] * packed
    inputs = pair_inputs(rows, 0, lambda labels: labels.clamp(min=0))
    return {name: inputs[name] for name in names}
