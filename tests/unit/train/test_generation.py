"""From where a causal model generates, and what counts as what it wrote."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM

from dsrun.train.base.labels import IGNORED
from dsrun.train.data.batches import FILLER
from dsrun.train.data.collate import PaddingCollator
from dsrun.train.data.mixture import DataMixture
from dsrun.train.loop.generation import TextGenerator, has_prompts, last_answer, most_new_tokens
from dsrun.train.loss.model_loss import ModelLoss

I = IGNORED  # noqa: E741


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ([I, I, 7, 8], (2, 4)),
        ([I, 5, 6, I, I, 7, 8, I], (5, 7)),
        ([I, I], None),
        ([5, 6, 7], None),
    ],
    ids=["prompt", "second turn", "nothing learned", "text without prompt"],
)
def test_last_answer(labels, found):
    assert last_answer(labels) == found


def test_running_text_has_no_prompts():
    text = Dataset.from_list([{"input_ids": [1, 2], "labels": [1, 2]}])
    assert not has_prompts(text)
    assert has_prompts(
        Dataset.from_list([{"input_ids": [1, 2], "labels": [1, 2]}, {"input_ids": [1, 2], "labels": [I, 2]}])
    )


def test_mixture_has_prompts_where_one_of_its_sets_has():
    text = Dataset.from_list([{"input_ids": [1, 2], "labels": [1, 2]}])
    prompt = Dataset.from_list([{"input_ids": [1, 2], "labels": [I, 2]}])
    assert not has_prompts(DataMixture({"a": text, "b": text}))
    assert has_prompts(DataMixture({"a": text, "b": prompt}))


class Words:
    """Decodes ids as their numbers."""

    all_special_ids = (1,)

    def decode(self, ids, skip_special_tokens):
        return " ".join(str(int(i)) for i in ids if not (skip_special_tokens and i in (0, 1)))

    def batch_decode(self, rows, skip_special_tokens):
        return [self.decode(row, skip_special_tokens) for row in rows]


def generator(rows, **arguments):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, pad_token_id=0,
        max_position_embeddings=16,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    trainer = SimpleNamespace(
        model=model,
        args=SimpleNamespace(
            **{"generation_num_beams": None, "generation_max_length": None, "generation_config": None} | arguments
        ),
        processing_class=Words(),
        loss_of_model=ModelLoss.of(model),
        is_zero3=False,
        split=SimpleNamespace(world_size=1, rank=0),
        data_collator=SimpleNamespace(pad_id=0),
        compute_loss_context_manager=nullcontext,
        context=SimpleNamespace(heart=SimpleNamespace(beat=lambda: None)),
    )
    return TextGenerator(trainer, Dataset.from_list(rows))


ROWS = [
    {"input_ids": [5, 6, 7, 8, 9, 1], "labels": [I, I, I, 8, 9, 1]},
    {"input_ids": [11, 12, 13], "labels": [I, 12, 13]},
    {"input_ids": [4, 4], "labels": [4, 4]},
]


def taken(found, indices, rows):
    found.take(indices, PaddingCollator(pad_id=0, seq2seq=False)(rows))
    return found.examples()


def test_generated_from_prompt_alone_in_any_batch():
    """Prompts of different lengths in one batch give what each gives alone; a row without a prompt gives nothing."""
    together = taken(generator(ROWS), [0, 1, 2, FILLER], [*ROWS, ROWS[0]])
    assert [(e.source, e.reference) for e in together] == [("5 6 7", "8 9"), ("11", "12 13")]
    alone = [taken(generator(ROWS), [k], [ROWS[k]])[0] for k in (0, 1)]
    assert [e.prediction for e in together] == [e.prediction for e in alone]
    # As long as the longest answer, which has three tokens.
    assert all(1 <= len(e.prediction.split()) <= 3 for e in together)


def test_generation_stops_at_end_of_turn_that_answers_end_with():
    assert generator(ROWS).options["eos_token_id"] == [1, 2], "that of the generation config, and that of the answers"


def test_generated_length_as_requested_within_the_positions():
    (example,) = taken(generator(ROWS, generation_max_length=100), [0], ROWS[:1])
    assert len(example.prediction.split()) <= 13, "16 positions, 3 of them the prompt's"


def test_every_token_is_a_sign_of_life():
    """One batch of long texts may take a large model longer than a rank may be silent."""
    found, beats = generator(ROWS, generation_max_length=6), []
    found.options["eos_token_id"] = []
    found.trainer.context.heart.beat = lambda: beats.append(1)
    taken(found, [0], ROWS[:1])
    assert len(beats) == 6


@pytest.mark.parametrize(
    ("length", "file", "found"), [(None, None, None), (None, "own.json", 7), (3, "own.json", 3), (3, None, 3)]
)
def test_most_new_tokens_by_flags(length, file, found):
    """`max_new_tokens` of --generation_config holds; that of a checkpoint, which nobody asked for, does not."""
    arguments = SimpleNamespace(generation_max_length=length, generation_config=file)
    model = SimpleNamespace(generation_config=SimpleNamespace(max_new_tokens=7))
    assert most_new_tokens(SimpleNamespace(args=arguments, model=model)) == found
