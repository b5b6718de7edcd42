"""What would fit where nothing does, each found by planning again."""

from collections.abc import Callable
from dataclasses import replace

from dsrun.zero.generate.presets import GIB
from dsrun.zero.memory.plan_request import PlanRequest
from dsrun.zero.memory.strategy import PlanCandidate, best_of, compared, evaluate, strategies

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
    ways = (_smaller_batch, _other_strategy, _recomputing, _more_host, _more_gpus, _shorter, _with_lora, _larger_gpu)
    found = [way(request) for way in ways]
    return [f"{each[0]}: {each[1].strategy}, micro batch {each[1].micro_batch}" for each in found if each and each[1]]


def _fitting(request: PlanRequest) -> list[PlanCandidate]:
    rows = [evaluate(request, each) for each in strategies(replace(request, checkpointing="auto"))]
    return [row for row in rows if row.verdict == "fits"]


def _best_fitting(request: PlanRequest) -> PlanCandidate | None:
    fitting = _fitting(request)
    return best_of(list(compared(fitting))) if fitting else None


def _smaller_batch(request: PlanRequest) -> PlanAlternative:
    if request.micro_batch is None:
        return None
    return f"without --micro-batch-size {request.micro_batch}", _best_fitting(replace(request, micro_batch=None))


def _other_strategy(request: PlanRequest) -> PlanAlternative:
    fixed = [("--zero", request.stage), ("--offload", request.offload)]
    flags = " ".join(f"{flag} {value}" for flag, value in fixed if value is not None)
    if not flags:
        return None
    return f"without {flags}", _best_fitting(replace(request, stage=None, offload=None))


def _recomputing(request: PlanRequest) -> PlanAlternative:
    return ("--gradient-checkpointing auto", _best_fitting(request)) if request.checkpointing == "off" else None


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


def _with_lora(request: PlanRequest) -> PlanAlternative:
    if request.lora is not None:
        return None
    return f"LoRA (--lora {ADVISED_RANK})", _best_fitting(replace(request, lora=ADVISED_RANK))


def _larger_gpu(request: PlanRequest) -> PlanAlternative:
    """The least memory each GPU would need, in whole GiB."""
    cluster = request.cluster

    def row(gib: int) -> PlanCandidate | None:
        larger = replace(cluster, memory=float(gib), model=cluster.model.with_memory(gib))
        return _best_fitting(replace(request, global_batch=None, cluster=larger))

    size = _smallest(int(cluster.memory), LARGER * int(cluster.memory), lambda gib: row(gib) is not None)
    return (f"GPUs of {size} GiB", row(size)) if size else None
