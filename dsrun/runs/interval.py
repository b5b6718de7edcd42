"""How often to save: from the time a save takes and the time between failures (Young, Daly)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from dsrun.runs.goodput import goodput

HOUR = 3600.0
# 419 unexpected interruptions of a run on 16,384 GPUs in 54 days: The Llama 3 Herd of Models (Meta, 2024), section
# 3.3.4. One GPU fails once in 50,700 hours, everything around it included.
FAILURES_PER_GPU_SECOND = 419 / (16_384 * 54 * 24 * HOUR)
# The published rate counts like this much watching of the run itself: enough to begin with, and soon outweighed.
PRIOR_WATCH = HOUR


def save_interval(save_s: float, mtbf_s: float) -> float:
    """Seconds of training between two saves that lose the least time, with saves of `save_s`, failures every `mtbf_s`.

    Daly's higher-order optimum (J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart
    dumps, FGCS 22, 2006, eq. 37), whose first term is Young's sqrt(2·δ·M) (J. W. Young, A first order approximation to
    the optimum checkpoint interval, CACM 17, 1974); for δ ≥ 2M it is M. Raises ValueError unless save_s ≥ 0 and
    mtbf_s > 0.
    """
    if not (save_s >= 0 and mtbf_s > 0):
        raise ValueError(f"a save takes {save_s} s and failures come every {mtbf_s} s")
    if save_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = save_s / (2 * mtbf_s)
    return math.sqrt(2 * save_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s


def mean_time_between_failures(events: Iterable[Mapping[str, Any]], ranks: int) -> float:
    """Seconds between two failures of a run on `ranks` GPUs (or CPU ranks), from its own ledger and the published rate.

    The rate's prior is a Gamma distribution whose mean is the published rate and that weighs like an hour of watching;
    the run's own failures in its own time of work move it, n failures in T seconds to (n + prior·1 h) / (T + 1 h). A
    run that has not failed is not taken for better than the published ones.
    """
    known = list(events)
    prior = max(1, ranks) * FAILURES_PER_GPU_SECOND
    ledger = goodput(known)
    rate = (failures(known) + prior * PRIOR_WATCH) / (ledger.total - ledger.idle + PRIOR_WATCH)
    return 1 / max(rate, prior)


def failures(events: Iterable[Mapping[str, Any]]) -> int:
    """How many attempts ended by chance: a restart without a remedy, or a new start after an end without a word."""
    count = 0
    last = "end"
    for event in events:
        kind = str(event.get("kind"))
        if kind == "restart":
            count += last != "remedy"
        elif kind == "start":
            count += last not in ("end", "signal", "failure", "restart", "start")
        if kind in (
            "start",
            "training",
            "progress",
            "checkpoint_end",
            "end",
            "signal",
            "failure",
            "remedy",
            "restart",
        ):
            last = kind
    return count
