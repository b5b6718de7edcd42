"""Batches: padding by position, labels ignored where padded, filler rows harmless."""

import pytest
import torch
from transformers import (
    FSMTConfig,
    FSMTForConditionalGeneration,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MBartConfig,
    MBartForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)

from dsrun.train.data.collate import PaddingCollator

ROWS = [
    {"input_ids": [5, 6, 1], "labels": [7, 1], "source_text": "x"},
    {"input_ids": [5], "labels": [8, 9, 1]},
]

SMALL = {
    "vocab_size": 32,
    "d_model": 8,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 8,
    "decoder_ffn_dim": 8,
    "max_position_embeddings": 16,
}


def test_collator_pads_right_with_ignored_labels():
    batch = PaddingCollator(pad_id=0, seq2seq=True)(ROWS)
    assert set(batch) == {"input_ids", "attention_mask", "labels"}
    assert batch["input_ids"].tolist() == [[5, 6, 1], [5, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [[7, 1, -100], [8, 9, 1]]
    assert all(tensor.dtype == torch.int64 for tensor in batch.values())


def test_eos_label_kept_though_it_also_pads():
    rows = [{"input_ids": [5, 6, 7, 1], "labels": [5, 6, 7, 1]}, {"input_ids": [5, 1], "labels": [5, 1]}]
    batch = PaddingCollator(pad_id=1, seq2seq=False)(rows)
    assert batch["labels"].tolist() == [[5, 6, 7, 1], [5, 1, -100, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]


def test_collator_padded_widths():
    rows = [{"input_ids": [5, 6, 1], "labels": [5, 6, 1]}]
    assert PaddingCollator(pad_id=0, seq2seq=False, multiple_of=8)(rows)["labels"].shape == (1, 8)
    batch = PaddingCollator(pad_id=0, seq2seq=True, length=10, target_length=6)(ROWS)
    assert batch["input_ids"].shape == (2, 10)
    assert batch["labels"].shape == (2, 6)


@pytest.fixture(scope="module")
def t5():
    return T5ForConditionalGeneration(
        T5Config(vocab_size=32, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0)
    )


@pytest.fixture(scope="module")
def mbart():
    return MBartForConditionalGeneration(MBartConfig(**SMALL))


@pytest.fixture(scope="module")
def m2m100():
    """The architecture of NLLB, which has no prepare_decoder_input_ids_from_labels."""
    return M2M100ForConditionalGeneration(M2M100Config(**SMALL)).eval()


def test_decoder_input_ids_are_shifted_labels(t5):
    batch = PaddingCollator(pad_id=0, seq2seq=True, model=t5)(ROWS)
    assert batch["decoder_input_ids"].tolist() == [[0, 7, 1], [0, 8, 9]]


def test_decoder_input_ids_of_model_that_shifts_itself(m2m100):
    """A model that only shifts labels itself gets the same decoder input."""
    batch = PaddingCollator(pad_id=1, seq2seq=True, model=m2m100)(ROWS)
    assert batch["decoder_input_ids"].tolist() == [[2, 7, 1], [2, 8, 9]]
    own = m2m100(**{name: tensor for name, tensor in batch.items() if name != "decoder_input_ids"})
    ours = m2m100(**{name: tensor for name, tensor in batch.items() if name != "labels"})
    torch.testing.assert_close(ours.logits, own.logits)


def test_labels_keep_their_padding_though_fsmt_writes_into_what_it_shifts():
    sizes = {name: size for name, size in SMALL.items() if name != "vocab_size"}
    model = FSMTForConditionalGeneration(FSMTConfig(src_vocab_size=32, tgt_vocab_size=32, **sizes))
    batch = PaddingCollator(pad_id=model.config.pad_token_id, seq2seq=True, model=model)(ROWS)
    assert batch["labels"].tolist() == [[7, 1, -100], [8, 9, 1]]


@pytest.mark.parametrize("name", ["t5", "mbart", "m2m100"])
def test_a_filler_row_goes_through_the_model(request, name):
    model = request.getfixturevalue(name)
    rows = [ROWS[0], {**ROWS[0], "labels": [-100, -100]}]
    batch = PaddingCollator(pad_id=model.config.pad_token_id, seq2seq=True, model=model)(rows)
    assert batch["labels"][1].tolist() == [-100, -100]
    assert torch.isfinite(model(**batch).loss)
