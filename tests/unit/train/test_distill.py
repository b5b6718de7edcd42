"""The loss of --task distill: the divergence from a teacher, exact and without whole fp32 logits of either model."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BartConfig, BartForConditionalGeneration, LlamaConfig, LlamaForCausalLM

from dsrun.recipe.flags import own_flags
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.recipe.resolve import resolve
from dsrun.train.data.data_request import data_request
from dsrun.train.loss import cross_entropy
from dsrun.train.loss.distill import DIVERGENCES, METRICS, DistillLoss, in_chunks
from dsrun.train.loss.protocol import FrozenModel

IGNORED = -100
VOCABULARY = 23
BETA = 0.3


def model_of(seed, vocabulary=VOCABULARY):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    model.lm_head.weight.data *= 20
    return model


def seq2seq_of(seed):
    torch.manual_seed(seed)
    config = BartConfig(
        vocab_size=VOCABULARY, d_model=8, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=8, decoder_ffn_dim=8,
        encoder_attention_heads=2, decoder_attention_heads=2, max_position_embeddings=16,
    )  # fmt: skip
    model = BartForConditionalGeneration(config).eval()
    model.lm_head.weight.data *= 20
    return model


IDS = torch.tensor([[3, 4, 5, 6, 1, 0], [7, 8, 9, 2, 5, 1], [4, 4, 0, 0, 0, 0]])
LABELS = torch.tensor([[IGNORED, IGNORED, 5, 6, 1, IGNORED], [IGNORED, 8, 9, 2, 5, 1], [IGNORED] * 6])
CAUSAL = {"input_ids": IDS, "attention_mask": IDS.ne(0).long(), "labels": LABELS}
SEQ2SEQ = {"input_ids": IDS, "attention_mask": IDS.ne(0).long(), "decoder_input_ids": IDS.roll(1, 1), "labels": LABELS}


def loss_of(teacher, *, shifted=True, divergence="forward", temperature=1.0, alpha=0.0, smoothing=0.0):
    frozen = teacher and FrozenModel(teacher, sharded=False, reference=False)
    spec = TrainSpec(distill_loss=divergence, distill_beta=BETA, distill_temperature=temperature, distill_alpha=alpha)
    return DistillLoss(frozen, spec, shifted=shifted, smoothing=smoothing)


def plain(student, teacher, divergence, temperature):
    """The divergence of one position in double precision, from its definition."""
    p, q = ((each.double() / temperature).softmax(-1) for each in (student, teacher))

    def kl(a, b):
        return (a * (a / b).log()).sum(-1)

    m = BETA * q + (1 - BETA) * p
    return {"forward": kl(q, p), "reverse": kl(p, q), "jsd": BETA * kl(q, m) + (1 - BETA) * kl(p, m)}[divergence]


def reference_loss(student, teacher, inputs, *, shifted, divergence, temperature, alpha):
    read = {name: value for name, value in inputs.items() if name != "labels"}
    with torch.no_grad():
        logits, theirs = (model(**read).logits for model in (student, teacher))
    targets = inputs["labels"][:, 1:] if shifted else inputs["labels"]
    if shifted:
        logits, theirs = logits[:, :-1], theirs[:, :-1]
    learned = targets.ne(IGNORED)
    common = min(logits.size(-1), theirs.size(-1))
    apart = plain(logits[..., :common][learned], theirs[..., :common][learned], divergence, temperature)
    logs = logits.double().log_softmax(-1)[learned]
    entropy = -logs.gather(1, targets[learned][:, None])[:, 0]
    return ((1 - alpha) * temperature**2 * apart + alpha * entropy).mean().item(), entropy.mean().item()


@pytest.mark.parametrize("alpha", [0.0, 0.4])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("kind", ["causal", "seq2seq", "padded vocabulary"])
def test_loss_equals_the_definition_in_double_precision(kind, divergence, temperature, alpha):
    """On fp32 logits to 1e-6, over targets alone; evaluation yields the same, and the cross entropy."""
    student, teacher = (seq2seq_of(0), seq2seq_of(1)) if kind == "seq2seq" else (model_of(0), model_of(1))
    if kind == "padded vocabulary":
        teacher = model_of(1, VOCABULARY + 9)
    inputs = SEQ2SEQ if kind == "seq2seq" else CAUSAL
    shifted = kind != "seq2seq"
    loss = loss_of(teacher, shifted=shifted, divergence=divergence, temperature=temperature, alpha=alpha)
    expected, entropy = reference_loss(
        student, teacher, inputs, shifted=shifted, divergence=divergence, temperature=temperature, alpha=alpha
    )
    found, _ = loss(student, inputs, loss.items(inputs["labels"]))
    assert expected > 1e-3
    assert found.item() == pytest.approx(expected, rel=1e-6, abs=1e-6)
    metrics = loss.metrics(loss.sums(student, inputs))
    assert metrics["loss"] == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert metrics["cross_entropy"] == pytest.approx(entropy, rel=1e-6)
    assert {*metrics} == {"loss", *METRICS}


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_gradients_equal_those_of_whole_logits(divergence, monkeypatch):
    """In chunks of two positions, with and without writing over the logits."""
    monkeypatch.setattr(cross_entropy, "LOSS_CHUNK", 2 * VOCABULARY)
    torch.manual_seed(0)
    base, teacher = torch.randn(7, VOCABULARY), torch.randn(7, VOCABULARY)
    targets = torch.tensor([3, IGNORED, 4, 5, IGNORED, 6, 7])
    loss = loss_of(None, shifted=False, divergence=divergence, temperature=1.7)
    whole = base.double().requires_grad_()
    expected = 1.7**2 * plain(whole, teacher, divergence, 1.7)[targets.ne(IGNORED)].sum()
    expected.backward()
    # A leaf stays as it is; what is computed from it is written over.
    for logits in (lambda leaf: leaf, lambda leaf: leaf * 1):
        leaf = base.clone().requires_grad_()
        found = in_chunks(lambda *each: loss.divergence(*each[:2]), logits(leaf), teacher, targets)
        found.backward()
        assert found.item() == pytest.approx(expected.item(), rel=1e-6)
        torch.testing.assert_close(leaf.grad, whole.grad.float(), rtol=1e-4, atol=1e-6)


class Largest(TorchDispatchMode):
    """The largest tensor that an operation makes anew, in elements."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.dtype == torch.float32 and not function.is_view:
            self.elements = max(self.elements, made.numel())
        return made


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_no_whole_fp32_logits_of_either_model(divergence, monkeypatch):
    """Neither pass makes an fp32 tensor of more than a chunk, and the gradient takes the place of the logits."""
    rows, vocabulary, chunk = 64, 1000, 4000
    monkeypatch.setattr(cross_entropy, "LOSS_CHUNK", chunk)
    teacher = torch.randn(rows, vocabulary, dtype=torch.bfloat16)
    leaf = torch.randn(rows, vocabulary, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.randint(0, vocabulary, (rows,))
    loss = loss_of(None, shifted=False, divergence=divergence, alpha=0.5)
    logits, gradients = leaf * 1, []
    logits.register_hook(gradients.append)
    with Largest() as largest:
        in_chunks(lambda *each: loss.divergence(*each[:2]), logits, teacher, targets).backward()
    assert 0 < largest.elements <= chunk < rows * vocabulary / 10
    assert gradients[0].data_ptr() == logits.data_ptr()


def test_equal_models_have_no_divergence_and_no_gradient():
    for divergence in DIVERGENCES:
        model = model_of(0)
        loss = loss_of(model_of(0), divergence=divergence)
        found, _ = loss(model, CAUSAL, torch.tensor(1))
        found.backward()
        assert abs(found.item()) < 1e-6
        assert model.lm_head.weight.grad.abs().max() < 1e-5


def test_micro_batches_and_filler_change_nothing():
    gradients = []
    for cut in ([slice(0, 3)], [slice(0, 1), slice(1, 3)]):
        model = model_of(0)
        loss = loss_of(model_of(1), alpha=0.3, smoothing=0.1)
        total = 0
        for part in cut:
            micro = {name: value[part] for name, value in CAUSAL.items()}
            total = total + loss(model, micro, loss.items(LABELS))[0]
        total.backward()
        gradients.append(model.lm_head.weight.grad)
    torch.testing.assert_close(gradients[1], gradients[0])


def test_teacher_keeps_its_dtype_and_a_reference_takes_that_of_the_model():
    trained, read = model_of(0).float(), {"input_ids": IDS}
    for reference, dtype in ((True, torch.float32), (False, torch.bfloat16)):
        frozen = FrozenModel(model_of(1).bfloat16(), sharded=False, reference=reference)
        assert frozen.logits(trained, read).dtype == dtype
        assert not any(each.requires_grad for each in frozen.model.parameters())


def test_flags_offer_every_divergence():
    assert set(own_flags()["distill_loss"].choices) == set(DIVERGENCES)


def test_texts_are_cut_to_the_positions_of_the_teacher(tmp_path):
    """Its embedding of positions has no more rows."""
    for name, positions in (("teacher", 16), ("student", 64)):
        LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=positions).save_pretrained(tmp_path / name)
    words = ["--model", str(tmp_path / "student"), "--teacher", str(tmp_path / "teacher")]
    student = LlamaConfig.from_pretrained(tmp_path / "student")
    found = {}
    for task in ("distill", "auto"):
        recipe = resolve([*words, "--task", task], tmp_path)
        found[task] = data_request(recipe, student, "causal-lm", tokens=VOCABULARY, plugin=None).max_positions
    assert found == {"distill": 16, "auto": 64}
