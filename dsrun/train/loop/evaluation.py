"""The loss, and evaluation: exact over target tokens, scores of generated text, each sample once on any ranks."""

from __future__ import annotations

import inspect
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional as F
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from dsrun.system.files import replacing
from dsrun.train.distributed import all_gather_object, rank0_first
from dsrun.train.loop.batches import FILLER, IGNORED, BatchLoader, GlobalBatchSampler, Split, WithFiller

ROUGE_TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def loss_is_native(model: Any) -> bool:
    """Whether the model's forward hands its keyword arguments to transformers' loss function. Those models stay in
    charge of their loss, which keeps fused kernels (Liger) and router losses of mixtures of experts working."""
    if model.config.is_encoder_decoder:
        return False
    if "liger_kernel" in (getattr(model.forward, "__module__", None) or ""):
        return True
    source = inspect.getsource(type(model).forward)
    return "self.loss_function(" in source and "**kwargs" in source


def shifts_labels(model: Any) -> bool:
    """Whether label i is the target of position i - 1 (causal LM) and not of position i (encoder-decoder)."""
    return not model.config.is_encoder_decoder


def target_tokens(labels: torch.Tensor, *, shifted: bool) -> torch.Tensor:
    """The number of labels, [batch, length], that are predicted; with `shifted` the first of a row never is."""
    return (labels[..., 1:] if shifted else labels).ne(IGNORED).sum()


def summed_cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, *, shifted: bool, smoothing: float = 0.0
) -> torch.Tensor:
    """Cross entropy in nats, summed over target tokens, in fp32. `logits` are [batch, length, vocabulary], `labels`
    [batch, length]; a batch without any target gives 0 with zero gradients. `smoothing` as in Szegedy et al. 2016."""
    if shifted:
        logits, labels = logits[..., :-1, :], labels[..., 1:]
    return F.cross_entropy(
        logits.reshape(-1, logits.size(-1)).float(),
        labels.reshape(-1).to(logits.device),
        ignore_index=IGNORED,
        reduction="sum",
        label_smoothing=smoothing,
    )


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

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"noted": self._noted}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        stored = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        noted = stored["attributes"]["noted"]
        if not noted:
            return
        trainer, losses = self.trainer, noted["losses"]
        # Every rank's sum is its share times the number of ranks; of another number only their mean can be kept.
        same = len(losses) == trainer.split.world_size
        mine = losses[trainer.split.rank] if same else sum(losses) / len(losses)
        trainer._tr_loss.fill_(mine)
        trainer._globalstep_last_logged = noted["logged"]
        trainer.count_tokens(noted["tokens"])


def text_scores(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """BLEU, chrF (sacreBLEU's default signature), ROUGE F-measures (rouge-score's with stemming) and exact match, all
    from 0 to 100; none for empty input."""
    if not references:
        return {}
    import sacrebleu

    hypotheses = [text.strip() for text in predictions]
    targets = [text.strip() for text in references]
    exact = sum(h == t for h, t in zip(hypotheses, targets, strict=True)) / len(targets)
    return {
        "bleu": sacrebleu.corpus_bleu(hypotheses, [targets]).score,
        "chrf": sacrebleu.corpus_chrf(hypotheses, [targets]).score,
        **_rouge(hypotheses, targets),
        "exact_match": 100 * exact,
    }


def _rouge(hypotheses: list[str], targets: list[str]) -> dict[str, float]:
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(ROUGE_TYPES), use_stemmer=True)
    # rougeLsum wants one sentence a line; text without line breaks is one sentence.
    scores = [scorer.score(target, hypothesis) for target, hypothesis in zip(targets, hypotheses, strict=True)]
    return {kind: 100 * sum(score[kind].fmeasure for score in scores) / len(scores) for kind in ROUGE_TYPES}


def perplexity(loss: float) -> float:
    """exp of the mean cross entropy in nats; infinity where that does not fit a float."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Example:
    source: str
    prediction: str
    reference: str


@dataclass(frozen=True)
class Evaluation:
    """Metrics without prefix, the same on all ranks; examples in the data's order, on rank 0 only."""

    metrics: dict[str, float]
    examples: list[Example]


class Evaluator:
    """Runs a model over a dataset in lock step on all ranks, as ZeRO-3's gathering of parameters needs."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.tokenizer = trainer.processing_class
        self.rank, self.world_size = trainer.split.rank, trainer.split.world_size

    def run(self, rows: Any, *, generate: bool, progress: Progress) -> Evaluation:
        began = time.monotonic()
        split = Split(self.trainer.args.per_device_eval_batch_size, self.rank, self.world_size)
        sampler = GlobalBatchSampler(len(rows), split, shuffle=False)
        loader = BatchLoader(WithFiller(rows), batch_sampler=sampler, collate_fn=self.trainer.data_collator)
        sums = torch.zeros(2, dtype=torch.float64, device=self.trainer.args.device)
        texts: list[tuple[int, str]] = []
        model = self.trainer.model
        model.eval()
        for step, (indices, batch) in enumerate(zip(sampler, loader, strict=True)):
            inputs = self.trainer._prepare_inputs(batch)
            sums += self._loss(inputs)
            if generate:
                texts += [pair for pair in zip(indices, self._generate(inputs), strict=True) if pair[0] != FILLER]
            progress((step + 1) * split.round, len(rows))
        if self.world_size > 1:
            dist.all_reduce(sums)
        loss = (sums[0] / sums[1].clamp(min=1)).item()
        metrics = {"loss": loss, "perplexity": perplexity(loss)}
        examples = self._gather(rows, texts) if generate else []
        if generate:
            # Scored on rank 0 and sent to all, so that every rank takes the same decision about the best checkpoint.
            predictions, references = [e.prediction for e in examples], [e.reference for e in examples]
            metrics |= rank0_first(lambda: text_scores(predictions, references))
        seconds = time.monotonic() - began
        return Evaluation({**metrics, "seconds": seconds, "samples_per_second": len(rows) / seconds}, examples)

    @torch.no_grad()
    def _loss(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """This batch's summed cross entropy and its number of target tokens, as one tensor [2]."""
        shifted = shifts_labels(self.trainer.model)
        labels = inputs["labels"]
        with self.trainer.compute_loss_context_manager():
            logits = self.trainer.model_wrapped(**{k: v for k, v in inputs.items() if k != "labels"}).logits
        total = summed_cross_entropy(logits, labels, shifted=shifted)
        return torch.stack([total, target_tokens(labels, shifted=shifted).to(total)]).double()

    @torch.no_grad()
    def _generate(self, inputs: dict[str, torch.Tensor]) -> list[str]:
        arguments = self.trainer.args
        options = {
            "max_length": arguments.generation_max_length,
            "num_beams": arguments.generation_num_beams,
            # Ranks stop at different lengths; under ZeRO-3 each must go on taking part in the gathering.
            "synced_gpus": self.trainer.is_zero3 and self.world_size > 1,
        }
        with self.trainer.compute_loss_context_manager():
            tokens = self.trainer.model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                use_cache=True,
                **{name: value for name, value in options.items() if value is not None},
            )
        return self.tokenizer.batch_decode(tokens, skip_special_tokens=True)

    def _gather(self, rows: Any, texts: list[tuple[int, str]]) -> list[Example]:
        shares: list[Any] | None = [texts]
        if self.world_size > 1:
            shares = [None] * self.world_size if self.rank == 0 else None
            dist.gather_object(texts, shares, dst=0)
        if shares is None:
            return []
        ordered = sorted(pair for share in shares for pair in share)
        return [self._example(rows[i], text) for i, text in ordered]

    def _example(self, row: dict[str, Any], prediction: str) -> Example:
        source = row.get("source_text") or self._decode(row["input_ids"])
        return Example(source, prediction, row.get("target_text") or self._decode(row["labels"]))

    def _decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode([i for i in ids if i != IGNORED], skip_special_tokens=True)


def write_predictions(examples: list[Example], path: Path) -> None:
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as out:
        for e in examples:
            out.write(json.dumps(asdict(e), ensure_ascii=False) + "\n")
