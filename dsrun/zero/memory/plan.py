"""The plan: every strategy evaluated, one chosen (also for `dsrun train --zero auto`), and, where nothing fits, what
would."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dsrun.datafiles import SubjectNames, evaluate, toml_beside
from dsrun.errors import UsageError
from dsrun.system.terminal.display import counted
from dsrun.zero.generate.presets import GIB
from dsrun.zero.memory import strategy
from dsrun.zero.memory.calibration import remembered
from dsrun.zero.memory.model.architecture import ModelShapes
from dsrun.zero.memory.peak import ZeroStrategy
from dsrun.zero.memory.plan_request import USUAL_LENGTH, GpuCluster, PlanRequest, PlanSwitch, is_place
from dsrun.zero.memory.rank.activations import AttentionKernel
from dsrun.zero.memory.strategy import NEARLY, PlanCandidate, best_of

_TABLE = toml_beside(__file__)


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """`rows` in the order of stages; `choice` is one of them, None when nothing fits; `why` says why it was chosen.

    `remedies` are what would fit, computed, when nothing does."""

    request: PlanRequest
    rows: tuple[PlanCandidate, ...]
    choice: PlanCandidate | None
    why: str
    remedies: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ChosenPlan(ZeroStrategy):
    """What `dsrun train --zero auto` needs to know."""

    micro_batch: int


def plan(request: PlanRequest) -> MemoryPlan:
    """Evaluate every strategy and choose the fastest that fits, or else the fastest that is tight."""
    rows = strategy.candidates(request)
    choice = best_of(_able(list(rows)))
    why = _why(choice, rows, request) if choice else ""
    return MemoryPlan(
        request=request, rows=rows, choice=choice, why=why, remedies=() if choice else tuple(remedies(request))
    )


def choose(request: PlanRequest, micro_batch: int | None = None, offload: str | None = None) -> ChosenPlan:
    """The choice alone, of strategies with `micro_batch` and `offload` where given; NVMe is not chosen unasked.

    Raises UsageError when nothing fits, with what would."""
    made = plan(request)
    best = best_of(_able([row for row in made.rows if not _against(row, micro_batch, offload)]))
    if best is None:
        size = [] if micro_batch is None else [f"micro batch {micro_batch}"]
        fixed = " and ".join(size + ([] if offload is None else [f"--offload {offload}"]))
        what = f"nothing fits {described(request)}" + (f" with {fixed}" if fixed else "")
        raise UsageError(what, fix=_way_out(made, micro_batch, offload))
    return ChosenPlan(**vars(best.strategy), micro_batch=best.micro_batch)


def _able(rows: list[PlanCandidate]) -> list[PlanCandidate]:
    """Those that fit, or else those that are tight."""
    return [row for row in rows if row.verdict == "fits"] or [row for row in rows if row.verdict == "tight"]


def _against(row: PlanCandidate, micro_batch: int | None, offload: str | None) -> list[str]:
    """Which flags would have to change for `row` to be chosen, as text for the user."""
    changes = []
    if offload is not None and not is_place(row.strategy.stage, row.strategy.offload, offload):
        changes.append(f"without --offload {offload}")
    if offload is None and row.strategy.offload == "nvme":
        changes.append("with --offload nvme")
    if micro_batch is not None and row.micro_batch != micro_batch:
        changes.append(f"without --micro-batch-size {micro_batch}")
    return changes


def _way_out(made: MemoryPlan, micro_batch: int | None, offload: str | None) -> str:
    """The smallest change of what the user has fixed with which something fits, or else the first remedy."""
    able = _able(list(made.rows))
    fewest = min((len(_against(row, micro_batch, offload)) for row in able), default=0)
    best = best_of([row for row in able if len(_against(row, micro_batch, offload)) == fewest])
    if best is None:
        return next(iter(made.remedies), "use more or larger GPUs")
    changes = " and ".join(_against(best, micro_batch, offload))
    return f"{changes} this fits: {best.strategy}, micro batch {best.micro_batch}"


def described(request: PlanRequest) -> str:
    """`8 × a100-80 (80 GiB)`."""
    cluster = request.cluster
    return f"{cluster.world} × {cluster.name} ({cluster.memory:g} GiB)"


def _why(choice: PlanCandidate, rows: tuple[PlanCandidate, ...], request: PlanRequest) -> str:
    others = [row for row in rows if row.verdict == choice.verdict and row is not choice]
    rival = max(others, key=lambda row: row.relative, default=None)
    share = choice.gpu.total / GIB / request.cluster.memory
    fits = f"{choice.strategy}, micro batch {choice.micro_batch}, fills {share:.0%} of each GPU"
    faster = choice.relative / rival.relative if rival else None
    names = {
        "fits": fits,
        "choice": choice,
        "rival": rival,
        "faster": faster,
        "preset": request.preset,
        "nearly": NEARLY,
    }
    row = next(row for row in _TABLE["why"] if evaluate(row.get("when", "True"), names))
    return str(row["text"].format_map(names))


def decide(
    config: Mapping[str, Any],
    model: ModelShapes,
    cluster: GpuCluster,
    *,
    precision: str,
    length: int | None = None,
    source_length: int | None = None,
    global_batch: int | None = None,
    micro_batch: int | None = None,
    lora: int | None = None,
    checkpointing: bool | None = None,
    offload: str | None = None,
    attention: AttentionKernel = "sdpa",
    beside: ModelShapes | None = None,
    rows: int = 1,
) -> ChosenPlan:
    """Stage, offload, micro batch and recomputation for a run on `cluster`, by the rules of `dsrun plan`.

    `config` is the model's config.json, by which corrections of `dsrun plan --calibrate` are found again.

    What is not None is kept as it is: a given `micro_batch` is one the choice has to take. Lengths are tokens per
    sample, `micro_batch` samples per GPU, `global_batch` samples over all GPUs, `rows` those of a sample. Raises
    UsageError when nothing fits, with what would."""
    switch: PlanSwitch = "auto" if checkpointing is None else "on" if checkpointing else "off"
    usual = min(USUAL_LENGTH, model.positions or USUAL_LENGTH)
    share = None if micro_batch is None else micro_batch * cluster.world
    if micro_batch is not None and global_batch is not None and global_batch % (micro_batch * cluster.world):
        raise UsageError(
            f"global batch {global_batch} does not divide by {micro_batch} × {counted(cluster.world, 'GPU')}"
        )
    request = PlanRequest(
        model=model,
        cluster=cluster,
        length=length or usual,
        source_length=source_length or usual,
        # One micro batch of the given size per step: the largest that fits is then that or one of its divisors.
        global_batch=share or global_batch,
        lora=lora,
        precision="bf16" if precision == "bf16" else "fp16" if precision == "fp16" else "fp32",
        checkpointing=switch,
        attention=attention,
        beside=beside,
        rows=rows,
    )
    return choose(replace(request, factor=remembered(config, request)), micro_batch=micro_batch, offload=offload)


def settings_of(row: PlanCandidate) -> dict[str, object]:
    """As `settings`, of a row."""
    return settings(ChosenPlan(**vars(row.strategy), micro_batch=row.micro_batch))


def settings(chosen: ChosenPlan) -> dict[str, object]:
    """The choice as values of `dsrun train`'s flags."""
    names = SubjectNames(chosen, {})
    values = {flag: evaluate(value, names) for flag, value in _TABLE["settings"].items()}
    return {flag: value for flag, value in values.items() if value is not None}


def message(chosen: ChosenPlan) -> str:
    """What was chosen, in one line for the user."""
    held = "optimizer states" if chosen.offload == "optimizer" else "states"
    place = "" if chosen.offload == "none" else f" with {held} on {'NVMe' if chosen.offload == 'nvme' else 'the host'}"
    again = ", recomputing activations" if chosen.checkpointing else ""
    master = ", bf16 master weights (less exact, but nothing else fits)" if chosen.bf16_master else ""
    size = f"micro batch {chosen.micro_batch}"
    return f"--zero auto: ZeRO-{chosen.stage}{place}, {size}{again}{master} (`dsrun plan` says why)"


MOST_MORE = 4096
"""How many times the nodes are multiplied in search of a cluster that is large enough."""
LARGER = 64
"""How many times the memory of a GPU is multiplied in search of one that is large enough."""
ADVISED_RANK = 16
UNBOUNDED = 1e12
"""GiB that no host has."""


PlanAlternative = tuple[str, PlanCandidate | None] | None
"""What would have to be different, and the strategy that then fits."""


def remedies(request: PlanRequest) -> list[str]:
    """What would fit, each found by planning again."""
    smaller, other, recomputing, lora = (partial(_changed, name) for name in _TABLE["changed"])
    ways = (smaller, other, recomputing, _more_host, _more_gpus, _shorter, lora, _larger_gpu)
    found = [way(request) for way in ways]
    return [f"{each[0]}: {each[1].strategy}, micro batch {each[1].micro_batch}" for each in found if each and each[1]]


def _fitting(request: PlanRequest) -> list[PlanCandidate]:
    rows = [strategy.evaluate(request, each) for each in strategy.strategies(replace(request, checkpointing="auto"))]
    return [row for row in rows if row.verdict == "fits"]


def _best_fitting(request: PlanRequest) -> PlanCandidate | None:
    fitting = _fitting(request)
    return best_of(list(strategy.compared(fitting))) if fitting else None


def _changed(name: str, request: PlanRequest) -> PlanAlternative:
    """What becomes of a request that a row of plan.toml changes."""
    row, names = _TABLE["changed"][name], SubjectNames(request, _TABLE["terms"], advised_rank=ADVISED_RANK)
    if not evaluate(row["when"], names):
        return None
    changes = {key: evaluate(value, names) for key, value in row["changes"].items()}
    return row["text"].format_map(names), _best_fitting(replace(request, **changes))


def _more_host(request: PlanRequest) -> PlanAlternative:
    """The host memory that the strategy which needs least of it would take."""
    fitting = _fitting(replace(request, host_memory=UNBOUNDED))
    if not fitting or _fitting(request):
        return None
    least = min(fitting, key=lambda row: max(row.host, row.host_loading))
    return f"{-(-max(least.host, least.host_loading) // GIB)} GiB of host memory per node", least


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


def _more_gpus(request: PlanRequest) -> PlanAlternative:
    cluster = request.cluster

    def row(nodes: int) -> PlanCandidate | None:
        return _best_fitting(replace(request, global_batch=None, cluster=cluster.with_nodes(nodes)))

    nodes = _smallest(cluster.nodes, cluster.nodes * MOST_MORE, lambda each: row(each) is not None)
    if nodes is None:
        return None
    return f"{nodes * cluster.per_node} GPUs ({nodes} node{'' if nodes == 1 else 's'})", row(nodes)


def _shorter(request: PlanRequest) -> PlanAlternative:
    """Both lengths of a seq2seq model are cut alike, to multiples of 64 tokens."""
    longest = max(request.length, request.source_length if request.model.seq2seq else 0)

    def row(steps: int) -> PlanCandidate | None:
        most = max(longest - 64 * steps, 1)
        shorter = replace(request, length=min(request.length, most), source_length=min(request.source_length, most))
        return _best_fitting(shorter)

    steps = _smallest(0, (longest - 1) // 64, lambda each: row(each) is not None)
    return (f"samples of at most {max(longest - 64 * steps, 1)} tokens", row(steps)) if steps else None


def _larger_gpu(request: PlanRequest) -> PlanAlternative:
    """The least memory each GPU would need, in whole GiB."""
    cluster = request.cluster

    def row(gib: int) -> PlanCandidate | None:
        larger = replace(cluster, memory=float(gib), model=cluster.model.with_memory(gib))
        return _best_fitting(replace(request, global_batch=None, cluster=larger))

    size = _smallest(int(cluster.memory), LARGER * int(cluster.memory), lambda gib: row(gib) is not None)
    return (f"GPUs of {size} GiB", row(size)) if size else None
