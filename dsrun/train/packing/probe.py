"""Whether a decoder-only model keeps packed documents apart: measured on the model that was loaded, as many do not.

Position ids that start again at 0 separate documents in most models of transformers: their masks are made from them
(`find_packed_sequence_indices` in masking_utils.py). Models that make masks of their own, or have convolutions or
recurrent layers, carry one document into the next; some of them take a block mask."""

from dataclasses import dataclass
from typing import Any, Literal

import torch

from dsrun.errors import one_line
from dsrun.train.base.distributed import all_gather_object
from dsrun.train.base.refusals import notices
from dsrun.train.model.zero3 import OtherRankError, gathered
from dsrun.train.packing.documents import refuse_lost_window, use_document_attention
from dsrun.train.packing.encoder_decoder import additive, install, same_document, trial_of_pairs
from dsrun.train.packing.measure import PackingMeasure, PackingTrial, measure, widths

DOCUMENTS = (5, 8, 7)

PackingMethod = Literal["documents", "position_ids", "mask", "additive_mask", "flat", "pairs"]
"""How documents are kept apart: in one row with their cumulative lengths, by attention of ours (see documents.py) or by
flash attention (`flat`); by position ids; by a 4-D block mask beside them (bool for sdpa, to be added for eager
attention); by the masks of an encoder-decoder (see encoder_decoder.py)."""
ONE_ROW = ("documents", "flat")


@dataclass(frozen=True)
class ProbeVerdict:
    """How a model keeps packed documents apart, None where it does not; `difference` is the largest one of a packed
    logit from that of the document alone, as a share of the largest logit."""

    method: PackingMethod | None
    difference: float | None
    reason: str | None


@dataclass(frozen=True)
class _Tried:
    """A method: what was measured, or what was raised."""

    measured: PackingMeasure | None = None
    error: str | None = None
    out_of_memory: bool = False
    elsewhere: bool = False  # another rank knows the error


def probe(model: Any, *, pairs: bool = False, autocast: torch.dtype | None = None) -> ProbeVerdict:
    """Try each method on three documents, on `pairs` of source and target for an encoder-decoder. `autocast` is the
    dtype of training where that has 16 bits: on GPUs, and under flash attention, the probe computes in it, too. On all
    ranks, which get one verdict."""
    kind = type(model.get_base_model() if hasattr(model, "get_base_model") else model).__name__
    methods, unused = _methods(model, pairs, autocast)
    mixed: list[str] = []
    raised: list[str] = []
    for method in methods:
        tried = _of_all_ranks(_try(model, method, autocast))
        if tried.out_of_memory:
            return ProbeVerdict(None, None, f"the probe of {kind} ran out of GPU memory ({tried.error})")
        difference, problem = tried.measured or (None, tried.error)
        if tried.measured and not problem:
            instead = f" (not by {_NAMES['documents']}: {unused})" if unused else ""
            return ProbeVerdict(method, difference, f"documents are kept apart by {_NAMES[method]}{instead}")
        (mixed if tried.measured else raised).append(f"{_NAMES[method]}: {problem}")
        unused = problem if method == "documents" else unused
    what = "mixes" if mixed else "takes no"
    return ProbeVerdict(None, None, f"{kind} {what} packed documents ({'; '.join(mixed + raised)})")


def _methods(model: Any, pairs: bool, autocast: torch.dtype | None) -> tuple[list[PackingMethod], str | None]:
    """Those worth trying on all ranks, the fastest first, and why the fastest of all is not among them."""
    if pairs:
        return ["pairs"], None
    if "flash" in str(getattr(model.config, "_attn_implementation", "")):
        return ["flat"], None
    masks: list[PackingMethod] = ["position_ids", "mask", "additive_mask"]
    unused = next(filter(None, all_gather_object(use_document_attention(model, autocast))), None)
    return (masks, unused) if unused else (["documents", *masks], None)


def _try(model: Any, method: PackingMethod, autocast: torch.dtype | None) -> _Tried:
    try:
        return _Tried(_measured(model, method, autocast))
    except torch.OutOfMemoryError as error:
        return _Tried(error=one_line(error)[:120], out_of_memory=True)
    except Exception as error:  # whatever a model's own code raises for inputs that it does not know
        return _Tried(error=one_line(error)[:120], elsewhere=isinstance(error, OtherRankError))


def _of_all_ranks(mine: _Tried) -> _Tried:
    """The worst of them: with a method of its own, a rank would have batches of its own."""

    def badness(tried: _Tried) -> tuple[bool, bool, bool, bool, float]:
        difference, problem = tried.measured or (0.0, None)
        raised = tried.error is not None
        return tried.out_of_memory, raised, not tried.elsewhere, problem is not None, difference

    return max(all_gather_object(mine), key=badness)


_NAMES = notices("packing")


def _measured(model: Any, method: PackingMethod, autocast: torch.dtype | None) -> PackingMeasure:
    if method in ("mask", "additive_mask") and getattr(model.config.get_text_config(), "sliding_window", None):
        # A mask that is given takes its place (transformers' masking_utils.py), which only longer documents would show.
        raise ValueError("it would replace the sliding window")
    if max(widths(model), default=2) < 4 or not (method == "flat" or model.device.type == "cuda"):
        autocast = None
    with gathered(model):
        if method == "pairs":
            install(model)
        trial = trial_of_pairs(model) if method == "pairs" else trial_of_documents(model, method)
        measured = measure(model, trial, autocast)
        if method == "documents":
            refuse_lost_window(model)
        return measured


def trial_of_documents(model: Any, method: PackingMethod, lengths: tuple[int, ...] = DOCUMENTS) -> PackingTrial:
    """Three documents of so many tokens, in rows of other layouts, so that none is read with the borders of another."""
    vocabulary = model.config.get_text_config().vocab_size
    # Times a prime, so that the ids spread over the vocabulary.
    spread = (torch.arange(sum(lengths)) * 7919 + 11) % max(1, vocabulary - 8) + min(8, vocabulary - 1)
    ids = list(spread.split(lengths))
    others = [document.roll(1) for document in ids]
    rows = [ids, ids[::-1]]
    changed = [[others[0], ids[1], others[2]], [others[2], others[1], ids[0]]]
    packed, beside_others = (packed_inputs(each, method, pad_id=0) for each in (rows, changed))
    spans, start = [], 0
    for number in (0, 1, 2, 2, 1, 0):
        spans.append((number, start, start + lengths[number]))
        start += lengths[number]
    one, other = ({"input_ids": torch.stack([ids[1], each])} for each in (ids[1], others[1]))
    return PackingTrial([{"input_ids": each[None]} for each in ids], packed, beside_others, spans, (1, 5), (one, other))


def packed_inputs(
    rows: list[list[torch.Tensor]], method: PackingMethod, *, pad_id: int, multiple_of: int = 1
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
        inputs["attention_mask"] = mask if method == "mask" else additive(mask, torch.float32)
    return inputs


def block_causal_mask(segments: torch.Tensor) -> torch.Tensor:
    """True where a token may look: earlier ones of its own document; [rows, 1, width, width] of segments [rows,
    width]."""
    return same_document(segments, segments).tril()
