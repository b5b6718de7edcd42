"""What a plan answers where GPUs or the model are left open: the fewest GPUs that train a model, the largest model that
GPUs train, and the longest rows."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from dsrun.datafiles import toml_beside
from dsrun.zero.generate.presets import GIB
from dsrun.zero.memory.model.architecture import ModelShapes
from dsrun.zero.memory.model.count import describe
from dsrun.zero.memory.peak import gpu
from dsrun.zero.memory.plan import plan, settings_of
from dsrun.zero.memory.plan_request import GpuCluster, PlanRequest, cluster
from dsrun.zero.memory.strategy import PlanCandidate, host_bytes, strategies

_TABLE = toml_beside(__file__)
_KEYS = (
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "vocab_size", "tie_word_embeddings",
)  # fmt: skip
PER_NODE = (1, 2, 4, 8)
MOST_NODES = 64
LONGEST = 1 << 22
"""Tokens, more than any model takes."""
STEP = 1024


@dataclass(frozen=True, kw_only=True)
class FoundPlan:
    """A plan that fits: how the model is trained, what was asked for that, and the choice. `model` is the name of one
    that was looked for."""

    way: str
    request: PlanRequest
    choice: PlanCandidate
    model: str = ""

    @property
    def size(self) -> float:
        """GiB of all GPUs, by which machines are compared where nobody gives a price."""
        return self.request.cluster.world * self.request.cluster.memory

    @property
    def flags(self) -> dict[str, object]:
        """Those of `dsrun train` for it."""
        own = {"lora": self.request.lora, "quantization": self.request.bits and f"{self.request.bits}bit"}
        return settings_of(self.choice) | {name: value for name, value in own.items() if value}


def ways(request: PlanRequest) -> dict[str, PlanRequest]:
    """The ways to train that the request leaves open, by their names. With LoRA or a place of the states of its own it
    is one of them, or what it asks for."""
    asked = replace(request, global_batch=None)
    if request.lora:
        return {"QLoRA" if request.bits else "LoRA": asked}
    if request.offload:
        return {"full" if request.offload == "none" else f"full + {request.offload}": asked}
    return {name: replace(asked, **changes) for name, changes in _TABLE["ways"].items()}


def smallest(request: PlanRequest) -> list[FoundPlan]:
    """For each way and each common GPU the fewest that are enough, where any are; the smallest machine of a way first.
    The cluster of the request counts for nothing."""
    found = []
    for way, asked in ways(request).items():
        fewest = (next(filter(fits, (replace(asked, cluster=each) for each in _machines(name))), None)
                  for name in _TABLE["gpus"])  # fmt: skip
        machines = [made for each in fewest if each and (made := _planned(way, each))]
        found += sorted(machines, key=lambda each: (each.size, each.request.cluster.world))
    return found


def largest(request: PlanRequest) -> list[FoundPlan]:
    """For each way the largest model of the table that the cluster of the request trains, where there is one."""
    found = []
    for way, asked in ways(request).items():
        fitting = ((name, replace(asked, model=shapes)) for name, shapes in models().items())
        best = next(((name, each) for name, each in reversed([*fitting]) if fits(each)), None)
        made = _planned(way, best[1]) if best else None
        found += [replace(made, model=best[0])] if best and made else []
    return found


def longest(request: PlanRequest) -> int:
    """The longest rows, in tokens and down to a multiple of STEP, that fit one at a time; 0 where none do. Both lengths
    of an encoder-decoder are that."""
    low, high = 0, min(LONGEST, request.model.positions or LONGEST) // STEP
    while low < high:
        middle = (low + high + 1) // 2
        length = middle * STEP
        if fits(replace(request, length=length, source_length=length, micro_batch=1, global_batch=None)):
            low = middle
        else:
            high = middle - 1
    return low * STEP


def fits(request: PlanRequest) -> bool:
    """Whether the request's micro batch, or one sample at a time, is within what its preset lets a run fill, on GPU and
    host, whatever the strategy."""
    for each in strategies(request):
        peak = gpu(request, each, request.micro_batch or 1)
        if peak.total <= request.budget and max(host_bytes(request, each, peak)) <= request.host * GIB:
            return True
    return False


@cache
def models() -> dict[str, ModelShapes]:
    """Well-known models, the smallest first."""
    return {name: describe(dict(zip(_KEYS, row, strict=True))) for name, row in _TABLE["models"].items()}


def _planned(way: str, request: PlanRequest) -> FoundPlan | None:
    choice = plan(request).choice
    return FoundPlan(way=way, request=request, choice=choice) if choice else None


def _machines(name: str) -> Iterator[GpuCluster]:
    """1, 2, 4 … GPUs of one node, then more nodes."""
    one = cluster(name)
    yield from (one.with_nodes(1, count) for count in PER_NODE)
    nodes = 2
    while nodes <= MOST_NODES:
        yield one.with_nodes(nodes, PER_NODE[-1])
        nodes *= 2
