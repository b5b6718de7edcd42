"""Text that a model generates in evaluation, each sample once on any number of ranks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.utils.rnn import pad_sequence
from transformers import StoppingCriteriaList

from dsrun.plugin import Example
from dsrun.train.base.labels import IGNORED
from dsrun.train.data.batches import FILLER
from dsrun.train.data.mixture import DataMixture


def last_answer(labels: Any) -> tuple[int, int] | None:
    """Where in a row of a causal model the last text to learn begins and ends; None where there is none, or nothing
    before it that it could be generated from."""
    learned = np.asarray(labels) != IGNORED
    if not learned.any():
        return None
    end = len(learned) - int(np.argmax(learned[::-1]))
    before = np.flatnonzero(~learned[:end])
    return (int(before[-1]) + 1, end) if len(before) else None


def has_prompts(rows: Any) -> bool:
    """Whether any of the rows of a causal model has a prompt; blocks of running text have none."""
    if isinstance(rows, DataMixture):
        return any(map(has_prompts, rows.sets.values()))
    # A token file has no prompts, and need not be read to know it.
    return hasattr(rows, "with_format") and any(last_answer(row["labels"]) for row in rows)


def padded(rows: Sequence[list[int]], fill: int, *, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and their mask, int64 [rows, longest]. A causal model goes on at the right, so its prompts are padded
    on the left."""
    ids, side = [torch.tensor(row, dtype=torch.int64) for row in rows], "left" if left else "right"
    mask = pad_sequence([torch.ones_like(row) for row in ids], batch_first=True, padding_side=side)
    return pad_sequence(ids, batch_first=True, padding_value=fill, padding_side=side), mask


@torch.no_grad()
def write_texts(trainer: Any, ids: torch.Tensor, mask: torch.Tensor, **options: Any) -> list[str]:
    """What the model writes to the rows of `ids`, on all ranks alike; of a causal model what comes after them."""
    arguments, is_causal = trainer.args, trainer.loss_of_model.shifted
    positions = getattr(trainer.model.config, "max_position_embeddings", None)
    if is_causal and positions:
        options["max_new_tokens"] = max(1, min(options["max_new_tokens"], positions - ids.shape[1]))

    def beat(tokens: torch.Tensor, _scores: Any, **_more: Any) -> torch.Tensor:
        """Stops nothing: a long text of a large model may take longer than a rank may be silent."""
        trainer.context.heart.beat()
        return torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)

    # Chosen by chance, texts would differ from run to run, and draw from the random numbers of training.
    options |= {"num_beams": arguments.generation_num_beams, "do_sample": False}
    # Ranks stop at different lengths; under ZeRO-3 each must go on taking part in the gathering.
    options["synced_gpus"] = trainer.is_zero3 and trainer.split.world_size > 1
    options["stopping_criteria"] = StoppingCriteriaList([beat])
    given = {name: value for name, value in options.items() if value is not None}
    with trainer.compute_loss_context_manager():
        # The config says use_cache=False, for training (build_model.py): each token would cost a forward over all text.
        tokens = trainer.model.generate(input_ids=ids, attention_mask=mask, use_cache=True, **given)
    new = tokens[:, ids.shape[1] :] if is_causal else tokens
    return trainer.processing_class.batch_decode(new, skip_special_tokens=True)


def most_new_tokens(trainer: Any) -> int | None:
    """How much a causal model may write, where flags say it: --generation_max_length, else the `max_new_tokens` of
    --generation_config."""
    arguments = trainer.args
    named = trainer.model.generation_config.max_new_tokens if arguments.generation_config else None
    return arguments.generation_max_length or named


class TextGenerator:
    """Generates a text for every row of `rows`: from the source of a seq2seq row, from what comes before the last
    answer of a causal one. Called with each batch, on all ranks."""

    def __init__(self, trainer: Any, rows: Any) -> None:
        self.trainer = trainer
        self.rows = rows
        self.tokenizer = trainer.processing_class
        self.shifted = trainer.loss_of_model.shifted
        self.options = self._ends() if self.shifted else {"max_length": trainer.args.generation_max_length}
        self._texts: list[tuple[int, str]] = []

    def _ends(self) -> dict[str, Any]:
        """When a causal model stops: at the special tokens that end its answers, or when it has written as much as the
        longest of them; of all rows, so that the result does not depend on which of them share a batch."""
        longest, ends = 1, set(np.atleast_1d(self.trainer.model.generation_config.eos_token_id or ()).tolist())
        special = set(self.tokenizer.all_special_ids)
        for labels in (row["labels"] for row in self.rows):
            if span := last_answer(labels):
                longest = max(longest, span[1] - span[0])
                ends |= {int(labels[span[1] - 1])} & special
        stop = {"eos_token_id": sorted(ends)} if ends else {}
        return {"max_new_tokens": most_new_tokens(self.trainer) or longest, **stop}

    def take(self, indices: Sequence[int], inputs: dict[str, torch.Tensor]) -> None:
        """Generate for the rows `indices` of a batch, FILLER standing for none."""
        ids, mask, has_answer = inputs["input_ids"], inputs["attention_mask"], [True] * len(indices)
        if self.shifted:
            spans = [last_answer(labels) for labels in inputs["labels"].cpu()]
            has_answer = [span is not None for span in spans]
            # A row without a prompt gives its first token, as every rank must generate as often.
            prompts = [row[: span[0] if span else 1] for row, span in zip(ids.tolist(), spans, strict=True)]
            ids, mask = (each.to(ids) for each in padded(prompts, self.trainer.data_collator.pad_id, left=True))
        found = zip(indices, write_texts(self.trainer, ids, mask, **self.options), has_answer, strict=True)
        self._texts += [(index, text) for index, text, counts in found if counts and index != FILLER]

    def examples(self) -> list[Example]:
        """What was generated on all ranks, in the order of the rows, on rank 0; nothing on the others."""
        shares: list[Any] | None = [self._texts]
        split = self.trainer.split
        if split.world_size > 1:
            shares = [None] * split.world_size if split.rank == 0 else None
            dist.gather_object(self._texts, shares, dst=0)
        if shares is None:
            return []
        return [self._example(self.rows[i], text) for i, text in sorted(pair for share in shares for pair in share)]

    def _example(self, row: dict[str, Any], prediction: str) -> Example:
        start, end = (last_answer(row["labels"]) if self.shifted else None) or (len(row["input_ids"]), None)
        source = row.get("source_text") or self._decode(row["input_ids"][:start])
        reference = row.get("target_text") or self._decode(row["labels"][start if self.shifted else 0 : end])
        return Example(source, prediction, reference)

    def _decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode([i for i in ids if i != IGNORED], skip_special_tokens=True)
