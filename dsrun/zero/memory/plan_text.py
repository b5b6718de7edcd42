"""A plan as text: what was asked, and a table with a row for each choice, or for each strategy that was planned."""

from collections.abc import Callable, Iterable, Sequence

from dsrun.datafiles import SubjectNames, evaluate, toml_beside
from dsrun.engine_options import offloaded_to
from dsrun.system.terminal.display import size_text
from dsrun.zero.generate.presets import GIB, error_after, memory_of_sum
from dsrun.zero.memory import optimizers
from dsrun.zero.memory.model.architecture import training
from dsrun.zero.memory.model.count import CountedModel
from dsrun.zero.memory.plan import MemoryPlan, described
from dsrun.zero.memory.plan_request import PlanRequest
from dsrun.zero.memory.plan_table import CommandOptions, obstacle
from dsrun.zero.memory.states import FP32
from dsrun.zero.memory.strategy import NEARLY, PlanCandidate, sums_in_fp32

HEADINGS = ("speed", "micro batch", "GiB/GPU", "strategy")
_TABLE = toml_beside(__file__)
_VERDICTS = ("fits", "tight", "does not fit")


def header(plan: MemoryPlan, counted: CountedModel, options: CommandOptions) -> list[str]:
    """What was asked, in lines."""
    request, model = plan.request, plan.request.model
    trained = training(model, request.lora)
    share = f", {trained.trainable:,} of them in adapters trained" if request.lora else ""
    lengths = f"{request.source_length} + {request.length} tokens" if model.seq2seq else f"{request.length} tokens"
    return [
        f"{options.model}: {model.family}, {trained.parameters:,} parameters{share} (by {counted.how})",
        f"{described(request)} in {request.cluster.nodes} node{'s' if request.cluster.nodes > 1 else ''},"
        f" {request.precision}, {lengths} per sample, preset {request.preset}:"
        f" at most {request.budget / GIB:.1f} GiB of each GPU",
        *([f"fixed: {', '.join(fixed)}"] if (fixed := _fixed(request)) else []),
    ]


def _fixed(request: PlanRequest) -> list[str]:
    """What the configuration does not leave to the plan."""
    names = SubjectNames(request, {}, usual_optimizer=optimizers.DEFAULT, fp32=FP32)
    named = ((text, evaluate(value, names)) for text, value in _TABLE["fixed"])
    return [text.format(value) for text, value in named if value is not None]


def plan_rows(plan: MemoryPlan, *, every: bool) -> list[tuple[str, ...]]:
    """The table, its heading first: a row for `every` strategy, or the choice and one for all others that a user cannot
    tell apart by their figures, the fastest first."""
    groups: list[list[PlanCandidate]] = [[row] for row in plan.rows] if every else []
    order = sorted(plan.rows, key=lambda row: (row is not plan.choice, _VERDICTS.index(row.verdict), -row.relative))
    for row in () if every else order:
        group = next((each for each in groups if each[0] is not plan.choice and _are_alike(each[0], row)), None)
        if group is None:
            groups.append([row])
        else:
            group.append(row)
    return [HEADINGS, *(_cells(group, plan, every=every) for group in groups)]


def _are_alike(fastest: PlanCandidate, row: PlanCandidate) -> bool:
    """Whether both are equally good, within the error of the estimate, or fail for the same reason."""
    one, other = fastest.strategy, row.strategy
    if fastest.verdict != row.verdict or one.bf16_master != other.bf16_master:
        return False
    if row.verdict == "does not fit":
        return obstacle(fastest)[0] == obstacle(row)[0]
    return one.checkpointing == other.checkpointing and row.relative >= NEARLY * fastest.relative


def _cells(group: Sequence[PlanCandidate], plan: MemoryPlan, *, every: bool) -> tuple[str, ...]:
    first, fits = group[0], group[0].verdict != "does not fit"
    notes = [] if first.verdict == "fits" else ["does not fit" if not fits else "more than the preset allows"]
    if not fits:
        sizes = [obstacle(row)[1] for row in group]
        least = "at least " if size_text(min(sizes)) != size_text(max(sizes)) else ""
        notes.append(obstacle(first)[0].format(least + size_text(min(sizes))))
    elif every:
        notes.append(first.reason)
    if every:
        notes.append(f"{max(first.host, first.host_loading) / GIB:.0f} GiB of host memory per node")
    return (
        f"{max(row.relative for row in group):.2f}" if fits else "-",
        _span([row.micro_batch for row in group], str) if fits else "-",
        _span([row.gpu.total for row in group], lambda size: f"{size / GIB:.{int(size < 9.95 * GIB)}f}"),
        _names(group) + (" (recommended)" if first is plan.choice else "") + (f": {', '.join(notes)}" if notes else ""),
    )


def _names(group: Sequence[PlanCandidate]) -> str:
    """`ZeRO-0 to 3, ZeRO-1 to 2 + cpu, recomputing activations`: the stages of each place of the optimizer states."""
    stages: dict[str, list[int]] = {}
    places = ((row.strategy.stage, row.strategy.offload.replace("none", "")) for row in group)
    for stage, place in sorted(set(places), key=lambda each: each[::-1]):
        stages.setdefault(place and f" + {place}", []).append(stage)
    names = []
    for place, found in stages.items():
        runs = [found] if found[-1] - found[0] < len(found) else [[stage] for stage in found]
        names += [f"ZeRO-{run[0]}{f' to {run[-1]}' if run[1:] else ''}{place}" for run in runs]
    if all(row.strategy.checkpointing for row in group):
        names.append("recomputing activations")
    return ", ".join([*names, *(["bf16 master weights"] if group[0].strategy.bf16_master else [])])


def _span(values: Iterable[float], text: Callable[[float], str]) -> str:
    """`316-317`, or the one text of all values."""
    ordered = sorted(values)
    return "-".join(dict.fromkeys((text(ordered[0]), text(ordered[-1]))))


def exact_sums(request: PlanRequest, row: PlanCandidate) -> str:
    """That gradients are summed in fp32 and what it costs; empty where they are not."""
    if not sums_in_fp32(request, row.strategy, row.micro_batch):
        return ""
    trained = training(request.model, request.lora).trainable
    memory = memory_of_sum(trained, request.cluster.world, offloaded_to(row.strategy.offload))
    error = error_after(row.accumulation)
    return f"gradients of {row.accumulation} steps are summed in fp32, as a bf16 sum is off by {error}: {memory}"


def details(row: PlanCandidate) -> list[tuple[str, int]]:
    """What fills a GPU under the chosen strategy: names and bytes."""
    names = SubjectNames(row.gpu, {})
    parts = [(name, evaluate(size, names)) for name, size in _TABLE["details"].items()]
    return [(name, size) for name, size in parts if size >= GIB / 200]
