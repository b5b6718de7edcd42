"""Texts that a model writes to the user's own prompts while it trains (--sample-prompts)."""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from dsrun.errors import UsageError
from dsrun.recipe.rows.normal import messages_of
from dsrun.recipe.rows.readers import read_marked
from dsrun.runs.records import LineAppender
from dsrun.train.base.console import Console, shortened
from dsrun.train.data.encoding.chat import check_template, with_arguments
from dsrun.train.data.encoding.tokenizer import affixes_of
from dsrun.train.loop.generation import most_new_tokens, padded, write_texts
from dsrun.train.model.load import evaluating

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
                ids, mask = padded(
                    self.ids[start : start + size], self.trainer.data_collator.pad_id, left=self.is_causal
                )
                ids, mask = ids.to(arguments.device), mask.to(arguments.device)
                length = most_new_tokens(self.trainer) or LENGTH
                texts += write_texts(self.trainer, ids, mask, max_new_tokens=length)
        return texts
