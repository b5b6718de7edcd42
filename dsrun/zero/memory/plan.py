"""The plan: every strategy judged, one chosen, and, where nothing fits, what would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dsrun.errors import UsageError
from dsrun.zero.memory.question import Question
from dsrun.zero.memory.strategy import GIB, Row, judge, strategies

NEARLY = 0.95
"""Strategies this close in speed count as equal; then the simplest wins."""
MOST_MORE = 4096
"""How many times the nodes are multiplied in search of a cluster that is large enough."""
LARGER = 64
"""How many times the memory of a GPU is multiplied in search of one that is large enough."""
ADVISED_RANK = 16
UNBOUNDED = 1e12
"""GiB that no host has."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """`rows` in the order of stages; `choice` is one of them, None when nothing fits; `why` says why it was chosen.

    `remedies` are what would fit, computed, when nothing does.
    """

    question: Question
    rows: tuple[Row, ...]
    choice: Row | None
    why: str
    remedies: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What `dsrun train --zero auto` needs to know."""

    stage: int
    offload: str
    micro_batch: int
    checkpointing: bool


def plan(question: Question) -> Plan:
    """Judge every strategy and choose the fastest that fits, or else the fastest that is tight."""
    judged = [judge(question, each) for each in strategies(question)]
    rows = _compared(judged)
    choice = _best([row for row in rows if row.verdict == "fits"])
    if choice is None:
        choice = _best([row for row in rows if row.verdict == "tight"])
    why = _why(choice, rows, question) if choice else ""
    return Plan(
        question=question,
        rows=rows,
        choice=choice,
        why=why,
        remedies=() if choice else tuple(remedies(question)),
    )


def choose(question: Question, micro_batch: int | None = None, offload: str | None = None) -> Chosen:
    """The choice alone, of strategies with `micro_batch` and `offload` where given; NVMe is not chosen unasked.

    Raises UsageError with the first remedy when nothing fits.
    """
    made = plan(question)
    able = [
        row
        for row in made.rows
        if (row.strategy.offload == offload if offload else row.strategy.offload != "nvme")
        and (micro_batch is None or row.micro_batch == micro_batch)
    ]
    fitting = [row for row in able if row.verdict == "fits"] or [
        row for row in able if row.verdict == "tight"
    ]
    best = _best(fitting)
    if best is None:
        found = made.remedies or remedies(question)
        fix = found[0] if found else "use more or larger GPUs"
        size = "" if micro_batch is None else f" with micro batch {micro_batch}"
        place = "" if offload is None else f" with --offload {offload}"
        raise UsageError(f"nothing fits {described(question)}{size}{place}", fix=fix)
    strategy = best.strategy
    return Chosen(
        stage=strategy.stage,
        offload=strategy.offload,
        micro_batch=best.micro_batch,
        checkpointing=strategy.checkpointing,
    )


def described(question: Question) -> str:
    """`8 × a100-80 (80 GiB)`."""
    cluster = question.cluster
    return f"{cluster.world} × {cluster.name} ({cluster.memory:g} GiB)"


def _compared(rows: list[Row]) -> tuple[Row, ...]:
    """The rows with their speed over that of the fastest that fits, of all when none does."""
    possible = [row.samples_per_second for row in rows if row.verdict != "does not fit"]
    fastest = max(possible or [row.samples_per_second for row in rows])
    return tuple(replace(row, relative=row.samples_per_second / fastest) for row in rows)


def _best(rows: list[Row]) -> Row | None:
    """The fastest; of those nearly as fast, the one that comes first: low stages and no offload are simpler."""
    if not rows:
        return None
    fastest = max(row.relative for row in rows)
    return next(row for row in rows if row.relative >= NEARLY * fastest)


def _why(choice: Row, rows: tuple[Row, ...], question: Question) -> str:
    able = [row for row in rows if row.verdict == choice.verdict]
    share = choice.gpu.total / GIB / question.cluster.memory
    words = f"{choice.strategy} with micro batch {choice.micro_batch} takes {share:.0%} of each GPU"
    if choice.verdict == "tight":
        return f"{words}: more than the preset {question.preset} allows, but nothing stays within that"
    if len(able) == 1:
        return f"{words}; nothing else fits"
    rival = max((row for row in able if row is not choice), key=lambda row: row.relative)
    if rival.relative > choice.relative:
        return f"{words}, and is as fast as {rival.strategy} within the estimate's error, but simpler"
    faster = choice.relative / rival.relative
    if faster < 1 / NEARLY:
        return f"{words}, and nothing that fits is faster by more than the estimate's error"
    return f"{words} and is estimated {faster:.2f} × as fast as the next, {rival.strategy} ({rival.reason})"


# when nothing fits


def remedies(question: Question) -> list[str]:
    """What would fit, each found by planning again."""
    ways = (_recomputing, _more_host, _more_gpus, _shorter, _with_lora, _larger_gpu)
    found = [way(question) for way in ways]
    return [each for each in found if each]


def _recomputing(question: Question) -> str | None:
    if question.checkpointing != "off":
        return None
    found = _fitting(question)
    if found is None:
        return None
    return f"--gradient-checkpointing auto: {found.strategy}, micro batch {found.micro_batch}"


def _more_host(question: Question) -> str | None:
    """The host memory that the strategy which needs least of it would take."""
    unbounded = replace(question, host_memory=UNBOUNDED)
    rows = [judge(unbounded, each) for each in strategies(replace(question, checkpointing="auto"))]
    fitting = [row for row in rows if row.verdict == "fits"]
    if not fitting or _fitting(question):
        return None
    least = min(fitting, key=lambda row: max(row.host, row.host_loading))
    need = -(-max(least.host, least.host_loading) // GIB)
    return f"{need} GiB of host memory per node: {least.strategy}, micro batch {least.micro_batch}"


def _fitting(question: Question) -> Row | None:
    rows = [judge(question, each) for each in strategies(replace(question, checkpointing="auto"))]
    fitting = [row for row in rows if row.verdict == "fits"]
    return _best(list(_compared(fitting))) if fitting else None


def _smallest(least: int, most: int, fits: Callable[[int], bool]) -> int | None:
    """The smallest number for which `fits`, by bisection; None when the largest does not."""
    if not fits(most):
        return None
    while least < most:
        middle = (least + most) // 2
        if fits(middle):
            most = middle
        else:
            least = middle + 1
    return least


def _more_gpus(question: Question) -> str | None:
    cluster = question.cluster
    plain = replace(question, global_batch=None)

    def row(nodes: int) -> Row | None:
        return _fitting(replace(plain, cluster=cluster.with_nodes(nodes)))

    nodes = _smallest(cluster.nodes, cluster.nodes * MOST_MORE, lambda each: row(each) is not None)
    found = row(nodes) if nodes else None
    if nodes is None or found is None:
        return None
    plural = "" if nodes == 1 else "s"
    return f"{nodes * cluster.per_node} GPUs ({nodes} node{plural}): {found.strategy}, micro batch {found.micro_batch}"


def _shorter(question: Question) -> str | None:
    """Both lengths of a seq2seq model are cut alike, to multiples of 64 tokens."""
    longest = max(question.length, question.source_length if question.model.seq2seq else 0)

    def cut(steps: int) -> Question:
        tokens = max(longest - 64 * steps, 1)
        return replace(
            question, length=min(question.length, tokens), source_length=min(question.source_length, tokens)
        )

    steps = _smallest(0, (longest - 1) // 64, lambda each: _fitting(cut(each)) is not None)
    found = _fitting(cut(steps)) if steps else None
    if not steps or found is None:
        return None
    tokens = max(longest - 64 * steps, 1)
    return f"samples of at most {tokens} tokens: {found.strategy}, micro batch {found.micro_batch}"


def _with_lora(question: Question) -> str | None:
    if question.lora is not None:
        return None
    found = _fitting(replace(question, lora=ADVISED_RANK))
    if found is None:
        return None
    return f"LoRA (--lora {ADVISED_RANK}): {found.strategy}, micro batch {found.micro_batch}"


def _larger_gpu(question: Question) -> str | None:
    """The least memory each GPU would need, in whole GiB."""
    cluster = question.cluster
    plain = replace(question, global_batch=None)

    def row(gib: int) -> Row | None:
        model = replace(cluster.model, memory_gib=gib)
        return _fitting(replace(plain, cluster=replace(cluster, memory=float(gib), model=model)))

    least = int(cluster.memory)
    size = _smallest(least, LARGER * least, lambda gib: row(gib) is not None)
    found = row(size) if size else None
    if size is None or found is None:
        return None
    return f"GPUs of {size} GiB: {found.strategy}, micro batch {found.micro_batch}"
