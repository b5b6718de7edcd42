"""The chunked cross entropy gives what torch's does, and never has all logits in fp32."""

from __future__ import annotations

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, LlamaConfig, MixtralConfig, T5Config

from dsrun.train.base.labels import IGNORED, target_tokens
from dsrun.train.loss import cross_entropy
from dsrun.train.loss.cross_entropy import token_cross_entropy
from dsrun.train.loss.dpo import log_probabilities
from dsrun.train.loss.model_loss import ModelLoss, summed_cross_entropy

ROWS, LENGTH, VOCABULARY = 3, 10, 37
SMALL = {
    "vocab_size": VOCABULARY, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2,
}  # fmt: skip
MODELS = {
    "shared": LlamaConfig(**SMALL),
    "routed": MixtralConfig(**SMALL, num_local_experts=4, output_router_logits=True, router_aux_loss_coef=0.5),
    "logits": T5Config(
        vocab_size=VOCABULARY, d_model=8, d_ff=8, d_kv=4, num_layers=1, num_heads=2, decoder_start_token_id=0,
        dropout_rate=0.0,
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def chunks(monkeypatch):
    """Four rows a chunk, and a last one of two."""
    monkeypatch.setattr(cross_entropy, "LOSS_CHUNK", 4 * VOCABULARY)


def batch(dtype=torch.float32):
    torch.manual_seed(0)
    logits = (3 * torch.randn(ROWS, LENGTH, VOCABULARY)).to(dtype).requires_grad_()
    labels = torch.randint(0, VOCABULARY, (ROWS, LENGTH))
    labels[0, 6:] = labels[1, :3] = IGNORED
    return logits, labels


def plain(logits, labels, smoothing, shifted):
    """As transformers computes it."""
    if shifted:
        logits, labels = logits[:, :-1], labels[:, 1:]
    rows, targets = logits.flatten(0, 1).float(), labels.flatten()
    return F.cross_entropy(rows, targets, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)


def with_gradient(loss, logits):
    (gradient,) = torch.autograd.grad(loss, logits)
    return loss.detach(), gradient


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loss_and_gradient_equal_torch(dtype, smoothing, shifted):
    logits, labels = batch(dtype)
    ours = with_gradient(0.3 * summed_cross_entropy(logits, labels, shifted=shifted, smoothing=smoothing), logits)
    theirs = with_gradient(0.3 * plain(logits, labels, smoothing, shifted), logits)
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-6, atol=0)
    # In bf16 both round a gradient that may differ in its last bit of fp32.
    close = {"rtol": 1e-6, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 2**-7, "atol": 1e-6}
    torch.testing.assert_close(ours[1], theirs[1], **close)


def test_ignored_targets_give_zero_loss_and_gradient():
    logits, labels = batch()
    each = token_cross_entropy(logits, labels)
    (gradient,) = torch.autograd.grad(each.sum(), logits)
    ignored = labels == IGNORED
    assert not each[ignored].any()
    assert not gradient[ignored].any()
    assert each[~ignored].all()
    assert gradient[~ignored].any(-1).all()
    loss, gradient = with_gradient(summed_cross_entropy(logits, labels.fill_(IGNORED), shifted=True), logits)
    assert loss == 0
    assert not gradient.any()


def test_nan_in_logits_reaches_the_loss():
    logits, labels = batch()
    with torch.no_grad():
        logits[2, 4, 5] = torch.nan
    assert summed_cross_entropy(logits, labels, shifted=False).isnan()


def test_compiled_loss_is_one_graph():
    """Under --torch_compile a causal LM computes its loss in its own graph, in which chunks would be unrolled."""
    logits, labels = batch()
    compiled = torch.compile(token_cross_entropy, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(logits, labels, 0.1), token_cross_entropy(logits, labels, 0.1))


class CountOfLogits(TorchDispatchMode):
    """Counts the operations that make a new tensor of as many numbers as the logits (or all positions but the last),
    by dtype."""

    def __init__(self):
        super().__init__()
        self.made = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        known = {each.untyped_storage().data_ptr() for each in args if isinstance(each, torch.Tensor)}
        for each in found if isinstance(found, tuple | list) else (found,):
            is_large = isinstance(each, torch.Tensor) and each.numel() >= ROWS * (LENGTH - 1) * VOCABULARY
            if is_large and each.untyped_storage().data_ptr() not in known:
                self.made[each.dtype] = self.made.get(each.dtype, 0) + 1
        return found


@pytest.mark.parametrize(
    "loss",
    [
        lambda logits, labels: summed_cross_entropy(logits, labels, shifted=True, smoothing=0.1),
        lambda logits, labels: summed_cross_entropy(logits, labels, shifted=False),
        lambda logits, labels: log_probabilities(logits, labels).sum(),
    ],
    ids=["shifted", "seq2seq", "dpo"],
)
def test_nothing_but_the_gradient_is_as_large_as_the_logits(loss):
    logits, labels = batch(torch.bfloat16)
    with CountOfLogits() as count:
        loss(logits, labels).backward()
    assert count.made == {torch.bfloat16: 1}


class PeakOfLogits(TorchDispatchMode):
    """The most bytes that tensors of at least two rows of logits in fp32 held at a time, those of `given` included."""

    def __init__(self, *given):
        super().__init__()
        self.held = {}
        self.peak = 0
        for each in given:
            self.count(each)

    def count(self, tensor):
        storage = tensor.untyped_storage()
        if storage.nbytes() >= 2 * VOCABULARY * 4:
            self.held[storage.data_ptr()] = (StorageWeakRef(storage), storage.nbytes())
        self.held = {at: each for at, each in self.held.items() if not each[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self.held.values()))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for each in found if isinstance(found, tuple | list) else (found,):
            if isinstance(each, torch.Tensor):
                self.count(each)
        return found


def test_peak_of_the_loss_is_what_the_plan_counts():
    """The logits, and two fp32 copies of a chunk of four rows."""
    values, labels = batch(torch.bfloat16)
    # Not a leaf, or they would be kept.
    logits = values + 0
    with PeakOfLogits(logits) as count:
        summed_cross_entropy(logits, labels, shifted=True, overwrite=True).backward()
    assert count.peak == (2 * ROWS * LENGTH + 8 * 4) * VOCABULARY


@pytest.mark.parametrize("keeps", [False, True], ids=["linear", "tanh"])
def test_gradient_overwrites_logits_that_no_operation_keeps(keeps):
    torch.manual_seed(0)
    hidden, weight = torch.randn(ROWS, LENGTH, 8), torch.randn(VOCABULARY, 8, requires_grad=True)
    _, labels = batch()

    def logits():
        return (hidden @ weight.T).tanh() if keeps else hidden @ weight.T

    (expected,) = torch.autograd.grad(plain(logits(), labels, 0.1, True), weight)
    loss = summed_cross_entropy(logits(), labels, shifted=True, smoothing=0.1, overwrite=True)
    with CountOfLogits() as count:
        loss.backward()
    torch.testing.assert_close(weight.grad, expected, rtol=1e-5, atol=1e-6)
    # Tanh makes one gradient more.
    assert count.made == ({torch.float32: 2} if keeps else {})


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("kind", MODELS)
def test_models_have_the_chunked_loss(kind, smoothing):
    """Loss and gradients are those of the model's own loss function, and none of the logits' size is in fp32."""
    torch.manual_seed(0)
    shifted = kind != "logits"
    model = (AutoModelForCausalLM if shifted else AutoModelForSeq2SeqLM).from_config(MODELS[kind])
    parameters = list(model.parameters())
    _, labels = batch()
    ids = labels.clamp(min=0)
    inputs = {"input_ids": ids, "labels": labels, **({} if shifted else {"decoder_input_ids": ids})}
    items = target_tokens(labels, shifted=shifted)
    stock = model(**inputs)
    smooth, rough = (plain(stock.logits, labels, each, shifted) for each in (smoothing, 0.0))
    theirs = stock.loss + (smooth - rough) / items
    expected = torch.autograd.grad(theirs, parameters, allow_unused=True)
    # Of two losses of a model the last one counts.
    ModelLoss.of(model, 0.3)
    loss = ModelLoss.of(model, smoothing)
    assert loss.kind == kind
    ours, _ = loss(model, inputs, items)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    found = torch.autograd.grad(ours, parameters, allow_unused=True)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    with torch.autocast("cpu", torch.bfloat16), CountOfLogits() as count:
        loss(model, inputs, items)[0].backward()
    assert torch.float32 not in count.made
