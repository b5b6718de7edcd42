"""What a run does to lose nothing: how often and how it saves, and what happens when something goes wrong."""

from __future__ import annotations

from dataclasses import dataclass

from dsrun.options import option


@dataclass(frozen=True, kw_only=True)
class ResilienceOptions:
    """The half of TrainSpec that is about checkpoints, restarts and remedies."""

    save_every: str | None = option(
        None,
        "optimizer steps between checkpoints; auto: from the time a save takes and the rate of failures",
        group="survive",
        metavar="N|auto",
    )
    auto_micro_batch: bool = option(
        False,
        "begin with the largest micro batch and halve it where memory runs out; also: --micro-batch-size auto",
        group="survive",
    )
    keep: int = option(
        3,
        "checkpoints kept, beside the best one; the last that verifies is never deleted",
        group="survive",
        aliases=("save_total_limit",),
        metavar="N",
    )
    async_save: bool = option(
        False, "write checkpoints while training goes on, where DeepSpeed can", group="survive"
    )
    trust: bool = option(
        False,
        "load checkpoints that another user owns or that everybody may write; they can run any code",
        group="survive",
    )
    max_restarts: int = option(
        3, "times the workers are started again after a transient failure", group="survive", metavar="N"
    )
    hang_timeout: float | None = option(
        None,
        "seconds without a step after which a rank counts as hung; 0: never",
        group="survive",
        metavar="SECONDS",
    )
    remedy: bool = option(
        True, "when memory runs out, halve the micro batch, recompute, offload, and go on", group="survive"
    )
    on_nan: str = option(
        "stop",
        "what a NaN or infinite loss or gradient does: end the run, skip the step, or go back to a checkpoint",
        group="survive",
        choices=("stop", "skip", "rollback"),
    )
    warm: bool = option(
        True, "keep a process with the heavy imports done, so that restarts are fast", group="survive"
    )
    sample_ledger: bool = option(
        False, "write the ids of each step's samples to samples-rank-N.jsonl", group="survive"
    )
