"""Whether a decoder-only model keeps packed documents apart: measured on the model that was loaded, as many do not.

Position ids that start again at 0 separate documents in most models of transformers: their masks are made from them
(`find_packed_sequence_indices` in masking_utils.py). Models that make masks of their own, or have convolutions or
recurrent layers, carry one document into the next; some of them take a block mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch

from dsrun.errors import one_line
from dsrun.train.loss.dpo import evaluating
from dsrun.train.packing.documents import refuse_lost_window, use_document_attention
from dsrun.train.packing.encoder_decoder import install, largest_difference_pairs

# Of the largest logit. In fp32 what rounding changes is below 1e-5; a token of another document changes far more.
TOLERANCE = 1e-4
# bf16 keeps 8 bits: an operation is off by up to 2^-8, and a model adds up many. fp16 keeps 11.
TOLERANCE_16_BIT = 2e-2

DOCUMENTS = (5, 8, 7)

Method = Literal["documents", "position_ids", "mask", "additive_mask", "flat", "pairs"]
"""How documents are kept apart: in one row with their cumulative lengths, by attention of ours (see documents.py) or by
flash attention (`flat`); by position ids; by a 4-D block mask beside them (bool for sdpa, to be added for eager
attention); by the masks of an encoder-decoder (see encoder_decoder.py)."""
ONE_ROW = ("documents", "flat")


@dataclass(frozen=True)
class Verdict:
    """How a model keeps packed documents apart, None where it does not; `difference` is the largest one of a packed
    logit from that of the document alone, as a share of the largest logit."""

    method: Method | None
    difference: float | None
    reason: str

    @property
    def facts(self) -> dict[str, Any]:
        return {"method": self.method, "difference": self.difference, "reason": self.reason}


def probe(model: Any, *, pairs: bool = False, autocast: torch.dtype | None = None) -> Verdict:
    """Try each method on three documents, on `pairs` of source and target for an encoder-decoder. `autocast` is the
    dtype for flash attention, which takes no fp32; others are measured in that of the weights. On all ranks, as ZeRO-3
    gathers parameters."""
    found: list[str] = []
    for method in _methods(model, pairs, autocast):
        try:
            _refuse_replaced_window(model, method)
            half = autocast if _is_half(model, method) else None
            difference = _of_pairs(model) if pairs else largest_difference(model, method, half)
            if method == "documents":
                refuse_lost_window(model)
        except Exception as error:  # whatever a model's own code raises for inputs that it does not know
            found.append(f"{_NAMES[method]}: {one_line(error)[:120]}")
            continue
        if difference <= (TOLERANCE_16_BIT if half else tolerance(model)):
            return Verdict(method, difference, f"documents are kept apart by {_NAMES[method]}")
        found.append(f"{_NAMES[method]}: logits differ by {100 * difference:.2g}%")
    return Verdict(None, None, f"{type(model).__name__} mixes packed documents ({'; '.join(found)})")


def _methods(model: Any, pairs: bool, autocast: torch.dtype | None) -> tuple[Method, ...]:
    """Those worth trying, the fastest first."""
    if pairs:
        return ("pairs",)
    if "flash" in str(getattr(model.config, "_attn_implementation", "")):
        return ("flat",)
    masks: tuple[Method, ...] = ("position_ids", "mask", "additive_mask")
    return ("documents", *masks) if use_document_attention(model, autocast) else masks


_NAMES: dict[Method, str] = {
    "documents": "attention within each",
    "position_ids": "position ids",
    "mask": "a block mask",
    "additive_mask": "an additive block mask",
    "flat": "cumulative lengths",
    "pairs": "block masks of encoder and decoder",
}


def _refuse_replaced_window(model: Any, method: Method) -> None:
    """A mask that is given takes the place of a sliding window (transformers' masking_utils.py), which only documents
    longer than the window would show."""
    if method in ("mask", "additive_mask") and getattr(model.config.get_text_config(), "sliding_window", None):
        raise ValueError("it would replace the sliding window")


def _of_pairs(model: Any) -> float:
    install(model)
    with gathered(model):
        return largest_difference_pairs(model)


def _is_half(model: Any, method: Method) -> bool:
    """Whether it is measured under autocast: the kernels take no fp32."""
    return method == "flat" or (method == "documents" and model.device.type == "cuda")


def tolerance(model: Any) -> float:
    widths = {parameter.dtype.itemsize for parameter in model.parameters() if parameter.is_floating_point()}
    return TOLERANCE if min(widths, default=4) >= 4 else TOLERANCE_16_BIT


@torch.no_grad()
def largest_difference(model: Any, method: Method, autocast: torch.dtype | None = None) -> float:
    """The largest difference of a logit of packed documents from that of the same document alone, beside two different
    neighbours, as a share of the largest logit."""
    device = next(model.parameters()).device
    documents = _documents(model, device)
    others = [document.roll(1, -1) for document in documents]
    with evaluating(model), gathered(model), torch.autocast(device.type, autocast, enabled=autocast is not None):
        alone = [_logits(model, {"input_ids": document}) for document in documents]
        # The second row has other neighbours, so what changes in a document comes from them.
        rows = [documents, [others[2], documents[1], others[0]]]
        packed = _logits(model, packed_inputs([[d[0] for d in row] for row in rows], method, pad_id=0))
    ends = [sum(DOCUMENTS[:i]) for i in range(len(DOCUMENTS) + 1)]
    parts = [packed.flatten(0, 1)[ends[i] : ends[i + 1]] - alone[i][0] for i in range(len(documents))]
    start = ends[-1] + DOCUMENTS[2]
    parts.append(packed.flatten(0, 1)[start : start + DOCUMENTS[1]] - alone[1][0])
    largest = max(float(logits.abs().max()) for logits in alone)
    return max(float(part.abs().max()) for part in parts) / max(largest, 1e-30)


def _documents(model: Any, device: torch.device) -> list[torch.Tensor]:
    """Token ids, int64 [1, length] each, spread over the vocabulary."""
    vocabulary = model.config.get_text_config().vocab_size
    ids = (torch.arange(sum(DOCUMENTS), device=device) * 7919 + 11) % max(1, vocabulary - 8) + min(8, vocabulary - 1)
    return [part.unsqueeze(0) for part in ids.split(DOCUMENTS)]


def _logits(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    return model(**inputs, use_cache=False)["logits"].float()


def packed_inputs(
    rows: list[list[torch.Tensor]], method: Method, *, pad_id: int, multiple_of: int = 1
) -> dict[str, Any]:
    """What a model is given for rows of documents, ids [length] each: int64 [rows, width] input_ids and position_ids,
    and what the method needs. The padding at the end of a row is a document of its own."""
    widest = max(sum(map(len, row)) for row in rows)
    width = -(-widest // multiple_of) * multiple_of
    flat = method in ONE_ROW
    ids, positions, segments, lengths = [], [], [], []
    for row in rows:
        rest = 0 if flat else width - sum(map(len, row))
        padding = [row[0].new_full((rest,), pad_id)] if rest else []
        parts = [*row, *padding]
        ids.append(torch.cat(parts))
        positions.append(torch.cat([torch.arange(len(part), device=part.device) for part in parts]))
        segments.append(torch.cat([torch.full_like(part, number) for number, part in enumerate(parts)]))
        lengths += [len(part) for part in parts]
    if flat:
        # Flash attention reads position ids at batch size 1 only; these spare it computing the borders in each layer.
        ends = torch.tensor([0, *lengths], dtype=torch.int32, device=ids[0].device).cumsum(0, dtype=torch.int32)
        borders = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends}
        longest = {"max_length_q": max(lengths), "max_length_k": max(lengths)}
        one_row = {"input_ids": torch.cat(ids)[None], "position_ids": torch.cat(positions)[None]}
        if method == "documents":
            # Transformers passes a 4-D mask on as it is, and makes none from the position ids.
            one_row["attention_mask"] = ids[0].new_ones(1, 1, 1, 1, dtype=torch.bool)
        return {**one_row, **borders, **longest}
    inputs = {"input_ids": torch.stack(ids), "position_ids": torch.stack(positions)}
    if method != "position_ids":
        mask = block_causal_mask(torch.stack(segments))
        inputs["attention_mask"] = mask if method == "mask" else additive(mask)
    return inputs


def block_causal_mask(segments: torch.Tensor) -> torch.Tensor:
    """True where a token may look: earlier ones of its own document; [rows, 1, width, width] of segments [rows,
    width]."""
    same = segments[:, None, :, None] == segments[:, None, None, :]
    return same & torch.ones_like(same).tril()


def additive(mask: torch.Tensor) -> torch.Tensor:
    """0 where `mask` is True, else the least number of fp32, which a row without any True survives as inf does not."""
    return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, torch.finfo(torch.float32).min)


@contextmanager
def gathered(model: Any) -> Iterator[None]:
    """Parameters that ZeRO-3 has sharded are gathered module by module, before there is an engine that does so."""
    if not any(hasattr(parameter, "ds_id") for parameter in model.parameters()):
        yield
        return
    from deepspeed.runtime.zero import GatheredParameters

    open_: dict[int, list[Any]] = {}

    def before(module: Any, _: Any) -> None:
        context = GatheredParameters(list(module.parameters(recurse=False)))
        context.__enter__()
        open_.setdefault(id(module), []).append(context)

    def after(module: Any, _: Any, __: Any) -> None:
        open_[id(module)].pop().__exit__(None, None, None)

    with ExitStack() as hooks:
        for module in model.modules():
            if any(True for _ in module.parameters(recurse=False)):
                for handle in (module.register_forward_pre_hook(before), module.register_forward_hook(after)):
                    hooks.callback(handle.remove)
        yield
