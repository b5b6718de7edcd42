"""Scores of generated text against references, and of loss."""

from __future__ import annotations

import math
from collections.abc import Sequence

ROUGE_TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def text_scores(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """BLEU, chrF, ROUGE F-measures and exact match, all from 0 to 100.

    BLEU and chrF are sacreBLEU's with its default signature, ROUGE is rouge-score's with stemming; exact match
    compares with surrounding white space removed. Empty input gives no scores.
    """
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
    scores = [
        scorer.score(target, hypothesis) for target, hypothesis in zip(targets, hypotheses, strict=True)
    ]
    return {kind: 100 * sum(score[kind].fmeasure for score in scores) / len(scores) for kind in ROUGE_TYPES}


def perplexity(loss: float) -> float:
    """exp of the mean cross entropy in nats; infinity where that does not fit a float."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
