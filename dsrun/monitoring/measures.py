"""What a metric of an evaluation is called, and how large it can be."""

import math
from collections.abc import Iterable

_NAMES = {"bleu": "BLEU", "chrf": "chrF"} | {f"rouge{each}": f"ROUGE-{each}" for each in ("1", "2", "L", "Lsum")}
# What dsrun's own training logs in percent; others log it as a share, too.
_PERCENT = frozenset({*_NAMES, "exact_match"})
# Words in the names of what is a share of everything, or in percent.
_SHARES = ("accura", "f1", "precision", "recall", "auc", "bleu", "chrf", "rouge", "meteor", "bertscore", "exact_match")


def measure_name(key: str) -> str:
    """The name of a metric for people: eval_exact_match -> Exact match."""
    name = key.removeprefix("eval_")
    return _NAMES.get(name) or name[:1].upper() + name[1:].replace("_", " ")


def largest_possible(key: str, values: Iterable[float], *, own: bool) -> float | None:
    """What a measure that cannot be below 0 can be at most, 1 or 100; None where it has no such end, or a value beyond.

    `own`: dsrun's training has logged it, and not a program of the user's, whose values tell which of both it is.
    """
    name, known = key.removeprefix("eval_"), list(values)
    largest = max(known, default=math.inf) / (1 + 1e-6)  # some sum up to a little more than everything
    if not any(word in name.lower() for word in _SHARES) or largest > 100 or min(known) < 0:
        return None
    return 100.0 if largest > 1 or (own and name in _PERCENT) else 1.0
