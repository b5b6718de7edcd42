"""The DPO loss: that of TRL on the same batch, the same however the batch is cut up."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.data.encoding.preferences import PreferenceCollator
from dsrun.train.loss.dpo import METRICS, DpoLoss, without_dropout
from dsrun.train.loss.protocol import AdaptersOff, FrozenModel, inference_config

IGNORED = -100
CONFIG = LlamaConfig(
    vocab_size=11, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, pad_token_id=0
)


def model_of(seed):
    torch.manual_seed(seed)
    return LlamaForCausalLM(CONFIG).eval()


def row(prompt, chosen, rejected):
    def side(answer):
        return prompt + answer, [IGNORED] * len(prompt) + answer

    (ids, labels), (rejected_ids, rejected_labels) = side(chosen), side(rejected)
    return {
        "input_ids": ids, "labels": labels, "rejected_ids": rejected_ids, "rejected_labels": rejected_labels
    }  # fmt: skip


ROWS = [row([3, 4], [5, 1], [6, 7, 8, 1]), row([9], [2, 2, 1], [1]), row([5, 5, 5, 5], [10, 1], [4, 1])]
COLLATE = PreferenceCollator(pad_id=0, seq2seq=False)


def filler(row):
    return {name: [IGNORED] * len(value) if "labels" in name else value for name, value in row.items()}


@pytest.fixture
def loss():
    """The loss against a frozen copy with other weights."""
    return DpoLoss(FrozenModel(model_of(1), sharded=False), TrainSpec(dpo_beta=0.3))


def test_loss_equals_that_of_trl(loss, tmp_path):
    """On the same weights and batch: the loss and what is logged."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    from tests.integration.conftest import make_tokenizer

    model, batch = model_of(0), COLLATE(ROWS)
    ours, _ = loss(model, batch, loss.items(batch["labels"]))
    theirs = DPOTrainer(
        model, model_of(1), processing_class=make_tokenizer(),
        args=DPOConfig(output_dir=str(tmp_path), beta=0.3, use_cpu=True, report_to="none", bf16=False),
        train_dataset=Dataset.from_list([{"prompt": "w1", "chosen": "w2", "rejected": "w3"}]),
    )  # fmt: skip
    order = [0, 2, 4, 1, 3, 5]
    inputs = {name: value[order] for name, value in batch.items()}
    inputs["completion_mask"] = inputs.pop("labels").ne(IGNORED).long()
    assert ours.item() == pytest.approx(theirs.compute_loss(model, inputs).item(), abs=1e-5)
    means = loss.metrics(loss.sums(model, batch))
    logged = {name: sum(values) / len(values) for name, values in theirs._metrics["eval"].items()}
    assert {name: means[name] for name in METRICS} == pytest.approx({name: logged[name] for name in METRICS}, abs=1e-5)


def test_loss_and_gradients_independent_of_the_cut(loss):
    """Micro batches of any size, padding and filler give the loss and the gradients of the whole batch."""
    found = []
    for cut in ([ROWS], [ROWS[:1], ROWS[1:]], [[each, filler(each)] for each in ROWS]):
        model = model_of(0)
        batches = [COLLATE(part) for part in cut]
        pairs = sum(loss.items(batch["labels"]) for batch in batches)
        assert pairs[0] == len(ROWS)
        total = sum(loss(model, batch, pairs)[0] for batch in batches)
        total.backward()
        found.append((total.detach(), model.lm_head.weight.grad))
    for total, gradient in found[1:]:
        torch.testing.assert_close(total, found[0][0])
        torch.testing.assert_close(gradient, found[0][1])


def test_filler_alone_gives_zero_gradients(loss):
    model = model_of(0)
    total, _ = loss(model, COLLATE([filler(ROWS[0])]), torch.tensor([1, 1]))
    total.backward()
    assert total.item() == 0
    assert model.lm_head.weight.grad.abs().sum() == 0


def test_loss_is_log_two_where_nothing_is_learned_yet():
    loss = DpoLoss(FrozenModel(model_of(0), sharded=False), TrainSpec(dpo_beta=0.3))
    assert loss(model_of(0), COLLATE(ROWS), torch.tensor([3, 1]))[0].item() == pytest.approx(math.log(2), abs=1e-6)


def test_smoothing_is_the_share_of_swapped_pairs():
    """The loss with smoothing is the mean of the loss and that of the swapped pairs, by their shares."""
    swapped = [row(r["input_ids"][:0], r["rejected_ids"], r["input_ids"]) for r in ROWS]
    straight = [row(r["input_ids"][:0], r["input_ids"], r["rejected_ids"]) for r in ROWS]
    reference, model, pairs = FrozenModel(model_of(1), sharded=False), model_of(0), torch.tensor([3, 1])
    plain = DpoLoss(reference, TrainSpec(dpo_beta=0.3))
    right, wrong = (plain(model, COLLATE(rows), pairs)[0].item() for rows in (straight, swapped))
    smooth = DpoLoss(reference, TrainSpec(dpo_beta=0.3, dpo_label_smoothing=0.2))(model, COLLATE(straight), pairs)[
        0
    ].item()
    assert smooth == pytest.approx(0.8 * right + 0.2 * wrong)


def test_window_adds_up_what_is_logged(loss):
    model = model_of(0)
    for part in (ROWS[:1], ROWS[1:]):
        loss(model, COLLATE(part), torch.tensor([3, 1]))
    assert loss.metrics(loss.window) == pytest.approx(loss.metrics(loss.sums(model, COLLATE(ROWS))))


def test_reference_of_lora_is_the_model_without_adapters():
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(model_of(0), LoraConfig(target_modules="all-linear", lora_dropout=0.5)).train()
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.ones_(parameter)
    batch = COLLATE(ROWS)
    read = {name: value for name, value in batch.items() if name != "labels"}
    with torch.no_grad():
        plain = model_of(0)(**read).logits
    torch.testing.assert_close(AdaptersOff(adapted).logits(adapted, read), plain)
    assert adapted.training
    assert not torch.allclose(adapted.eval()(**read).logits, plain)


def test_dropout_is_off_in_layers_and_in_attention():
    model = LlamaForCausalLM(LlamaConfig(**{**CONFIG.to_dict(), "attention_dropout": 0.5}))
    model.model.embed_dropout = torch.nn.Dropout(0.5)
    without_dropout(model)
    assert model.model.embed_dropout.p == 0
    assert model.train().model.layers[0].self_attn.attention_dropout == 0


def test_configuration_of_the_reference_has_no_optimizer():
    trained = {
        "optimizer": {"type": "AdamW"}, "scheduler": {}, "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
    }  # fmt: skip
    assert inference_config(trained) == {
        "bf16": {"enabled": True}, "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}},
    }  # fmt: skip
    assert "optimizer" in trained
