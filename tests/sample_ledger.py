"""Whether every sample was seen once, from the ledgers of samples that `dsrun.runs.records` writes.

A step's line is written when the step is done, so work that was lost and done again shows as steps with more than one
line; of those only the last attempt's counts. An attempt that begins after step 40 undoes all later steps of those
before it.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsrun.runs.records import iter_records

_NAME = re.compile(r"samples-rank-(\d+)\.jsonl")
_SHOWN = 5


def ledgers(run: Path) -> dict[int, list[dict[str, Any]]]:
    """All lines of the run's ledgers by rank; empty where no ledger was kept."""
    found = ((path, _NAME.fullmatch(path.name)) for path in sorted(run.glob("samples-rank-*.jsonl")))
    return {int(match[1]): list(iter_records(path)) for path, match in found if match}


@dataclass(frozen=True, kw_only=True)
class Step:
    """An optimizer step that counts: its samples on all ranks, and from how many ranks there is a line."""

    epoch: int
    ids: tuple[int, ...]
    lines: int
    ranks: int
    attempts: tuple[int, ...]


def steps(ledgers: dict[int, list[dict[str, Any]]]) -> dict[int, Step]:
    """The steps that count, in order; of a step that was done more than once the last attempt's."""
    lines = [line for rank in sorted(ledgers) for line in ledgers[rank]]
    starts: dict[int, dict[str, Any]] = {}
    for line in lines:
        if "start" in line:
            starts.setdefault(int(line["attempt"]), line)
    kept: dict[int, list[dict[str, Any]]] = {}
    tried: dict[int, set[int]] = {}
    for attempt in sorted(starts):
        kept = {step: found for step, found in kept.items() if step <= starts[attempt]["start"]}
        for line in lines:
            if line.get("attempt") == attempt and "step" in line:
                kept.setdefault(int(line["step"]), []).append(line)
                tried.setdefault(int(line["step"]), set()).add(attempt)
    return {
        step: Step(
            epoch=int(found[0]["epoch"]),
            ids=tuple(sample for line in found for sample in line["ids"]),
            lines=len(found),
            ranks=int(starts[found[0]["attempt"]]["ranks"]),
            attempts=tuple(sorted(tried[step])),
        )
        for step, found in sorted(kept.items())
    }


def seen(ledgers: dict[int, list[dict[str, Any]]], *, up_to: int | None = None) -> Counter[tuple[int, int]]:
    """How often each (epoch, sample id) was trained on in the steps that count, up to step `up_to`."""
    counted = {step: each for step, each in steps(ledgers).items() if up_to is None or step <= up_to}
    return Counter((each.epoch, sample) for each in counted.values() for sample in each.ids)


def not_once(
    ledgers: dict[int, list[dict[str, Any]]], *, samples: int | None = None, up_to: int | None = None
) -> list[str]:
    """What speaks against "every sample once an epoch", in words; [] when nothing does.

    `samples` is the size of the training set; where it is not known, the largest id tells it. The last epoch need not
    be complete: there no sample may come twice. A step between the first and the last that has no line, or not one
    from each rank, is named too. (With --dataloader-drop-last an epoch leaves samples out, and is found to.)
    """
    counted = {step: each for step, each in steps(ledgers).items() if up_to is None or step <= up_to}
    if not counted:
        return ["there is no sample ledger" if not ledgers else "the sample ledger contains no step"]
    # A ledger that was switched on later knows nothing of the steps before, nor all of the epoch then under way.
    begun = min(line["start"] for lines in ledgers.values() for line in lines if "start" in line)
    whole = range(counted[min(counted)].epoch + bool(begun), max(each.epoch for each in counted.values()))
    words = [f"step {step} is in no ledger" for step in range(begun + 1, max(counted)) if step not in counted]
    for step, each in counted.items():
        if each.lines != each.ranks:
            words.append(f"step {step} has lines from {each.lines} ranks instead of {each.ranks}")
    counts = seen(ledgers, up_to=up_to)
    size = 1 + max(sample for _, sample in counts) if samples is None else samples
    for epoch in sorted({epoch for epoch, _ in counts}):
        often = [sample for (of, sample), times in counts.items() if of == epoch and times > 1]
        missing = [sample for sample in range(size) if (epoch, sample) not in counts] if epoch in whole else []
        foreign = [sample for of, sample in counts if of == epoch and not 0 <= sample < size]
        words += _findings(epoch, {"more than once": often, "never": missing, "though there is none such": foreign})
    return words


def _findings(epoch: int, found: dict[str, list[int]]) -> list[str]:
    return [
        f"epoch {epoch}: {len(ids)} samples were seen {how}: "
        + ", ".join(map(str, sorted(ids)[:_SHOWN]))
        + (" …" if len(ids) > _SHOWN else "")
        for how, ids in found.items()
        if ids
    ]
