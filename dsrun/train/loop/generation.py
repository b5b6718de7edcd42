"""Text that a model generates: in evaluation, each sample once on any number of ranks, and to the user's own prompts
while it trains (--sample-prompts)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.utils.rnn import pad_sequence
from transformers import StoppingCriteriaList, TrainerCallback

from dsrun.errors import UsageError
from dsrun.plugin import Example
from dsrun.recipe.rows.normal import messages_of
from dsrun.recipe.rows.readers import read_marked
from dsrun.runs.records import LineAppender
from dsrun.train.base.console import Console, shortened
from dsrun.train.base.labels import IGNORED
from dsrun.train.data.batches import FILLER
from dsrun.train.data.encoding.chat import check_template, with_arguments
from dsrun.train.data.encoding.tokenizer import affixes_of
from dsrun.train.data.mixture import DataMixture
from dsrun.train.model.load import evaluating


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


LENGTH = 128
"""Tokens written to a prompt where neither --generation_max_length nor --generation_config says it."""
SHOWN = 2


def read_prompts(path: Path) -> list[Any]:
    """The prompts of a file, texts or lists of messages: the lines of a txt file, `prompt` or `messages` of the rows of
    any other data file. Raises UsageError for a row without one, and for a file without rows."""
    prompts: list[Any] = []
    for _, where, row in read_marked(path, keep_linebreaks=False):
        found = next((row[name] for name in ("prompt", "messages", "text") if row.get(name)), None)
        if not isinstance(found, str | list):
            raise UsageError(f"--sample-prompts {where}: a row needs a prompt, as text or as a list of messages")
        prompts.append(found)
    if not prompts:
        raise UsageError(f"--sample-prompts {path} contains no prompts")
    return prompts


def encode_prompt(prompt: Any, tokenizer: Any, *, prefix: str | None, where: str) -> list[int]:
    """The tokens that a model goes on from: messages by its chat template, a text as it stands, or after the `prefix`
    of a seq2seq model; None for a causal one."""
    if not isinstance(prompt, str):
        check_template(tokenizer, where)
        messages = [with_arguments(each) for each in messages_of(prompt, where)]
        return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))
    if prefix is not None:
        return list(tokenizer(prefix + prompt)["input_ids"])
    return affixes_of(tokenizer).wrap(tokenizer(prompt, add_special_tokens=False)["input_ids"], ends=False)


class SamplePrompts(TrainerCallback):
    """Writes what the model makes of each prompt to samples.jsonl after every evaluation and at the end of training,
    and the first of them to the console. All ranks generate, as ZeRO-3 needs; the main one writes."""

    def __init__(self, trainer: Any, prompts: Path, run: Path, console: Console, *, prefix: str | None) -> None:
        self.trainer = trainer
        self.prompts = read_prompts(prompts)
        self.console = console
        self.file = run / "samples.jsonl"
        self.is_causal = prefix is None
        tokenizer, where = trainer.processing_class, f"--sample-prompts {prompts}"
        self.ids = [encode_prompt(prompt, tokenizer, prefix=prefix, where=where) for prompt in self.prompts]
        self._last: int | None = None

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._write(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.trainer.interrupted:
            self._write(state.global_step)

    def _write(self, step: int) -> None:
        if step == self._last:
            return
        self._last = step
        heart = self.trainer.context.heart
        before = heart.phase
        heart.enter("generating")
        texts = self._generate()
        heart.enter(before)
        if self.trainer.split.rank != 0:
            return
        samples = LineAppender(self.file)
        for prompt, text in zip(self.prompts, texts, strict=True):
            samples.append({"step": step, "prompt": prompt, "text": text})
        samples.close()
        for text in texts[:SHOWN]:
            self.console.print(f"sample at step {step}: {shortened(text)!r}")

    def _generate(self) -> list[str]:
        arguments = self.trainer.args
        size = arguments.per_device_eval_batch_size
        texts: list[str] = []
        with evaluating(self.trainer.model):
            for start in range(0, len(self.ids), size):
                prompts, pad_id = self.ids[start : start + size], self.trainer.data_collator.pad_id
                ids, mask = padded(prompts, pad_id, left=self.is_causal)
                ids, mask = ids.to(arguments.device), mask.to(arguments.device)
                length = most_new_tokens(self.trainer) or LENGTH
                texts += write_texts(self.trainer, ids, mask, max_new_tokens=length)
        return texts
