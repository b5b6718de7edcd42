"""Rows of several pairs in encoder-decoders: loss and gradients are those of the pairs alone."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForSeq2SeqLM,
    BartConfig,
    BertConfig,
    BigBirdPegasusConfig,
    BlenderbotConfig,
    EncoderDecoderConfig,
    LongT5Config,
    M2M100Config,
    MarianConfig,
    MBartConfig,
    MT5Config,
    PegasusConfig,
    SwitchTransformersConfig,
    T5Config,
    T5GemmaConfig,
    UMT5Config,
)

from dsrun.train.data.collate import PaddingCollator
from dsrun.train.loss.model_loss import summed_cross_entropy
from dsrun.train.packing.encoder_decoder import install, pair_inputs, trial_of_pairs
from dsrun.train.packing.measure import measure

IDS = {"vocab_size": 48, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
RELATIVE = {**IDS, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0}
# Positions for the longest document, not for a row.
ABSOLUTE = {
    **IDS, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 24,
    "forced_eos_token_id": 1, "dropout": 0.0, "attention_dropout": 0.0, "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
}  # fmt: skip
PACKED = [
    T5Config(**RELATIVE),
    MT5Config(**RELATIVE),
    UMT5Config(**RELATIVE),
    BartConfig(**ABSOLUTE, bos_token_id=2),
    MBartConfig(**ABSOLUTE),
    PegasusConfig(**ABSOLUTE),
    MarianConfig(**ABSOLUTE),
    BlenderbotConfig(**ABSOLUTE),
    M2M100Config(**ABSOLUTE | {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}),
]
# (source, target) tokens of each document of each row; only the source of the first has no padding, the last is filler.
ROWS = [[(9, 6), (14, 10), (17, 6)], [(5, 20), (11, 2)], [(23, 4)], [(3, 3)]]
RELATIVE_ERROR = 1e-5


def measured(model):
    difference, problem = measure(model, trial_of_pairs(model))
    assert problem is None or difference > 1e-4
    return difference


def named(config):
    return config.model_type


def model_of(config, attention="sdpa"):
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(copy.deepcopy(config), attn_implementation=attention)
    # Weights as far from 0 as trained ones, so that what a document sees matters.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and parameter.requires_grad and "embed_positions" not in name:
                parameter.normal_(std=0.3)
    return model.train()


def samples():
    generator = torch.Generator().manual_seed(1)
    rows = [
        [[torch.randint(3, 48, (tokens,), generator=generator).tolist() for tokens in pair] for pair in row]
        for row in ROWS
    ]
    found = [[{"input_ids": source, "labels": target} for source, target in row] for row in rows]
    # A sample of which a token is not learned, and filler.
    found[1][0]["labels"][3] = -100
    found[-1][0]["labels"] = [-100] * 3
    return found


def loss_and_gradients(model, batches):
    """The loss summed over the target tokens of all batches, and its gradients in one vector."""
    model.zero_grad()
    total = 0.0
    for batch in batches:
        logits = model(**{name: values for name, values in batch.items() if name != "labels"})["logits"]
        loss = summed_cross_entropy(logits, batch["labels"], shifted=False)
        loss.backward()
        total += float(loss.detach())
    gradients = [each.grad.flatten() for each in model.parameters() if each.requires_grad and each.grad is not None]
    return total, torch.cat(gradients)


def packed_and_alone(model, base=None):
    """What loss_and_gradients gives for the packed rows, and for each sample alone."""
    base = base or model
    collator = PaddingCollator(base.config.pad_token_id, seq2seq=True, model=base)
    rows = samples()
    alone = loss_and_gradients(model, [collator([sample]) for row in rows for sample in row])
    install(model)
    batch = pair_inputs(rows, collator.pad_id, collator.decoder_input_ids, 8)
    return loss_and_gradients(model, [batch]), alone


def assert_equal(found):
    (packed, packed_gradients), (alone, gradients) = found
    assert packed == pytest.approx(alone, rel=RELATIVE_ERROR)
    assert float((packed_gradients - gradients).norm() / gradients.norm()) < RELATIVE_ERROR


@pytest.mark.parametrize("config", PACKED, ids=named)
def test_packed_gradients_equal_those_of_pairs_alone(config):
    assert_equal(packed_and_alone(model_of(config)))


@pytest.mark.parametrize("config", [PACKED[0], PACKED[3]], ids=named)
def test_packed_gradients_with_eager_attention(config):
    """Its mask is added to the scores."""
    assert_equal(packed_and_alone(model_of(config, "eager")))


@pytest.mark.parametrize("reentrant", [False, True], ids=["stock", "reentrant"])
@pytest.mark.parametrize("config", [PACKED[0], PACKED[8]], ids=named)
def test_packed_gradients_with_checkpointed_activations(config, reentrant):
    model = model_of(config)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    assert_equal(packed_and_alone(model))


def test_packed_gradients_of_adapters():
    """peft calls the forward of the model, and not its hooks."""
    base = model_of(PACKED[3])
    config = LoraConfig(task_type="SEQ_2_SEQ_LM", r=2, target_modules="all-linear", init_lora_weights=False)
    assert_equal(packed_and_alone(get_peft_model(base, config), base))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("config", [PACKED[0], PACKED[3]], ids=named)
def test_packed_loss_in_bf16(config, attention):
    """In bf16 weights, and in autocast: the loss of each is about that of fp32, and the gradients are numbers."""
    exact = packed_and_alone(model_of(config, attention))[0][0]
    half = packed_and_alone(model_of(config, attention).bfloat16())[0]
    with torch.autocast("cpu", torch.bfloat16):
        mixed = packed_and_alone(model_of(config, attention))[0]
    for loss, gradients in (half, mixed):
        assert loss == pytest.approx(exact, rel=0.02)
        assert gradients.isfinite().all()


@pytest.mark.parametrize("config", [PACKED[4], PACKED[8]], ids=named)
def test_unpacked_calls_of_installed_model(config):
    """Evaluation, generation and a copy go on as before; a packed call leaves nothing behind."""
    model = model_of(config).eval()
    ids = torch.tensor([[5, 6, 7, 2], [8, 9, 10, 2]])
    inputs = {"input_ids": ids, "decoder_input_ids": ids.flip(1)}
    before, signature = model(**inputs)["logits"], inspect.signature(model.forward)
    written = model.generate(input_ids=ids, max_new_tokens=5, num_beams=2)
    install(model)
    measured(model)
    assert inspect.signature(model.forward) == signature
    assert torch.equal(model(**inputs)["logits"], before)
    assert torch.equal(model.generate(input_ids=ids, max_new_tokens=5, num_beams=2), written)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert torch.equal(model(**inputs)["logits"], before)
    assert measured(other) == 0


def test_padding_sees_tokens_and_no_cache_is_kept():
    """Also where a row has padding in its target only: attention over nothing is NaN in some kernels."""
    model = model_of(PACKED[3])
    install(model)
    seen = []
    model.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["encoder_attention_mask"]), with_kwargs=True
    )
    batch = pair_inputs(samples(), 0, lambda labels: labels.clamp(min=0), 8)
    del batch["labels"]
    assert "past_key_values" not in model(**batch)
    assert seen[0].eq(0).any(dim=-1).all()


def test_padding_in_the_middle_of_a_document():
    """M2M-100 gives padding no position of its own and does not count it, also where it is part of a text."""
    model = model_of(PACKED[8])
    documents = [[5, 1, 6, 7], [1, 8, 9]]
    row = [{"input_ids": ids, "labels": ids} for ids in documents]
    install(model)
    packed = model(**{k: v for k, v in pair_inputs([row], 1, torch.clone).items() if k != "labels"})["logits"]
    alone = [model(input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([ids]))["logits"] for ids in documents]
    assert torch.allclose(packed, torch.cat(alone, dim=1), atol=1e-5)


def test_tensors_of_packed_rows():
    rows = [
        [{"input_ids": [5, 6, 1], "labels": [7, 1]}, {"input_ids": [8, 1], "labels": [9, 9, 1]}],
        [{"input_ids": [5, 1], "labels": [-100, 1]}],
    ]
    collator = PaddingCollator(0, seq2seq=True, model=model_of(PACKED[0]))
    batch = pair_inputs(rows, 0, collator.decoder_input_ids, 4)
    assert {name: values.tolist() for name, values in batch.items()} == {
        "input_ids": [[5, 6, 1, 8, 1, 0, 0, 0], [5, 1, 0, 0, 0, 0, 0, 0]],
        "source_segments": [[1, 1, 1, 2, 2, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0]],
        "decoder_input_ids": [[0, 7, 0, 9, 9, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 0]],
        "labels": [[7, 1, 9, 9, 1, -100, -100, -100], [-100, 1] + [-100] * 6],
        "target_segments": [[1, 1, 2, 2, 2, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0]],
    }


def difference_of(model):
    install(model)
    return measured(model)


@pytest.mark.parametrize("config", PACKED, ids=named)
def test_probe_clears_families(config):
    model = model_of(config)
    before = torch.get_rng_state()
    assert difference_of(model) < RELATIVE_ERROR
    assert model.training
    assert torch.equal(torch.get_rng_state(), before)


GEMMA = {
    "vocab_size": 48, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2,
}  # fmt: skip
SPARSE = {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "num_experts": 2}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (SwitchTransformersConfig(**RELATIVE, **SPARSE), "an expert takes a limited number of tokens"),
        (T5GemmaConfig(encoder=GEMMA, decoder=GEMMA, vocab_size=48), "sliding window"),
        (BigBirdPegasusConfig(**ABSOLUTE, block_size=4), "block-sparse attention"),
        (LongT5Config(**RELATIVE, local_radius=8), "size"),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_probe_refuses_families(config, reason):
    """Those that look beyond a mask, or that documents of twenty tokens would not tell from the others."""
    with pytest.raises((ValueError, RuntimeError), match=reason):
        difference_of(model_of(config, "eager"))


def test_probe_measures_mixed_documents():
    """The absolute positions of BERT do not start again: documents are not what they are alone."""
    bert = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    parts = [BertConfig(vocab_size=48, **bert) for _ in range(2)]
    assert difference_of(model_of(EncoderDecoderConfig.from_encoder_decoder_configs(*parts))) > 0.01
