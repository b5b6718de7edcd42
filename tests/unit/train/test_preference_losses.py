"""The losses of --dpo-loss: those of TRL on the same batch, and those of the papers in double precision."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dsrun.errors import UsageError
from dsrun.recipe.flags import own_flags
from dsrun.recipe.recipe import Recipe, validate
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.data.encoding.preferences import PreferenceCollator
from dsrun.train.loss.dpo import DIVERGENCES, LOSSES, DpoLoss
from dsrun.train.loss.protocol import FrozenModel

IGNORED = -100
BETA, SMOOTHING = 0.3, 0.2
SMOOTHED = ("exo_pair", "robust", "aot", "aot_unpaired")
# Of more than the difference of both rewards: TRL refuses other divergences for them.
OF_REWARDS = ("nca_pair", "bco_pair", "sppo_hard", "aot", "aot_unpaired", "apo_zero", "apo_down")
CONFIG = LlamaConfig(
    vocab_size=11, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, pad_token_id=0
)
# Chosen and rejected answers of several lengths, the last of one token.
ANSWERS = [
    ([3, 4], [5, 1], [6, 7, 8, 1]), ([9], [2, 2, 1], [1]), ([5, 5, 5], [10, 1], [4, 1]), ([8], [3, 9, 9, 9, 1], [1]),
]  # fmt: skip


def model_of(seed):
    torch.manual_seed(seed)
    return LlamaForCausalLM(CONFIG).eval()


def row(prompt, chosen, rejected):
    labels, rejected_labels = ([IGNORED] * len(prompt) + answer for answer in (chosen, rejected))
    return {
        "input_ids": prompt + chosen, "labels": labels, "rejected_ids": prompt + rejected,
        "rejected_labels": rejected_labels,
    }  # fmt: skip


ROWS = [row(*each) for each in ANSWERS]
COLLATE = PreferenceCollator(pad_id=0, seq2seq=False)


@pytest.fixture(scope="module")
def peer(tmp_path_factory):
    """TRL's trainer on the model and the reference of these tests."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    from tests.integration.conftest import make_tokenizer

    folder = str(tmp_path_factory.mktemp("trl"))
    return DPOTrainer(
        model_of(0), model_of(1), processing_class=make_tokenizer(),
        args=DPOConfig(output_dir=folder, beta=BETA, use_cpu=True, report_to="none", bf16=False),
        train_dataset=Dataset.from_list([{"prompt": "w1", "chosen": "w2", "rejected": "w3"}]),
    )  # fmt: skip


def loss_of(name, smoothing=0.0, divergence="reverse_kl", sft_weight=0.0):
    spec = TrainSpec(
        dpo_beta=BETA, dpo_loss=name, dpo_label_smoothing=smoothing, dpo_divergence=divergence, sft_weight=sft_weight
    )
    return DpoLoss(FrozenModel(model_of(1), sharded=False), spec)


def ours(name, batch, **settings):
    loss = loss_of(name, **settings)
    total, _ = loss(model_of(0), batch, loss.items(batch["labels"]))
    assert loss.metrics(loss.sums(model_of(0), batch))["loss"] == pytest.approx(total.item(), abs=1e-6)
    return total.item()


def theirs(peer, batch, names, weights=(1.0,), smoothing=SMOOTHING, divergence="reverse_kl"):
    order = [*range(0, len(batch["labels"]), 2), *range(1, len(batch["labels"]), 2)]
    inputs = {name: value[order] for name, value in batch.items()}
    inputs["completion_mask"] = inputs.pop("labels").ne(IGNORED).long()
    peer.loss_types, peer.loss_weights = list(names), list(weights)
    peer.label_smoothing, peer.f_divergence_type = smoothing, divergence
    return peer.compute_loss(peer.model, inputs).item()


@pytest.mark.parametrize("name", LOSSES)
def test_pair_loss_equals_that_of_trl(name, peer):
    """TRL's sigmoid has no smoothing; robust, exo_pair and aot have it."""
    smoothing = SMOOTHING if name in SMOOTHED else 0.0
    batch = COLLATE(ROWS)
    assert ours(name, batch, smoothing=smoothing) == pytest.approx(
        theirs(peer, batch, [name], smoothing=smoothing), abs=1e-5
    )


@pytest.mark.parametrize(
    ("name", "divergence"), [each for each in product(LOSSES, DIVERGENCES) if each[0] not in OF_REWARDS]
)
def test_divergences_equal_those_of_trl(name, divergence, peer):
    smoothing = SMOOTHING if name in ("exo_pair", "robust") else 0.0
    expected = theirs(peer, COLLATE(ROWS), [name], smoothing=smoothing, divergence=divergence)
    assert ours(name, COLLATE(ROWS), smoothing=smoothing, divergence=divergence) == pytest.approx(expected, abs=1e-5)


def test_sft_weight_equals_a_second_loss_of_trl(peer):
    """The mean over the tokens of all chosen answers, not over answers."""
    expected = theirs(peer, COLLATE(ROWS), ["ipo", "sft"], (1.0, 0.7))
    assert ours("ipo", COLLATE(ROWS), sft_weight=0.7) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_settings_that_change_nothing_are_said_to(name):
    """A notice for --dpo-label-smoothing, and a refusal of other divergences, exactly where they do not count."""
    batch = COLLATE(ROWS)
    is_smoothed = ours(name, batch, smoothing=0.3) != ours(name, batch, smoothing=0.1)
    given = {"task": "dpo", "train_file": ["a.jsonl"], "model": "m", "dpo_loss": name, "dpo_label_smoothing": 0.1}
    notices = validate(Recipe.of(given, dict.fromkeys(given, "command line")))
    assert any("dpo_label_smoothing" in each or "dpo-label-smoothing" in each for each in notices) != is_smoothed
    given |= {"dpo_divergence": "forward_kl"}
    try:
        validate(Recipe.of(given, dict.fromkeys(given, "command line")))
        is_refused = False
    except UsageError:
        is_refused = True
    assert is_refused == (name in OF_REWARDS)


def test_flags_offer_every_loss_of_trl():
    """A release of TRL with more of them fails here."""
    from trl import DPOConfig

    told = DPOConfig.__dataclass_fields__["loss_type"].metadata["help"]
    assert {name for name in LOSSES if f"`'{name}'`" in told} == set(LOSSES)
    assert told.count("`'") == len(LOSSES)
    assert set(own_flags()["dpo_loss"].choices) == set(LOSSES)
    assert set(own_flags()["dpo_divergence"].choices) == set(DIVERGENCES)


def log_sigmoid(x):
    return -math.log1p(math.exp(-x))


def paper(name, chosen, rejected, lengths):
    """The loss of a pair of log ratios, in double precision, from the papers' equations."""
    margin = BETA * (chosen - rejected)
    sigmoid = lambda x: 1 / (1 + math.exp(-x))  # noqa: E731
    each, other = chosen / lengths[0], rejected / lengths[1]
    return {
        "sigmoid": -(1 - SMOOTHING) * log_sigmoid(margin) - SMOOTHING * log_sigmoid(-margin),
        "hinge": max(0.0, 1 - margin),
        "ipo": (each - other - 1 / (2 * BETA)) ** 2,
        "exo_pair": sum(
            p * math.log(p / q) for p, q in ((sigmoid(margin), 1 - SMOOTHING), (sigmoid(-margin), SMOOTHING))
        ),
        "robust": (-(1 - SMOOTHING) * log_sigmoid(margin) + SMOOTHING * log_sigmoid(-margin)) / (1 - 2 * SMOOTHING),
        "bco_pair": -log_sigmoid(BETA * chosen) - log_sigmoid(-BETA * rejected),
        "nca_pair": -log_sigmoid(BETA * chosen) - (log_sigmoid(-BETA * chosen) + log_sigmoid(-BETA * rejected)) / 2,
        "sppo_hard": (chosen - 1 / (2 * BETA)) ** 2 + (rejected + 1 / (2 * BETA)) ** 2,
        "apo_zero": 1 - sigmoid(BETA * chosen) + sigmoid(BETA * rejected),
        "apo_down": sigmoid(BETA * chosen) + 1 - sigmoid(margin),
        "sigmoid_norm": -(1 - SMOOTHING) * log_sigmoid(BETA * (each - other))
        - SMOOTHING * log_sigmoid(-BETA * (each - other)),
    }[name]


def log_ratios(batch):
    """Of each answer in double precision, [rows]."""
    found = []
    for model in (model_of(0).double(), model_of(1).double()):
        with torch.no_grad():
            logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        logs, targets = logits[:, :-1].log_softmax(-1), batch["labels"][:, 1:]
        picked = logs.gather(2, targets.clamp(min=0)[..., None])[..., 0]
        found.append(picked.where(targets.ne(IGNORED), 0.0).sum(1))
    return found[0] - found[1]


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in ("aot", "aot_unpaired", "discopop", "sft")])
def test_pair_loss_equals_the_paper_in_double_precision(name):
    batch = COLLATE(ROWS)
    ratios, lengths = log_ratios(batch).tolist(), batch["labels"].ne(IGNORED).sum(1).tolist()
    each = [paper(name, *ratios[i : i + 2], lengths[i : i + 2]) for i in range(0, len(ratios), 2)]
    assert ours(name, batch, smoothing=SMOOTHING) == pytest.approx(sum(each) / len(each), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_filler_changes_no_loss(name):
    """Also not that of the orders that aot compares, nor the tokens of --sft-weight."""
    filler = {key: [IGNORED] * len(ids) if "labels" in key else ids for key, ids in ROWS[1].items()}
    whole = ours(name, COLLATE(ROWS), smoothing=0.1, sft_weight=0.5)
    padded = COLLATE([ROWS[0], filler, *ROWS[1:], filler])
    assert ours(name, padded, smoothing=0.1, sft_weight=0.5) == pytest.approx(whole, abs=1e-6)


@pytest.mark.parametrize("name", [name for name in LOSSES if not name.startswith("aot")])
def test_micro_batches_change_no_loss(name):
    """Nor its gradients; the aot losses compare the pairs of a micro batch, as TRL's do."""
    gradients, losses = [], []
    for cut in ([ROWS], [ROWS[:1], ROWS[1:]]):
        model = model_of(0)
        loss = loss_of(name, smoothing=0.1, sft_weight=0.5)
        batches = [COLLATE(part) for part in cut]
        items = sum(loss.items(batch["labels"]) for batch in batches)
        total = sum(loss(model, batch, items)[0] for batch in batches)
        total.backward()
        losses.append(total.item())
        gradients.append(model.lm_head.weight.grad)
    assert losses[1] == pytest.approx(losses[0], abs=1e-6)
    torch.testing.assert_close(gradients[1], gradients[0])


def test_reference_moves_as_in_trl(tmp_path):
    """By the share of the way, and a checkpoint gives back where it was."""
    from trl.trainer.callbacks import SyncRefModelCallback

    from dsrun.runs.checksum import ChecksumFile
    from dsrun.train.checkpoint.snapshot import write_safetensors
    from dsrun.train.loss.protocol import STATE_FILE

    model, mine, peers = model_of(0), FrozenModel(model_of(1), sharded=False), model_of(1)
    mine.move(model, 0.6)
    SyncRefModelCallback._sync_target_model(model, peers, 0.6)
    for a, b in zip(mine.model.parameters(), peers.parameters(), strict=True):
        torch.testing.assert_close(a.data, b.data)

    with ChecksumFile(tmp_path / STATE_FILE) as file:
        write_safetensors(mine.tensors(), file)
    later = FrozenModel(model_of(2), sharded=False)
    later.restore(tmp_path)
    assert later.has_moved
    for a, b in zip(mine.model.parameters(), later.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_reference_that_never_moved_is_not_saved(tmp_path):
    untouched = FrozenModel(model_of(1), sharded=False)
    assert untouched.tensors() == {}
    untouched.restore(tmp_path)
    assert not untouched.has_moved
