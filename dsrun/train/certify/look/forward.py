"""Checks of the small model's forward and backward pass, in this process alone."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dsrun.errors import one_line
from dsrun.findings.finding import Finding, finding_of, text_of
from dsrun.models.families import family_of
from dsrun.train.certify.subject import CertifySubject
from dsrun.train.data.collate import PaddingCollator
from dsrun.train.loss.model_loss import ModelLoss
from dsrun.train.loss.probe import change_by_later_tokens, tokens
from dsrun.train.model.build_model import build
from dsrun.train.model.load import decide_task, evaluating, load_config
from dsrun.train.packing.decide import cast_parameters
from dsrun.train.packing.measure import TOLERANCE, measure
from dsrun.train.packing.probe import probe, trial_of_documents

LENGTH = 72
"""Tokens of a row: more than the small model's windows and chunks have."""
LATER = tuple(range(1, LENGTH))
"""All of them: a mask of its own may be wrong at one."""
DOCUMENTS = (45, 6, 26)
"""Tokens of packed documents: training tries shorter ones, which a window does not cut."""
SAME_STEP = 1e-5
"""Of the loss, and of the norm of all gradients: recomputed, the same numbers are added in the same order."""
ROUNDED_LOSS, ROUNDED_GRADIENT = 0.03, 1.0
"""How far bf16 may be from fp32: of the loss, and of the norm of all gradients. Most families are within 0.1% and 3%;
where rounding chooses other experts or other tokens, random weights were up to 1% and 71% off."""


def small_model(subject: CertifySubject, folder: Path | None = None, *, settings: Sequence[str] = ()) -> Any:
    """The small model as training loads it, in fp32; that in `folder`, with other `settings` in its config."""
    spec = subject.spec(folder or subject.small, config_override=list(settings))
    config = load_config(spec)
    model = build(spec, config, decide_task(config, "auto", spec.model), alone=True)
    return model.to("cuda" if subject.request.gpus else "cpu")


def causal(subject: CertifySubject) -> Iterator[Finding]:
    model = small_model(subject)
    ids, name = tokens(model, model.device, LENGTH), type(model).__name__
    change = change_by_later_tokens(partial(logits_of, model), ids, LATER)
    # No number is a fault, too.
    yield finding_of("causal" if change <= TOLERANCE else "causal_later", name=name, percent=100 * change)
    text = model.config.get_text_config()
    window = getattr(text, "sliding_window", None)
    if window and "sliding_attention" in (getattr(text, "layer_types", None) or ["sliding_attention"]):
        other = small_model(subject, settings=[f"sliding_window={window // 2}"])
        if torch.equal(logits_of(model, ids), logits_of(other, ids)):
            yield finding_of("causal_window", name=name)


@torch.no_grad()
def logits_of(model: Any, rows: torch.Tensor) -> torch.Tensor:
    """Of token ids [rows, LENGTH], which are those of the decoder where there are two sides."""
    side = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
    first = tokens(model, model.device, LENGTH).expand(len(rows), -1)
    with evaluating(model):
        return model(**{"input_ids": first, side: rows}, use_cache=False)["logits"]


def packed(subject: CertifySubject) -> Iterator[Finding]:
    """By the way that training would choose, on longer documents than those by which it chooses."""
    model = small_model(subject)
    # On GPUs by the kernels of training.
    dtype = torch.bfloat16 if subject.request.gpus else None
    verdict = probe(model, pairs=model.config.is_encoder_decoder, autocast=dtype)
    if verdict.method is None:
        yield finding_of("packed_refused", reason=verdict.reason)
        return
    difference, problem = verdict.difference or 0.0, None
    if verdict.method != "pairs":  # whose documents are long
        difference, problem = measure(model, trial_of_documents(model, verdict.method, DOCUMENTS), dtype)
    key = "packed_mixes" if problem else "packed"
    yield finding_of(key, how=verdict.reason, percent=100 * difference, problem=problem)


def recomputed(subject: CertifySubject) -> Iterator[Finding]:
    model = small_model(subject)
    if not model.supports_gradient_checkpointing:
        return
    again = deepcopy(model)
    again.activation_checkpointing_enable()
    loss, gradient = _apart(_step(again), _step(model))
    key = "recomputed" if loss <= SAME_STEP and gradient <= SAME_STEP else "recomputed_differs"  # so is no number
    yield finding_of(key, loss=100 * loss, gradient=100 * gradient)


def half(subject: CertifySubject) -> Iterator[Finding]:
    """Parameters are cast as DeepSpeed casts them."""
    model = small_model(subject)
    expected = _step(deepcopy(model))
    try:
        loss, gradient = _apart(_step(_cast(model, torch.bfloat16)), expected)
    except RuntimeError as error:  # of dtypes that do not fit
        yield finding_of("half_raises", error=one_line(error))
        return
    overflow = "half.known" if family_of(model.config.model_type).overflows_in_fp16 else "half.none"
    try:
        is_finite = all(bool(each.isfinite().all()) for each in _step(_cast(model, torch.float16)).values())
    except RuntimeError:  # processors have not all operations in fp16
        is_finite, overflow = True, "half.unknown"
    if not is_finite:
        yield finding_of("half_overflows")
    if not (loss <= ROUNDED_LOSS and gradient <= ROUNDED_GRADIENT):
        yield finding_of("half_differs", loss=100 * loss, gradient=100 * gradient)
    elif is_finite:
        yield finding_of("half", loss=100 * loss, gradient=100 * gradient, overflow=text_of(overflow))


def _cast(model: Any, dtype: torch.dtype) -> Any:
    made = deepcopy(model)
    cast_parameters(made, dtype)
    return made


def _step(model: Any) -> dict[str, torch.Tensor]:
    """The gradients of a step of training without an engine, in fp32 by parameter, and the loss as ""."""
    torch.manual_seed(0)
    ids = tokens(model, torch.device("cpu"), LENGTH)[0].tolist()
    rows = [{"input_ids": ids[:length], "labels": ids[:length]} for length in DOCUMENTS]
    batch = PaddingCollator(pad_id=0, seq2seq=model.config.is_encoder_decoder, model=model)(rows)
    inputs = {name: each.to(model.device) for name, each in batch.items()}
    loss_of_model = ModelLoss.of(model.train())
    loss, _ = loss_of_model(model, inputs, loss_of_model.items(inputs["labels"]))
    loss.backward()
    found = {name: each.grad.float().cpu() for name, each in model.named_parameters() if each.grad is not None}
    return {"": loss.detach().float().cpu(), **found}


def _apart(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> tuple[float, float]:
    """How far a step is from another, as shares of its loss and of the norm of its gradients; a missing one is 0."""
    zero = torch.zeros(())
    names = (one.keys() | other.keys()) - {""}
    apart = _norm(one.get(name, zero) - other.get(name, zero) for name in names)
    return abs(float(one[""] / other[""]) - 1), apart / _norm(other[name] for name in other if name)


def _norm(tensors: Iterable[torch.Tensor]) -> float:
    return float(torch.stack([each.norm() for each in tensors]).norm())
