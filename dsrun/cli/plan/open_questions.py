"""`dsrun plan` where GPUs or the model are left open: tables of what fits."""

from collections.abc import Sequence
from typing import Any

from dsrun.cli.output import print_json, print_line, print_table
from dsrun.errors import EXIT_FINDINGS
from dsrun.system.terminal.display import size_text
from dsrun.zero.generate.presets import GIB
from dsrun.zero.memory.explain import explain
from dsrun.zero.memory.plan import MemoryPlan
from dsrun.zero.memory.plan_request import SHARES, PlanRequest
from dsrun.zero.memory.smallest import MOST_NODES, PER_NODE, FoundPlan, largest, longest, smallest, ways


def print_machines(request: PlanRequest, model: str, form: str) -> int:
    """The smallest machines that train the model of the request; the exit code."""
    found = smallest(request)
    if form == "json":
        print_json({"smallest": [_as_json(each) for each in found]})
    else:
        print_line(f"{model}: the fewest GPUs of each common kind that train it, {_rows(request)}, smallest first:")
        print_line()
        print_table([("train", "GPUs", "nodes", "GiB/GPU", "host GiB", "dsrun train"), *map(_machine, found)])
        if not found:
            print_line(f"none of up to {MOST_NODES} nodes of {PER_NODE[-1]} is enough")
        print_line()
        print_line(f"for GPUs of your own: dsrun plan --model {model} --gpus a100-80:8")
    return 0 if found else EXIT_FINDINGS


def print_models(request: PlanRequest, form: str) -> int:
    """The largest well-known models that the GPUs of the request train; the exit code."""
    found = largest(request)
    if form == "json":
        print_json({"largest": [_as_json(each) for each in found]})
    else:
        cluster = request.cluster
        print_line(f"{cluster.world} × {cluster.name} ({cluster.memory:g} GiB): the largest model, {_rows(request)}:")
        print_line()
        print_table([("train", "model", "GiB/GPU", "host GiB", "dsrun train"), *map(_model, found)])
    return 0 if found else EXIT_FINDINGS


def longest_rows(request: PlanRequest) -> dict[str, int]:
    """The longest rows, in tokens, of each way to train that the request leaves open."""
    return {way: longest(asked) for way, asked in ways(request).items()}


def explained(made: MemoryPlan) -> list[dict[str, Any]]:
    """How the memory of the choice comes about, or where nothing fits, of what takes the least."""
    row = made.choice or min(made.rows, key=lambda row: row.gpu.total)
    return [part._asdict() for part in explain(made.request, row)]


def print_parts(parts: Sequence[dict[str, Any]]) -> None:
    """Each part with its formula, and below it the source."""
    print_line("where the memory of one GPU goes:")
    for part in parts:
        print_line(f"  {part['name']}, {size_text(part['size'])}: {part['formula']}")
        print_line(f"      {part['source']}")


def _rows(request: PlanRequest) -> str:
    """`rows of 4096 tokens in bf16, each GPU filled to 65%`."""
    lengths = f"{request.source_length} + {request.length}" if request.model.seq2seq else f"{request.length}"
    return f"rows of {lengths} tokens in {request.precision}, each GPU filled to {SHARES[request.preset]:.0%}"


def _machine(found: FoundPlan) -> Sequence[str]:
    cluster = found.request.cluster
    return (found.way, f"{cluster.world} × {cluster.name}", str(cluster.nodes), *_sizes(found))


def _model(found: FoundPlan) -> Sequence[str]:
    return (found.way, found.model, *_sizes(found))


def _sizes(found: FoundPlan) -> Sequence[str]:
    host = max(found.choice.host, found.choice.host_loading)
    words = (f"--{name.replace('_', '-')} {str(value).lower()}" for name, value in found.flags.items())
    return (f"{found.choice.gpu.total / GIB:.1f}", f"{host / GIB:.0f}", " ".join(words))


def _as_json(found: FoundPlan) -> dict[str, Any]:
    cluster, choice = found.request.cluster, found.choice
    return {
        "train": found.way, "model": found.model or None, "gpus": cluster.name, "count": cluster.world,
        "nodes": cluster.nodes, "gpu_bytes": choice.gpu.total, "host_bytes": max(choice.host, choice.host_loading),
        "strategy": str(choice.strategy), "flags": found.flags,
    }  # fmt: skip
