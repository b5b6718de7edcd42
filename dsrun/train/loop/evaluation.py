"""Evaluation: exact over target tokens, scores of generated text, each sample once on any number of ranks."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from dsrun.plugin import Example
from dsrun.train.base.distributed import all_gather_object, rank0_first
from dsrun.train.data.batches import BatchLoader, BatchSplit, GlobalBatchSampler, WithFiller
from dsrun.train.data.mixture import sets_of
from dsrun.train.loop.generation import TextGenerator, has_prompts
from dsrun.train.loop.preemption import EvaluationLeftError

_BEAT_EVERY = 100  # texts, which take a second at most
ROUGE_TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


class LossState(TrainerCallback, ExportableState):
    """Keeps in the checkpoint what the Trainer's log lines are made of: the stock loop begins a new sum of losses at a
    resume."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._noted: dict[str, Any] = {}

    def note(self) -> None:
        """Called on all ranks before a checkpoint is written."""
        trainer = self.trainer
        self._noted = {
            "losses": all_gather_object(float(trainer._tr_loss)),
            "logged": trainer._globalstep_last_logged,
            "tokens": trainer.tokens_seen,
        }
        window = trainer.loss_of_model.window
        if window is not None:
            self._noted["windows"] = all_gather_object(window.tolist())

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"noted": self._noted}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        stored = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        noted = stored["attributes"]["noted"]
        trainer, window = self.trainer, self.trainer.loss_of_model.window
        if window is not None:
            # It has what was computed to check the model.
            window.zero_()
        if not noted:
            return
        losses = noted["losses"]
        # Every rank's sum is its share times the number of ranks; of another number only their mean can be kept.
        same = len(losses) == trainer.split.world_size
        mine = losses[trainer.split.rank] if same else sum(losses) / len(losses)
        trainer._tr_loss.fill_(mine)
        trainer._globalstep_last_logged = noted["logged"]
        trainer.count_tokens(noted["tokens"])
        windows = torch.tensor(noted.get("windows", []), dtype=torch.float64)
        # With --force the data may be a mixture of other sets by now, or none.
        if window is not None and windows.shape[1:] == window.shape:
            # They are added up over the ranks in any case.
            window.copy_(windows[trainer.split.rank] if same else windows.sum(0) / trainer.split.world_size)


def text_scores(
    predictions: Sequence[str], references: Sequence[str], *, beat: Callable[[], None] = lambda: None
) -> dict[str, float]:
    """BLEU, chrF (sacreBLEU's default signature), ROUGE F-measures (rouge-score's with stemming) and exact match, all
    from 0 to 100; none for empty input. `beat` is called again and again."""
    if not references:
        return {}
    import sacrebleu
    from rouge_score.rouge_scorer import RougeScorer

    hypotheses = [text.strip() for text in predictions]
    targets = [text.strip() for text in references]
    beat()
    found = {
        "bleu": sacrebleu.corpus_bleu(hypotheses, [targets]).score,
        "chrf": sacrebleu.corpus_chrf(hypotheses, [targets]).score,
    }
    # rougeLsum wants one sentence a line; text without line breaks is one sentence.
    scorer, scores = RougeScorer(list(ROUGE_TYPES), use_stemmer=True), []
    for number, (target, hypothesis) in enumerate(zip(targets, hypotheses, strict=True)):
        scores.append(scorer.score(target, hypothesis))
        if number % _BEAT_EVERY == 0:
            beat()
    found |= {kind: 100 * sum(score[kind].fmeasure for score in scores) / len(scores) for kind in ROUGE_TYPES}
    exact = sum(h == t for h, t in zip(hypotheses, targets, strict=True)) / len(targets)
    return found | {"exact_match": 100 * exact}


EvaluationProgress = Callable[[int, int], None]


class Evaluator:
    """Runs a model over a dataset in lock step on all ranks, as ZeRO-3's gathering of parameters needs."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.loss = trainer.loss_of_model
        self.rank, self.world_size = trainer.split.rank, trainer.split.world_size

    def run(self, rows: Any, *, generate: bool, progress: EvaluationProgress) -> tuple[dict[str, float], list[Example]]:
        """Metrics without prefix, the same on all ranks, those of a mixture's set behind its name; and examples in the
        data's order, on rank 0 only."""
        began = time.monotonic()
        sums: Any = 0
        examples: list[Example] = []
        of_sets: dict[str, float] = {}
        done = 0
        # Not undone: the Trainer's training_step begins with model.train().
        self.trainer.model.eval()
        for name, part in sets_of(rows).items():
            # No batch has rows of two sets, so that whatever is summed over batches is known of each set.
            writes = generate and (not self.loss.shifted or has_prompts(part))
            found, texts = self._over(part, writes, done, len(rows), progress)
            done += len(part)
            sums, examples = sums + found, examples + texts
            if name:
                metrics = self.loss.metrics(found) | self._scores(texts, writes)
                of_sets |= {f"{name}_{metric}": value for metric, value in metrics.items()}
        metrics = self.loss.metrics(sums) | self._scores(examples, generate)
        seconds = time.monotonic() - began
        speed = {"seconds": seconds, "samples_per_second": len(rows) / seconds}
        return {**metrics, **of_sets, **speed}, examples

    def _over(
        self, rows: Any, generate: bool, before: int, total: int, progress: EvaluationProgress
    ) -> tuple[torch.Tensor, list[Example]]:
        """The sums of the loss over `rows`, and the texts generated from them; `before` of `total` are done already."""
        sharing = self.trainer.split.sharing
        split = BatchSplit(self.trainer.args.per_device_eval_batch_size, self.rank, self.world_size, sharing=sharing)
        sampler = GlobalBatchSampler(len(rows), split, shuffle=False)
        loader = BatchLoader(WithFiller(rows), batch_sampler=sampler, collate_fn=self.trainer.data_collator)
        sums: Any = 0
        generator = TextGenerator(self.trainer, rows) if generate else None
        for step, (indices, batch) in enumerate(zip(sampler, loader, strict=True)):
            inputs = self.trainer._prepare_inputs(batch)
            with self.trainer.compute_loss_context_manager():
                sums = sums + self.loss.sums(self.trainer.model_wrapped, inputs)
            if generator:
                generator.take(indices, inputs)
            progress(before + min((step + 1) * split.round, len(rows)), total)
        if self.world_size > 1:
            dist.all_reduce(sums)
        return sums, generator.examples() if generator else []

    def _scores(self, examples: list[Example], generate: bool) -> dict[str, float]:
        """Scored on rank 0 and sent to all, so that every rank takes the same decision about the best checkpoint."""
        return rank0_first(lambda: self._scored(examples)) if generate else {}

    def _scored(self, examples: list[Example]) -> dict[str, float]:
        plugin, heart = self.trainer.plugin, self.trainer.context.heart
        own = {}
        if plugin and plugin.has("metrics") and examples:
            phase = heart.phase
            heart.enter("running")  # code without beats, that may ask another model
            own = plugin.metrics(examples)
            heart.enter(phase)
        beat = self._beat_or_leave
        return text_scores([e.prediction for e in examples], [e.reference for e in examples], beat=beat) | own

    def _beat_or_leave(self) -> None:
        """On rank 0, which tells the others how its work ended."""
        self.trainer.context.heart.beat()
        if self.trainer.may_leave_evaluation and self.trainer.context.stopping.is_requested:
            raise EvaluationLeftError("left while it scored texts")
