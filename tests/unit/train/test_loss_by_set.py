"""The training loss of each set: exact, from the logits of the same pass, and without filler."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, LlamaConfig, T5Config

from dsrun.train.base.labels import IGNORED, target_tokens
from dsrun.train.data.batches import BatchSplit
from dsrun.train.loop.evaluation import LossState
from dsrun.train.loss.model_loss import LossBySet, ModelLoss, summed_cross_entropy

LLAMA = LlamaConfig(vocab_size=11, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
T5 = T5Config(vocab_size=11, d_model=8, d_ff=8, d_kv=4, num_layers=1, num_heads=2, decoder_start_token_id=0)


@pytest.fixture(params=[LLAMA, T5], ids=["causal", "seq2seq"])
def model(request):
    torch.manual_seed(0)
    loader = AutoModelForSeq2SeqLM if request.param.is_encoder_decoder else AutoModelForCausalLM
    return loader.from_config(request.param).eval()


def batch_of(model, rows=5, length=7):
    torch.manual_seed(1)
    labels = torch.randint(0, 11, (rows, length))
    labels[0, :4] = IGNORED
    inputs = {"input_ids": torch.randint(0, 11, (rows, length)), "labels": labels}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)
    return inputs


def whole_rows(count, length=7):
    """Where the labels of samples are that have a row each."""
    return [(row, 0, length) for row in range(count)]


def alone(model, inputs, rows, shifted):
    """Summed cross entropy and target tokens of some rows, from a pass of their own."""
    mine = {name: value[rows] for name, value in inputs.items()}
    logits = model(**{name: value for name, value in mine.items() if name != "labels"})["logits"]
    entropy = summed_cross_entropy(logits, mine["labels"], shifted=shifted)
    return float(entropy.detach()), float(target_tokens(mine["labels"], shifted=shifted))


def test_loss_of_each_set_is_that_of_its_rows(model):
    """Rows of three sets in one batch, the last row filler, over two micro batches; the loss itself stays as it is."""
    loss = ModelLoss.of(model)
    by = LossBySet(loss, ["a", "b", "c"], [10, 20, 30])
    inputs = batch_of(model)
    items = loss.items(inputs["labels"])
    expected, _ = loss(model, inputs, items)
    for _ in range(2):
        by.ids, by.spans = (3, 12, 9, 25), whole_rows(4)
        total, _ = by(model, inputs, items)
    assert torch.equal(total, expected)
    sums = [alone(model, inputs, rows, loss.shifted) for rows in ([0, 2], [1], [3])]
    assert by.window.tolist() == [pytest.approx([2 * entropy, 2 * tokens]) for entropy, tokens in sums]
    means = {f"loss/{name}": entropy / tokens for name, (entropy, tokens) in zip("abc", sums, strict=True)}
    assert by.logged(by.window) == pytest.approx(means)


def test_set_without_samples_since_the_last_line_is_not_logged(model):
    by = LossBySet(ModelLoss.of(model), ["a", "b"], [10, 20])
    inputs = batch_of(model)
    by.ids, by.spans = (11, 12), whole_rows(2)
    by(model, inputs, torch.tensor(1))
    assert list(by.logged(by.window)) == ["loss/b"]


def test_samples_packed_in_one_row_count_for_their_sets():
    """The first label of each document is ignored, as in a packed row."""
    torch.manual_seed(0)
    logits, labels = torch.randn(1, 7, 11), torch.randint(0, 11, (1, 7))
    labels[0, [0, 3]] = IGNORED
    by = LossBySet(ModelLoss("shared", shifted=True), ["a", "b"], [10, 20])
    by.ids, by.spans = (11, 4), [(0, 0, 3), (0, 3, 7)]
    by._count(logits, labels)
    expected = [
        [float(summed_cross_entropy(logits[:, part], labels[:, part], shifted=True)), tokens]
        for part, tokens in ((slice(3, 7), 3), (slice(0, 3), 2))
    ]
    assert by.window.tolist() == [pytest.approx(each) for each in expected]


def test_rows_of_no_known_sample_are_not_counted(model):
    """As when a few tokens are tried before the first step, and in a batch of nothing but filler."""
    by = LossBySet(ModelLoss.of(model), ["a"], [10])
    by(model, batch_of(model), torch.tensor(1))
    assert by.window.tolist() == [[0.0, 0.0]]


def test_sample_with_an_infinite_loss_is_not_counted(model):
    by = LossBySet(ModelLoss.of(model), ["a", "b"], [10, 20])
    inputs = batch_of(model, rows=2)
    by.ids, by.spans = (1, 11), whole_rows(2)
    logits = model(**{name: value for name, value in inputs.items() if name != "labels"})["logits"].detach()
    logits[1, 3] = float("nan")
    by._count(logits, inputs["labels"])
    assert by.window[0].isfinite().all()
    assert by.window[0, 1] > 0
    assert by.window[1].tolist() == [0.0, 0.0]


SUMS = [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]]
"""For each of two ranks, each of two sets: cross entropy and target tokens."""


@pytest.mark.parametrize(
    ("ranks", "sets", "expected"),
    [
        (2, 2, SUMS[1]),
        # Every rank has its share of the sum.
        (4, 2, [[1.5, 2.0], [2.5, 3.0]]),
        (2, 3, [[0.0, 0.0]] * 3),
        (2, None, None),
    ],
    ids=["same ranks", "more ranks", "other sets", "no mixture"],
)
def test_sums_of_sets_go_on_after_a_resume(ranks, sets, expected):
    """Also where the checkpoint is another mixture's, which only --force resumes."""
    window = None if sets is None else torch.ones(sets, 2, dtype=torch.float64)
    trainer = SimpleNamespace(
        loss_of_model=SimpleNamespace(window=window),
        split=BatchSplit(1, 1, ranks),
        count_tokens=lambda _: None,
        _tr_loss=torch.zeros(()),
    )
    noted = {"losses": [1.0, 2.0], "logged": 3, "tokens": 5, "windows": SUMS}
    state = SimpleNamespace(stateful_callbacks={"LossState": {"args": {}, "attributes": {"noted": noted}}})
    LossState(trainer).on_train_begin(None, state, None)
    assert (None if window is None else window.tolist()) == expected
